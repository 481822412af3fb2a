// When a request ends by itself: stop token, token budget, end of the context. Stop strings are the
// text path's business (core/text); it cancels the request.
//
// defines: is_stop_token, stop_reason
#pragma once

#include <cstdint>

#include "../request.h"
#include "fault.h"

namespace sublimate {

SUBLIMATE_HD inline bool is_stop_token(const RequestHeader& header, int32_t token) {
    if (fault(Fault::stop_token_ignored)) return false;
    for (int32_t i = 0; i < header.stop_token_count; i++) {
        if (header.stop_tokens[i] == token) return true;
    }
    return false;
}

// generated: tokens so far, `token` included. A stop token wins over a budget that ends at the same
// token. The end of the context counts as the end of the budget.
SUBLIMATE_HD inline FinishReason stop_reason(const RequestHeader& header, int32_t token,
                                             int32_t generated, int32_t context_tokens) {
    bool ignore = (header.flags & FLAG_IGNORE_EOS) != 0;
    if (!ignore && is_stop_token(header, token)) return FinishReason::stop_token;
    int32_t budget = header.token_budget + (fault(Fault::budget_off_by_one) ? 1 : 0);
    if (generated >= budget) return FinishReason::budget;
    if (int64_t{header.prompt_length} + generated >= context_tokens) return FinishReason::budget;
    return FinishReason::none;
}

} // namespace sublimate
