// From token ids to bytes ready to send: detokenise -> take apart into blocks -> stop strings ->
// events, as SSE with escaped JSON or as binary frames. One TextStream per request, fed once per
// step with the tokens of that step. Starts from output ids only: it never sees prompt bytes.
//
// Python twins with the same names are in tests/unit/text_reference.py and
// tests/unit/block_reference.py.
//
// defines: BytePairs, Vocabulary, Utf8Assembler, JsonScanner, CallReader, BlockSplitter,
// StopMatcher, Signer, json_escape, EventWriter, SseWriter, FrameWriter, TextStream, EdgeClient,
// each in its own header, in the order in which a token meets them (EdgeClient drives all of them
// from the rings; BytePairs is of the prompt)
#pragma once

#include "byte_pairs.h" // words of a prompt -> ids

#include "vocabulary.h" // id -> bytes

#include "utf8.h" // bytes -> whole code points

#include "json_scan.h" // whether JSON is valid so far

#include "call_reader.h" // calls in other spellings

#include "blocks.h" // text, thinking, calls

#include "stop_strings.h" // where the answer ends, what must wait

#include "signature.h" // of thinking

#include "json.h" // text -> inside of a JSON string

#include "events.h" // what a stream says

#include "sse.h" // as server-sent events

#include "frames.h" // as binary frames

#include "text_stream.h" // all of the above for one request

#include "edge_client.h" // slots, submission, cancel, and one TextStream per request
