"""Names of metrics, old to new: of vLLM, llama.cpp's server, TGI, SGLang and the old layer.

One table; vLLM's part of it comes from what the server itself tells under those names
(`--metrics-compat vllm`), so that the two cannot differ.

defines: Migration, MIGRATIONS, NEW_HERE, new_name
"""

from __future__ import annotations

import msgspec

from ..edge.observe.compat import NAMES, OURS, THEIRS


class Migration(msgspec.Struct, frozen=True):
    """What a dashboard asks for, and what it asks for here."""

    source: str
    old: str
    new: str
    note: str = ""


COUNTERS = frozenset(
    (
        *("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens"),
        *("generation_tokens", "request_success"),
    )
)
"""Of vLLM's names those that end in _total on the wire."""
OWN_NOTES = {
    "num_preemptions": "always 0: admission reserves what a request can need",
    "request_success": "reasons are those of the Messages API; vLLM's own with --metrics-compat",
    "cache_config": "as labels",
}


def _of_vllm(name: str) -> Migration:
    ending = "_total" if name in COUNTERS else "_info" if name == "cache_config" else ""
    note = OWN_NOTES.get(name, "")
    return Migration("vLLM", f"{THEIRS}{name}{ending}", f"{OURS}{name}{ending}", note)


_OTHERS = (
    ("llama.cpp", "llamacpp:prompt_tokens_total", "prompt_tokens_total", ""),
    ("llama.cpp", "llamacpp:tokens_predicted_total", "generation_tokens_total", ""),
    ("llama.cpp", "llamacpp:prompt_seconds_total", "request_prefill_time_seconds", "a histogram"),
    (
        "llama.cpp",
        "llamacpp:tokens_predicted_seconds_total",
        "request_decode_time_seconds",
        "a histogram",
    ),
    (
        "llama.cpp",
        "llamacpp:predicted_tokens_seconds",
        "generation_tokens_total",
        "as rate(...): an average over all time says little",
    ),
    (
        "llama.cpp",
        "llamacpp:prompt_tokens_seconds",
        "prompt_tokens_total",
        "as rate(...)",
    ),
    ("llama.cpp", "llamacpp:kv_cache_usage_ratio", "kv_cache_usage_perc", "a share, 0 to 1"),
    ("llama.cpp", "llamacpp:requests_processing", "num_requests_running", ""),
    ("llama.cpp", "llamacpp:requests_deferred", "num_requests_waiting", ""),
    ("llama.cpp", "llamacpp:n_decode_total", "steps_total", "steps of the loop"),
    ("TGI", "tgi_request_count", "http_responses_total", "by status"),
    ("TGI", "tgi_request_success", "request_success_total", "by reason"),
    ("TGI", "tgi_request_duration", "e2e_request_latency_seconds", ""),
    ("TGI", "tgi_request_queue_duration", "request_queue_time_seconds", ""),
    ("TGI", "tgi_request_inference_duration", "request_inference_time_seconds", ""),
    (
        "TGI",
        "tgi_request_mean_time_per_token_duration",
        "inter_token_latency_seconds",
        "of each event, not the mean of each request",
    ),
    ("TGI", "tgi_request_generated_tokens", "generation_tokens_total", "a counter"),
    ("TGI", "tgi_queue_size", "num_requests_waiting", ""),
    ("TGI", "tgi_batch_current_size", "num_requests_running", ""),
    ("SGLang", "sglang:num_running_reqs", "num_requests_running", ""),
    ("SGLang", "sglang:num_queue_reqs", "num_requests_waiting", ""),
    ("SGLang", "sglang:token_usage", "kv_cache_usage_perc", "a share, 0 to 1"),
    (
        "SGLang",
        "sglang:cache_hit_rate",
        "prefix_cache_hits_total",
        "as rate(...) over that of prefix_cache_queries_total",
    ),
    ("SGLang", "sglang:gen_throughput", "generation_tokens_total", "as rate(...)"),
    ("SGLang", "sglang:prompt_tokens_total", "prompt_tokens_total", ""),
    ("SGLang", "sglang:cached_tokens_total", "prefix_cache_hits_total", ""),
    ("SGLang", "sglang:generation_tokens_total", "generation_tokens_total", ""),
    ("SGLang", "sglang:num_requests_total", "requests_finished_total", ""),
    ("SGLang", "sglang:time_to_first_token_seconds", "time_to_first_token_seconds", ""),
    ("SGLang", "sglang:inter_token_latency_seconds", "inter_token_latency_seconds", ""),
    ("SGLang", "sglang:e2e_request_latency_seconds", "e2e_request_latency_seconds", ""),
    ("old layer", "layer_fallback_total", "layer_fallback_total", "by reason and target"),
    ("old layer", "LLEN layer:questions", "num_requests_waiting", "of Redis, no metric"),
)
MIGRATIONS: tuple[Migration, ...] = (
    *(_of_vllm(name) for name in sorted(NAMES)),
    *(Migration(source, old, OURS + new, note) for source, old, new, note in _OTHERS),
)

if len({migration.old for migration in MIGRATIONS}) != len(MIGRATIONS):
    raise ValueError("an old name leads to one new name")

NEW_HERE: dict[str, str] = {
    "quic_handshake_seconds": "Handshakes of HTTP/3, from the first datagram; with --tls.",
    "plan_launch_seconds_total": "From the start of the loop's turn to that of its plan; over "
    "steps_total it is the launch latency of a step.",
    "queue_wait_seconds": "Receipt to admission, by execution profile.",
    "prefix_divergences_total": "Prompts that left the one before them, by what had changed.",
    "cancelled_in_queue_total": "Clients that left while they waited; _in_prefill, _in_decode.",
    "engine_utilization": "Share of the measured roofline in the last second.",
    "spec_decode_num_accepted_tokens_total": "Guessed tokens that cost no step of their own.",
    "grammar_relaxations_total": "Parts of schemas that answers were not held to.",
}
"""What nobody had before, without the prefix."""


def new_name(old: str) -> str:
    """What to ask for in place of an old name, also of a part of a histogram; empty if unknown."""
    if not old:
        raise ValueError("a metric has a name")
    for migration in MIGRATIONS:
        if old in (migration.old, migration.old.removesuffix("_total")):
            return migration.new
        for ending in ("_bucket", "_sum", "_count"):
            if old == migration.old + ending:
                return migration.new + ending
    return ""
