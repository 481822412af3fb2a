// Load in stages for any server of the Messages API, or of OpenAI's chat completions (API=openai).
//
//   k6 run -e URL=http://127.0.0.1:8000 -e STAGES=10s:5,30s:20,60s:20 deploy/k6/sublimate.ts
//
// Each message is a stream, tagged with its execution profile. k6 reads whole bodies only, so the first byte is that of
// the answer, which in a stream is its first event. A broken threshold makes k6 end with status 99.
import exec from "k6/execution";
import http from "k6/http";
import { Rate, Trend } from "k6/metrics";
import { sleep } from "k6";
import type { Options, Stage } from "k6/options";

const URL = setting("URL", "http://127.0.0.1:8000");
const API = setting("API", "messages");
const MODEL = setting("MODEL", "default");
const API_KEY = setting("API_KEY", "none");
const MAX_TOKENS = number("MAX_TOKENS", 64);
const PROMPT_WORDS = number("PROMPT_WORDS", 60);
const PROFILES = setting("PROFILES", "low-latency,high-throughput,long-context").split(",");
const FIRST_BYTE_P99 = number("FIRST_BYTE_P99", 2000);
const FAILURES = number("FAILURES", 0.01);
const AVAILABILITY = number("AVAILABILITY", 0.999);

/** How much longer the prompts of long-context are. */
const LONG_CONTEXT_TIMES = 8;
/** Equal parts of the last stage: the p99 of each must hold by itself, and their deviation is told. */
const WINDOWS = 5;
const PATH = API === "openai" ? "/v1/chat/completions" : "/v1/messages";
const END = API === "openai" ? "[DONE]" : "message_stop";

const STAGES: Stage[] = setting("STAGES", "10s:5,30s:20,60s:20")
  .split(",")
  .map((part) => {
    const [duration = "", users = ""] = part.split(":");
    return { duration, target: Number(users) };
  });
const TOTAL_MS = STAGES.reduce((sum, stage) => sum + milliseconds(stage.duration), 0);
const LAST_MS = milliseconds(STAGES[STAGES.length - 1]?.duration ?? "");

const firstByte = new Trend("first_byte", true);
const endToEnd = new Trend("end_to_end", true);
const failures = new Rate("failures");
const availability = new Rate("availability");

export const options: Options = {
  scenarios: {
    messages: { executor: "ramping-vus", exec: "ask", startVUs: 1, stages: STAGES, gracefulRampDown: "10s" },
    probes: {
      executor: "constant-arrival-rate",
      exec: "probe",
      rate: 1,
      duration: `${Math.ceil(TOTAL_MS / 1000)}s`,
      preAllocatedVUs: 2,
    },
  },
  summaryTrendStats: ["med", "p(90)", "p(99)", "max"],
  thresholds: {
    first_byte: [`p(99)<=${FIRST_BYTE_P99}`],
    failures: [`rate<=${FAILURES}`],
    availability: [`rate>=${AVAILABILITY}`],
    ...Object.fromEntries(PROFILES.map((name) => [`first_byte{profile:${name}}`, [`p(99)<=${FIRST_BYTE_P99}`]])),
    ...Object.fromEntries(windows().map((name) => [`first_byte{window:${name}}`, [`p(99)<=${FIRST_BYTE_P99}`]])),
  },
};

interface Found {
  /** The server is one of ours: others refuse a field that they do not know. */
  knowsProfiles: boolean;
}

export function setup(): Found {
  const reply = http.get(`${URL}/.well-known/sublimate`, { tags: { profile: "none" } });
  return { knowsProfiles: reply.status === 200 && String(reply.body).includes('"profiles"') };
}

export function ask(found: Found): void {
  const profile = PROFILES[exec.scenario.iterationInTest % PROFILES.length] ?? "";
  const tags = { profile, window: window() };
  const reply = http.post(URL + PATH, JSON.stringify(body(profile, found)), {
    headers: { "content-type": "application/json", ...credentials() },
    tags,
    timeout: "120s",
  });
  const text = String(reply.body ?? "");
  const failed = reply.status !== 200 || !text.includes(END) || text.includes("event: error");
  failures.add(failed, tags);
  if (!failed) {
    firstByte.add(reply.timings.waiting, tags);
    endToEnd.add(reply.timings.duration, tags);
  }
  sleep(0.05 + Math.random() * 0.2);
}

export function probe(): void {
  const reply = http.get(`${URL}/v1/models`, { headers: credentials(), tags: { profile: "none" }, timeout: "5s" });
  availability.add(reply.status === 200);
}

/** A prompt that nobody has asked before. */
function body(profile: string, found: Found): object {
  const words = PROMPT_WORDS * (profile === "long-context" ? LONG_CONTEXT_TIMES : 1);
  const numbers = Array.from({ length: words }, () => Math.floor(Math.random() * 1000));
  return {
    model: MODEL,
    max_tokens: MAX_TOKENS,
    stream: true,
    messages: [{ role: "user", content: `Which of these numbers is the largest? ${numbers.join(" ")}` }],
    ...(found.knowsProfiles ? { execution_profile: profile } : {}),
  };
}

function credentials(): Record<string, string> {
  return API === "openai"
    ? { authorization: `Bearer ${API_KEY}` }
    : { "x-api-key": API_KEY, "anthropic-version": "2023-06-01" };
}

/** Which part of the last stage it is; before that, and in what follows it, none of them. */
function window(): string {
  const into = exec.instance.currentTestRunDuration - (TOTAL_MS - LAST_MS);
  return into < 0 || into >= LAST_MS ? "ramp" : String(Math.floor((into / LAST_MS) * WINDOWS));
}

function windows(): string[] {
  return Array.from({ length: WINDOWS }, (_, index) => String(index));
}

interface Summary {
  metrics: Record<string, { values: Record<string, number>; thresholds?: Record<string, { ok: boolean }> }>;
}

/** Prints the table. The deviation of p99 is the windows' standard deviation over their mean. */
export function handleSummary(data: Summary): Record<string, string> {
  const lines = ["profile              p50 ms   p90 ms   p99 ms"];
  for (const profile of PROFILES) {
    const values = data.metrics[`first_byte{profile:${profile}}`]?.values ?? {};
    const cells = ["med", "p(90)", "p(99)"].map((name) => (values[name] ?? 0).toFixed(1).padStart(9));
    lines.push(profile.padEnd(18) + cells.join(""));
  }
  const tails = windows()
    .map((name) => data.metrics[`first_byte{window:${name}}`]?.values["p(99)"] ?? 0)
    .filter((value) => value > 0);
  const mean = tails.reduce((sum, value) => sum + value, 0) / tails.length;
  const variance = tails.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (tails.length - 1);
  const deviation = tails.length > 1 ? Math.sqrt(variance) / mean : Infinity;
  for (const [name, metric] of Object.entries(data.metrics)) {
    for (const [bound, { ok }] of Object.entries(metric.thresholds ?? {})) {
      lines.push(`${ok ? "holds " : "BROKEN"} ${name} ${bound}`);
    }
  }
  lines.push(`deviation of p99: ${deviation.toFixed(3)}`, "");
  return { stdout: lines.join("\n") };
}

function setting(name: string, otherwise: string): string {
  return __ENV[name] || otherwise;
}

function number(name: string, otherwise: number): number {
  const value = Number(setting(name, String(otherwise)));
  if (!Number.isFinite(value)) throw new Error(`${name} is a number`);
  return value;
}

function milliseconds(duration: string): number {
  const found = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(duration);
  if (!found) throw new Error(`STAGES: expected TIME:USERS,... such as 10s:5, not ${duration}`);
  return Number(found[1]) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[found[2] as "ms" | "s" | "m" | "h"];
}
