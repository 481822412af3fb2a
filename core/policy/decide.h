// The one decision function: profile, shards and place of a request, by the policy, from what its
// caller knows. The engine's edge, a Python client and, as WebAssembly, a browser decide with it;
// tests/policy/vectors.json has what all of them must say. It is total: any numbers have an answer.
//
// defines: Unit, Role, BorderKind, Border, DecisionInput, Split, Target, Reason, Decision, decide
#pragma once

#include "policy.h"

namespace sublimate {

enum class Unit : int32_t { tokens, characters }; // characters: lengths are estimates
enum class Role : int32_t { client, engine };     // who decides; the hardware is its own
enum class BorderKind : int32_t { paragraph, message };

// A place where the prompt may be cut, counted from its beginning in the input's unit.
struct Border {
    int32_t position;
    BorderKind kind;
};

struct DecisionInput {
    // The request.
    Unit unit = Unit::tokens;
    int32_t prompt_length = 0; // in the unit
    int32_t output_tokens_max = 0;
    int32_t system_characters = 0; // of the system prompt
    int32_t profile = 0;           // asked for, by Profile of request.h; -1: none
    int32_t streamed = 0;          // 1: somebody waits for each token
    // The hardware of who decides. 0 MiB: it runs no model.
    Role role = Role::client;
    int32_t cores = 0;
    int32_t memory_mib = 0;
    int32_t has_gpu = 0;
    // The server's headroom, as its last response reported it.
    int32_t kv_tokens_total = 0; // 0: not known
    int32_t kv_tokens_free = 0;  // that a new request can reserve
    int32_t utilization_ppm = 0; // of the engine's roofline
    int32_t queue_is_open = 0;   // 1: a request may wait there
    int32_t has_fallback_server = 0;
};

enum class Split : int32_t { none, uniform, semantic };
// resident: the server's loop, at once. queue: the same when pages are free. cpu: the CPU beside
// the engine's GPU, or the client's own machine. server: another server. refuse: none of them.
enum class Target : int32_t { resident, queue, cpu, server, refuse };
// oom: the KV memory is full past the threshold. too_long: it could never hold the request.
enum class Reason : int32_t { none, oom, too_long };

struct Decision {
    int32_t prompt_tokens; // that the plan is made for
    int32_t profile;
    Split split;
    Target target;
    Reason reason; // of a target that is not resident, or of no target
    int32_t shard_count;
    int32_t shard_ends[SHARDS_MAX]; // in tokens; the last is prompt_tokens
};

static_assert(sizeof(Border) == 2 * sizeof(int32_t), "WebAssembly's caller writes these words");
static_assert(sizeof(DecisionInput) == 15 * sizeof(int32_t));
static_assert(sizeof(Decision) == (6 + SHARDS_MAX) * sizeof(int32_t));

namespace deciding {

constexpr int32_t LOW_LATENCY = 0; // as in request.h, which needs more than this folder may
constexpr int32_t HIGH_THROUGHPUT = 1;
constexpr int32_t LONG_CONTEXT = 2;

constexpr int32_t not_negative(int32_t value) {
    return value > 0 ? value : 0;
}

constexpr int32_t block_floor(int32_t tokens, const LayerPolicy& policy) {
    return tokens - tokens % policy.attention_block_tokens;
}

// Up, so that a prompt is rather taken for too long.
constexpr int32_t tokens_of(int32_t length, Unit unit, const LayerPolicy& policy) {
    length = not_negative(length);
    if (unit != Unit::characters) return length;
    return length / policy.characters_per_token + (length % policy.characters_per_token != 0);
}

constexpr int32_t chosen_profile(const DecisionInput& in, int32_t tokens,
                                 const LayerPolicy& policy) {
    if (in.profile >= 0 && in.profile < POLICY_PROFILES) return in.profile;
    if (tokens > policy.max_tokens_per_shard) return LONG_CONTEXT;
    bool is_short = in.streamed != 0 && tokens <= policy.short_prompt_tokens;
    bool has_room = in.utilization_ppm < policy.fallback_cpu_threshold_ppm;
    return is_short && has_room ? LOW_LATENCY : HIGH_THROUGHPUT;
}

// As few shards as the policy allows, of equally many blocks or one more.
constexpr void split_evenly(int32_t tokens, const LayerPolicy& policy, Decision& out) {
    int32_t block = policy.attention_block_tokens;
    int64_t blocks = tokens / block + (tokens % block != 0);
    int64_t of_a_shard = policy.max_tokens_per_shard / block;
    int64_t shards = blocks / of_a_shard + (blocks % of_a_shard != 0);
    for (int64_t i = 1; i < shards; i++)
        out.shard_ends[out.shard_count++] = static_cast<int32_t>(blocks * i / shards * block);
    out.shard_ends[out.shard_count++] = tokens;
}

// The last place where a shard that begins at `start` can end well: after a message if it can, else
// after a paragraph, else where it is full.
constexpr int32_t semantic_end(int32_t start, Unit unit, const Border* borders, int32_t count,
                               const LayerPolicy& policy) {
    int32_t full = start + policy.max_tokens_per_shard;
    int32_t least = start + static_cast<int32_t>(int64_t{policy.max_tokens_per_shard} *
                                                 policy.semantic_shard_percent_min / 100);
    int32_t message = 0;
    int32_t paragraph = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t at = block_floor(tokens_of(borders[i].position, unit, policy), policy);
        if (at < least || at > full) continue;
        int32_t& last = borders[i].kind == BorderKind::message ? message : paragraph;
        last = at > last ? at : last;
    }
    return message > 0 ? message : (paragraph > 0 ? paragraph : full);
}

constexpr void plan_shards(const DecisionInput& in, int32_t tokens, const Border* borders,
                           int32_t count, const LayerPolicy& policy, Decision& out) {
    if (tokens <= policy.max_tokens_per_shard) {
        out.shard_ends[out.shard_count++] = tokens;
    } else if (policy.split_algorithm == SplitAlgorithm::semantic && count > 0 &&
               in.system_characters >= policy.semantic_system_characters_min) {
        out.split = Split::semantic;
        int32_t start = 0;
        while (tokens - start > policy.max_tokens_per_shard) {
            start = semantic_end(start, in.unit, borders, count, policy);
            out.shard_ends[out.shard_count++] = start;
        }
        out.shard_ends[out.shard_count++] = tokens;
    } else {
        out.split = Split::uniform;
        split_evenly(tokens, policy, out);
    }
}

// An engine's fallback is the CPU beside its GPU; without one its CPU is what is full.
constexpr bool cpu_can(const DecisionInput& in, const LayerPolicy& policy) {
    bool has_memory = in.memory_mib > 0 && in.memory_mib >= policy.local_memory_mib_min;
    bool has_cores = in.cores >= policy.local_cores_min;
    if (in.role == Role::engine) return in.has_gpu != 0 && has_cores && has_memory;
    return has_memory && (has_cores || in.has_gpu != 0);
}

// Past the threshold a request goes on the fallback; where there is none it may fill the memory to
// the end, and then waits, and is refused only where it may not.
constexpr void choose_target(const DecisionInput& in, int32_t tokens, const LayerPolicy& policy,
                             Decision& out) {
    int64_t total = in.kv_tokens_total;
    int64_t free = not_negative(in.kv_tokens_free);
    int64_t need = int64_t{tokens} + not_negative(in.output_tokens_max);
    bool is_known = total > 0;
    bool fits_ever = tokens <= PLANNED_TOKENS_MAX && (!is_known || need <= total);
    bool is_past =
        is_known && (total - free + need) * PPM > total * policy.fallback_cpu_threshold_ppm;
    if (fits_ever && !is_past) return;
    bool fits_now = fits_ever && need <= free;
    out.reason = fits_ever ? Reason::oom : Reason::too_long;
    if (cpu_can(in, policy)) {
        out.target = Target::cpu;
    } else if (in.has_fallback_server != 0) {
        out.target = Target::server;
    } else if (fits_now) {
        out.reason = Reason::none;
    } else {
        out.target = fits_ever && in.queue_is_open != 0 ? Target::queue : Target::refuse;
    }
}

} // namespace deciding

// Borders in any order; those that cannot end a shard are passed over.
constexpr Decision decide(const DecisionInput& in, const Border* borders, int32_t border_count,
                          const LayerPolicy& policy = LAYER_POLICY) {
    using namespace deciding;
    Decision out = {};
    int32_t tokens = tokens_of(in.prompt_length, in.unit, policy);
    out.prompt_tokens = tokens;
    out.profile = chosen_profile(in, tokens, policy);
    if (tokens <= PLANNED_TOKENS_MAX)
        plan_shards(in, tokens, borders, not_negative(border_count), policy, out);
    choose_target(in, tokens, policy, out);
    return out;
}

static_assert(decide({.profile = -1}, nullptr, 0).shard_count == 1, "an empty prompt is one shard");
static_assert(decide({.prompt_length = PLANNED_TOKENS_MAX}, nullptr, 0).split == Split::uniform);
static_assert(decide({.prompt_length = PLANNED_TOKENS_MAX + 1}, nullptr, 0).reason ==
              Reason::too_long);

} // namespace sublimate
