// From token ids to bytes ready to send: detokenise -> stop strings -> JSON escape -> SSE frames. One TextStream per
// request, fed once per step with the tokens of that step. Starts from output ids only: it never sees prompt bytes.
//
// Python twins with the same names are in tests/unit/text_reference.py.
//
// defines: Vocabulary, Utf8Assembler, StopMatcher, json_escape, SseWriter, TextStream
#pragma once
