// One accepted request inside the loop: its states and the data that goes with them.
//
//   free -> queued -> prefill <-> waiting_mask <-> decode
//              \________\______________|____________/____> draining -> free
//
// `waiting_mask`: its last row was computed, but not sampled for want of its token mask. `queued`
// holds no pages. `draining` holds no pages either: only its terminal row is still to be published,
// because the edge's token ring had no room. A transition outside the table is a bug and aborts.
//
// defines: State, transition_allowed, WaitReason, Sequence, move_to
#pragma once

#include <cstdint>

#include "../check.h"
#include "../request.h"
#include "kv.h"

namespace sublimate {

enum class State : int32_t { free, queued, prefill, decode, waiting_mask, draining };
constexpr int32_t STATES = 6;

// TRANSITIONS[from] has bit `to`.
constexpr uint32_t TRANSITIONS[STATES] = {
    1u << 1,                         // free -> queued
    1u << 2 | 1u << 5 | 1u << 0,     // queued -> prefill, draining, free
    1u << 3 | 1u << 4 | 1u << 5 | 1, // prefill -> decode, waiting_mask, draining, free
    1u << 4 | 1u << 5 | 1,           // decode -> waiting_mask, draining, free
    1u << 2 | 1u << 3 | 1u << 5 | 1, // waiting_mask -> prefill, decode, draining, free
    1u << 0,                         // draining -> free
};

SUBLIMATE_HD constexpr bool transition_allowed(State from, State to) {
    constexpr auto table = constant_table(TRANSITIONS);
    return (table.at[static_cast<int32_t>(from)] >> static_cast<int32_t>(to) & 1u) != 0;
}

static_assert(!transition_allowed(State::queued, State::decode), "prompts come first");
static_assert(!transition_allowed(State::draining, State::prefill), "an end is an end");

// Why a queued request is not admitted.
enum class WaitReason : int32_t { none = 0, rows = 1, pages = 2, turn = 3 };

struct Sequence {
    State state;
    int32_t edge;
    int32_t cached_tokens;  // prompt tokens found at admission
    int32_t computed;       // positions [0, computed) hold KV
    int32_t generated;      // tokens sampled so far
    int32_t next_token;     // sampled, not yet computed; in decode only
    int32_t waited_steps;   // steps since it last got a row
    int32_t mask_misses;    // rows in a row that were computed before their mask was there
    bool unmasked;          // no mask is needed, until a trigger is sampled
    int32_t table_row;      // row of the step's page tables; -1 while queued
    WaitReason waits_for;   // as it was traced last
    uint64_t arrival;       // order of acceptance
    uint64_t queued_step;   // step count at acceptance, for ageing
    uint64_t tried_changes; // KvCache::changes at the last failed admission
    int64_t accepted_ns;
    RequestHeader header; // private copy: what the edge writes later has no effect
    PageTable table;
    TokenRow terminal; // while draining
};

SUBLIMATE_HD inline void move_to(Sequence& sequence, State to) {
    CHECK_BECAUSE(transition_allowed(sequence.state, to), "illegal state transition");
    sequence.state = to;
}

SUBLIMATE_HD inline bool is_score(const RequestHeader& header) {
    return (header.flags & FLAG_SCORE) != 0;
}

// Positions whose KV a request can need: the last generated token is never fed back.
SUBLIMATE_HD inline int32_t positions_needed(const RequestHeader& header) {
    bool generates = !is_score(header) && header.token_budget > 1;
    return header.prompt_length + (generates ? header.token_budget - 1 : 0);
}

} // namespace sublimate
