// The decision function for browsers and Node: decide.wasm with names for its words.
// The same decisions as the engine's and Python's (sublimate.policy.decide).
//
//   import { loadPolicy, headroomOf } from "./decide.js";
//   const policy = await loadPolicy();
//   policy.decide({ promptCharacters: 40000, systemCharacters: 6000 },
//                 { cores: navigator.hardwareConcurrency }, headroomOf(response.headers));
//
// Defines: loadPolicy, headroomOf, Policy.

const UNITS = { tokens: 0, characters: 1 };
const PROFILES = ["low-latency", "high-throughput", "long-context"];
const ROLES = ["client", "engine"];
const KINDS = ["paragraph", "message"];
const SPLITS = ["none", "uniform", "semantic"];
const TARGETS = ["resident", "queue", "cpu", "server", "refuse"];
const REASONS = ["", "oom", "too_long"];

const COUNTS = ["promptTokens", "promptCharacters", "outputTokensMax", "systemCharacters"];
const WORD_BYTES = 4;
const PAGE_BYTES = 65536;
const INPUT_WORDS = 15;
const OUTPUT_WORDS = 6 + 64;
const DIGEST_BYTES = 64;
const WORD_MAX = 2 ** 31 - 1;
const PARTS_PER_MILLION = 1e6;

const word = (number) => Math.max(-WORD_MAX, Math.min(Math.trunc(number ?? 0), WORD_MAX));

const indexIn = (names, name) => {
  const index = names.indexOf(name);
  if (index < 0) throw new RangeError(`${name}: expected one of ${names.join(", ")}`);
  return index;
};

/** What a response's headers tell of its server; what they do not tell is unknown. */
export function headroomOf(headers) {
  const memory = /^free=(\d{1,10}), ?total=(\d{1,10})$/.exec(headers.get("x-kv-headroom") ?? "");
  const share = Number(headers.get("x-engine-utilization") ?? 0);
  return {
    kvTokensTotal: memory ? Number(memory[2]) : 0,
    kvTokensFree: memory ? Number(memory[1]) : 0,
    utilizationPpm: Number.isFinite(share) ? Math.round(share * PARTS_PER_MILLION) : 0,
  };
}

export class Policy {
  #exports;

  constructor(instance) {
    this.#exports = instance.exports;
  }

  /** SHA-256 of the policy, in hex; a server with the same has it in x-layer-config. */
  get digest() {
    const bytes = new Uint8Array(this.#exports.memory.buffer, this.#exports.policy_digest(), DIGEST_BYTES);
    return String.fromCharCode(...bytes);
  }

  /** How a request should run. All fields may be left out but the length of the prompt. */
  decide(request, hardware = {}, headroom = {}) {
    const inCharacters = request.promptTokens === undefined;
    if (inCharacters === (request.promptCharacters === undefined))
      throw new TypeError("give either promptTokens or promptCharacters");
    const wrong = COUNTS.find((name) => request[name] < 0);
    if (wrong) throw new RangeError(`${wrong} is a count, and less than 0`);
    const input = [
      inCharacters ? UNITS.characters : UNITS.tokens,
      inCharacters ? request.promptCharacters : request.promptTokens,
      request.outputTokensMax,
      request.systemCharacters,
      request.profile == null ? -1 : indexIn(PROFILES, request.profile),
      Number(request.streamed ?? true),
      indexIn(ROLES, hardware.role ?? "client"),
      hardware.cores,
      hardware.memoryMib,
      Number(hardware.hasGpu ?? false),
      headroom.kvTokensTotal,
      headroom.kvTokensFree,
      headroom.utilizationPpm,
      Number(headroom.queueIsOpen ?? true),
      Number(headroom.hasFallbackServer ?? false),
    ];
    const borders = (request.borders ?? []).flatMap(({ position, kind }) => [
      word(position),
      indexIn(KINDS, kind),
    ]);
    const [tokens, profile, split, target, reason, , ...ends] = this.decideWords(input.map(word), borders);
    return {
      promptTokens: tokens,
      profile: PROFILES[profile],
      split: SPLITS[split],
      target: TARGETS[target],
      reason: REASONS[reason],
      shardEnds: ends,
    };
  }

  /** Words in, words out, as core/policy/decide.h has them. */
  decideWords(input, borders) {
    const { memory, __heap_base: heap } = this.#exports;
    const from = heap.value;
    const bytes = (INPUT_WORDS + OUTPUT_WORDS + borders.length) * WORD_BYTES;
    const missing = from + bytes - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE_BYTES));
    const words = new Int32Array(memory.buffer, from, INPUT_WORDS + OUTPUT_WORDS + borders.length);
    words.set(input);
    words.set(borders, INPUT_WORDS + OUTPUT_WORDS);
    const out = from + INPUT_WORDS * WORD_BYTES;
    this.#exports.decide(from, out + OUTPUT_WORDS * WORD_BYTES, borders.length / 2, out);
    const told = words.slice(INPUT_WORDS, INPUT_WORDS + OUTPUT_WORDS);
    return [...told.subarray(0, 6 + told[5])];
  }
}

/** From the module's bytes, a compiled module, or, without either, decide.wasm beside this file. */
export async function loadPolicy(source) {
  const bytes = source ?? (await ownBytes());
  const compiled = bytes instanceof WebAssembly.Module ? bytes : await WebAssembly.compile(bytes);
  return new Policy(await WebAssembly.instantiate(compiled, {}));
}

async function ownBytes() {
  const url = new URL("decide.wasm", import.meta.url);
  if (url.protocol !== "file:") return (await fetch(url)).arrayBuffer();
  const { readFile } = await import("node:fs/promises");
  return readFile(url);
}
