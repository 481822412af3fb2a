// Types of decide.js.

export type Profile = "low-latency" | "high-throughput" | "long-context";

export interface Border {
  /** Counted from the prompt's beginning, in tokens or characters as the request's length. */
  position: number;
  kind: "paragraph" | "message";
}

/** One of promptTokens and promptCharacters. */
export interface Request {
  promptTokens?: number;
  promptCharacters?: number;
  outputTokensMax?: number;
  systemCharacters?: number;
  borders?: Border[];
  profile?: Profile | null;
  /** True if left out. */
  streamed?: boolean;
}

/** Of who decides. */
export interface Hardware {
  role?: "client" | "engine";
  cores?: number;
  /** For a model; 0: it runs none. */
  memoryMib?: number;
  hasGpu?: boolean;
}

export interface Headroom {
  /** 0: not known. */
  kvTokensTotal?: number;
  kvTokensFree?: number;
  utilizationPpm?: number;
  queueIsOpen?: boolean;
  hasFallbackServer?: boolean;
}

export interface Decision {
  promptTokens: number;
  profile: Profile;
  split: "none" | "uniform" | "semantic";
  target: "resident" | "queue" | "cpu" | "server" | "refuse";
  reason: "" | "oom" | "too_long";
  shardEnds: number[];
}

export declare class Policy {
  get digest(): string;
  decide(request: Request, hardware?: Hardware, headroom?: Headroom): Decision;
  decideWords(input: ArrayLike<number>, borders: ArrayLike<number>): number[];
}

export declare function headroomOf(headers: { get(name: string): string | null }): Headroom;
export declare function loadPolicy(source?: BufferSource | WebAssembly.Module): Promise<Policy>;
