// What can go wrong: an answer that is an error, and a stream that is none.

/** The server's error: by status before the stream, by an event within it. */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    message: string,
    /** As in "overloaded_error". */
    readonly type: string,
    /** Of the response; 200 for an error within a stream. */
    readonly status: number,
    readonly requestId: string | null,
  ) {
    super(message);
  }
}

/** A stream that cannot be read. */
export class StreamError extends Error {
  override readonly name = "StreamError";

  constructor(
    message: string,
    /**
     * too_large: a frame or a line is longer than the reader takes. malformed: its bytes are no
     * event, or follow the last one. truncated: the stream ended before its last event.
     */
    readonly code: "too_large" | "malformed" | "truncated",
  ) {
    super(message);
  }
}
