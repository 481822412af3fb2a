// The events of a stream as the JSON of the Messages API has them, and how frames say the same.

import {
  StopReason,
  type AppliedEdit,
  type ContentBlock as BlockFrame,
  type ContentBlockDelta,
  type ContextManagement as ManagementFrame,
  type Diagnostics as DiagnosticsFrame,
  type Error as ErrorFrame,
  type Message as MessageFrame,
  type MessageDelta,
  type StreamEvent as EventFrame,
  type Usage as UsageFrame,
} from "./gen/sublimate/v1/frames_pb.js";
import { StreamError } from "./errors.js";

export interface Usage {
  input_tokens: number;
  cache_creation_input_tokens: number;
  cache_read_input_tokens: number;
  cache_creation?: { ephemeral_5m_input_tokens: number; ephemeral_1h_input_tokens: number };
  output_tokens: number;
  service_tier?: string;
  output_tokens_details?: { thinking_tokens: number };
}

export type ContentBlock =
  | { type: "text"; text: string }
  | { type: "thinking"; thinking: string; signature: string }
  | { type: "tool_use"; id: string; name: string; input: Record<string, unknown> };

export type StopReasonName =
  | "end_turn"
  | "max_tokens"
  | "stop_sequence"
  | "tool_use"
  | "model_context_window_exceeded"
  | "refusal"
  | "pause_turn";

export interface ContextManagement {
  applied_edits: {
    type: string;
    cleared_thinking_turns?: number;
    cleared_tool_uses?: number;
    cleared_input_tokens: number;
  }[];
}

export interface Diagnostics {
  cache_miss_reason: { type: string; cache_missed_input_tokens?: number } | null;
}

export interface Message {
  id: string;
  type: "message";
  role: "assistant";
  model: string;
  content: ContentBlock[];
  stop_reason: StopReasonName | null;
  stop_sequence: string | null;
  stop_details: null;
  container: null;
  diagnostics: Diagnostics | null;
  usage: Usage;
  context_management?: ContextManagement;
}

export type Delta =
  | { type: "text_delta"; text: string }
  | { type: "thinking_delta"; thinking: string }
  | { type: "signature_delta"; signature: string }
  | { type: "input_json_delta"; partial_json: string };

export type StreamEvent =
  | { type: "message_start"; message: Message }
  | { type: "content_block_start"; index: number; content_block: ContentBlock }
  | { type: "content_block_delta"; index: number; delta: Delta }
  | { type: "content_block_stop"; index: number }
  | {
      type: "message_delta";
      delta: {
        stop_reason: StopReasonName | null;
        stop_sequence: string | null;
        stop_details: null;
        container: null;
      };
      context_management?: ContextManagement;
      usage: Usage;
    }
  | { type: "message_stop" }
  | { type: "ping" }
  | {
      type: "error";
      error: { type: string; message: string; details?: { error_code: string } };
      request_id: string;
    };

/** The event of a frame; undefined for a kind that is not known here. Throws StreamError. */
export function eventOf(frame: EventFrame): StreamEvent | undefined {
  const { event } = frame;
  switch (event.case) {
    case "contentBlockDelta":
      return { type: "content_block_delta", index: event.value.index, delta: deltaOf(event.value) };
    case "messageStart":
      return { type: "message_start", message: messageOf(present(event.value.message)) };
    case "contentBlockStart": {
      const block = blockOf(present(event.value.contentBlock));
      return { type: "content_block_start", index: event.value.index, content_block: block };
    }
    case "contentBlockStop":
      return { type: "content_block_stop", index: event.value.index };
    case "messageDelta":
      return endOf(event.value);
    case "messageStop":
      return { type: "message_stop" };
    case "ping":
      return { type: "ping" };
    case "error":
      return errorOf(event.value);
    default:
      return undefined;
  }
}

function unknown(what: string): StreamError {
  return new StreamError(`The stream has ${what} that is not known here.`, "malformed");
}

function present<T>(value: T | undefined): T {
  if (value === undefined) throw new StreamError("An event without its content.", "malformed");
  return value;
}

function deltaOf({ delta }: ContentBlockDelta): Delta {
  switch (delta.case) {
    case "text":
      return { type: "text_delta", text: delta.value };
    case "thinking":
      return { type: "thinking_delta", thinking: delta.value };
    case "signature":
      return { type: "signature_delta", signature: delta.value };
    case "partialJson":
      return { type: "input_json_delta", partial_json: delta.value };
    default:
      throw unknown("a delta");
  }
}

function blockOf({ block }: BlockFrame): ContentBlock {
  switch (block.case) {
    case "text":
      return { type: "text", text: block.value.text };
    case "thinking": {
      const { thinking, signature } = block.value;
      return { type: "thinking", thinking, signature };
    }
    case "toolUse": {
      const { id, name, input } = block.value;
      return { type: "tool_use", id, name, input: input ? objectOf(input) : {} };
    }
    default:
      throw unknown("a block");
  }
}

function objectOf(text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // As below.
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new StreamError("The input of a tool is no JSON object.", "malformed");
  }
  return value as Record<string, unknown>;
}

function reasonOf(reason: StopReason): StopReasonName | null {
  if (reason === StopReason.UNSPECIFIED) return null;
  const name = StopReason[reason] as string | undefined;
  if (name === undefined) throw unknown("a stop reason");
  return name.toLowerCase() as StopReasonName;
}

function usageOf(usage: UsageFrame): Usage {
  const { cacheCreation, outputTokensDetails, serviceTier } = usage;
  return {
    input_tokens: usage.inputTokens,
    cache_creation_input_tokens: usage.cacheCreationInputTokens,
    cache_read_input_tokens: usage.cacheReadInputTokens,
    ...(cacheCreation && {
      cache_creation: {
        ephemeral_5m_input_tokens: cacheCreation.ephemeral5mInputTokens,
        ephemeral_1h_input_tokens: cacheCreation.ephemeral1hInputTokens,
      },
    }),
    output_tokens: usage.outputTokens,
    ...(serviceTier !== undefined && { service_tier: serviceTier }),
    ...(outputTokensDetails && {
      output_tokens_details: { thinking_tokens: outputTokensDetails.thinkingTokens },
    }),
  };
}

function diagnosticsOf({ cacheMissReason }: DiagnosticsFrame): Diagnostics {
  if (cacheMissReason === undefined) return { cache_miss_reason: null };
  const { type, cacheMissedInputTokens: tokens } = cacheMissReason;
  const missed = tokens !== undefined && { cache_missed_input_tokens: tokens };
  return { cache_miss_reason: { type, ...missed } };
}

function editOf(edit: AppliedEdit): ContextManagement["applied_edits"][number] {
  const { clearedThinkingTurns: turns, clearedToolUses: uses } = edit;
  return {
    type: edit.type,
    ...(turns !== undefined && { cleared_thinking_turns: turns }),
    ...(uses !== undefined && { cleared_tool_uses: uses }),
    cleared_input_tokens: edit.clearedInputTokens,
  };
}

function managementOf(management: ManagementFrame | undefined) {
  return (
    management && { context_management: { applied_edits: management.appliedEdits.map(editOf) } }
  );
}

function messageOf(message: MessageFrame): Message {
  return {
    id: message.id,
    type: "message",
    role: "assistant",
    model: message.model,
    content: message.content.map(blockOf),
    stop_reason: reasonOf(message.stopReason),
    stop_sequence: message.stopSequence ?? null,
    stop_details: null,
    container: null,
    diagnostics: message.diagnostics ? diagnosticsOf(message.diagnostics) : null,
    usage: usageOf(present(message.usage)),
    ...managementOf(message.contextManagement),
  };
}

function endOf(end: MessageDelta): StreamEvent {
  return {
    type: "message_delta",
    delta: {
      stop_reason: reasonOf(end.stopReason),
      stop_sequence: end.stopSequence ?? null,
      stop_details: null,
      container: null,
    },
    ...managementOf(end.contextManagement),
    usage: usageOf(present(end.usage)),
  };
}

function errorOf(error: ErrorFrame): StreamEvent {
  const { type, message, errorCode } = error;
  const details = errorCode !== undefined && { details: { error_code: errorCode } };
  return { type: "error", error: { type, message, ...details }, request_id: error.requestId };
}
