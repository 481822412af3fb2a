"""The text path against its Python twins: code points, stop strings, JSON, frames, usage."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ring_reference as ring
import text_reference as twin
from ring_reference import Row
from sublimate import _core

PROMPT_TOKENS = 5
CACHED_TOKENS = 2
REGION = _core.Region.create(2048)


RECORD_NS = 1 << 60  # after any submission of a test


class Stream:
    """One request on a region of its own vocabulary, whose engine is the test."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        stops: Sequence[str] = (),
        form: str = "sse",
        admit: bool = True,
        client: _core.EdgeClient | None = None,
        blocks: _core.BlockFormat | None = None,
        key: bytes = b"key",
        chunked: bool = False,
        turn_ends: Sequence[str] = (),
        drops_space: bool = False,
    ) -> None:
        self.loop = ring.LoopTwin(REGION)
        vocabulary = _core.Vocabulary(tokens)
        self.client = client or _core.EdgeClient(REGION, vocabulary, signature_key=key)
        lease = self.client.acquire(_core.REQUEST_HEADER_WORDS + PROMPT_TOKENS)
        assert lease is not None
        self.slot, self.generation, view = lease
        self.fields(view, prompt_length=PROMPT_TOKENS, token_budget=2048, logprobs=-1, mask_slot=-1)
        self.client.submit(
            self.slot, self.generation, 7, format=form, stop_strings=stops, message_id='m"1',
            model="a\\b\n", input_tokens=PROMPT_TOKENS, blocks=blocks, chunked=chunked,
            turn_ends=turn_ends, drops_space=drops_space,
        )  # fmt: skip
        assert self.loop.submission_pop() == self.slot
        self.data = b""
        self.pieces: list[tuple[str, str, str]] = []
        if admit:
            self.push(Row(self.slot, self.generation, ring.ADMITTED, CACHED_TOKENS, detail=16))
            (event,) = self.poll()
            assert event.admitted and event.cached_tokens == CACHED_TOKENS
            assert event.bucket_rows == 16

    @staticmethod
    def fields(view: object, **values: int) -> None:
        for name, value in values.items():
            view[_core.REQUEST_FIELDS[name][0]] = value  # type: ignore[index]

    def push(self, *rows: Row) -> None:
        self.loop.token_push(list(rows), time_ns=RECORD_NS)

    def token(self, token: int, reason: int = 0) -> Row:
        flags = ring.TOKEN | (ring.FINISHED if reason else 0)
        return Row(self.slot, self.generation, flags, token, reason)

    def end(self, reason: int, detail: int = 0) -> Row:
        return Row(self.slot, self.generation, ring.FINISHED, 0, reason, detail)

    def poll(self) -> list[_core.StreamEvent]:
        events = self.client.poll()
        for event in events:
            assert event.key == 7
            self.data += event.data
            self.pieces += event.pieces
        return events

    def close(self) -> None:
        """Ends the request in the loop; nothing of it is left."""
        self.push(self.end(ring.CANCELLED))
        self.poll()
        assert self.client.in_flight == 0 and self.client.slots_in_use == 0


# ---- strategies ---------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *(b"a", b"b", b"ab", b"ba", b" ", b"\n", b'"', b"\\", b"\x00", b"\x1f", b"\x7f", b""),
        *(text.encode() for text in ("é", "你好", "😸", "\u2028", "\ufffd")),
        *(b"\xff", b"\xc0\x80", b"\xe2\x82", b"\xf0\x9f", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    ]
)
BYTES = st.one_of(st.binary(max_size=24), st.lists(PIECES, max_size=16).map(b"".join))


@st.composite
def tokens_of(draw: st.DrawFn) -> list[bytes]:
    """A byte string cut anywhere, with empty tokens (special ones) in between."""
    data = draw(BYTES)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    places = [0, *cuts, len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


@st.composite
def stops_for(draw: st.DrawFn, tokens: list[bytes]) -> list[str]:
    """Stop strings that often occur: pieces of the text, and short ones over a small alphabet."""
    text = twin.decode(b"".join(tokens))
    own = st.text("ab", min_size=1, max_size=4)
    if text:
        place = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 6))
        own = st.one_of(own, place.map(lambda p: text[p[0] : p[0] + p[1]]))
    return draw(st.lists(own, max_size=4))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[bytes], list[str], list[int]]:
    tokens = draw(tokens_of())
    stops = draw(stops_for(tokens))
    polls = sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    return tokens, stops, polls


def run(stream: Stream, count: int, polls: list[int], end: int) -> _core.StreamEvent:
    """Feeds tokens 0..count-1, polling at the given places; returns the finished event."""
    events: list[_core.StreamEvent] = []
    for i in range(count):
        if i in polls:
            events += stream.poll()
        stream.push(stream.token(i))
    stream.push(stream.end(end))
    events += stream.poll()
    finished = [event for event in events if event.finished]
    assert len(finished) == 1
    return finished[0]


# ---- the whole path -----------------------------------------------------------------------------


@given(cases())
@example(([b"\xf0", b"\x9f\x98", b"\xb8"], [], [1, 2]))
@example(([b"ab", b"c", b"d"], ["abcd", "bc"], [1]))
@example(([b"ab"], ["b", "ab", "ab"], []))
@example(([b"a\xf0\x9f"], ["a\ufffd"], [1]))
def test_stream_equals_its_twin(case: tuple[list[bytes], list[str], list[int]]) -> None:
    tokens, stops, polls = case
    stream = Stream(tokens, stops)
    expected = twin.answer(tokens, stops, ended=True)
    event = run(stream, len(tokens), polls, ring.BUDGET)

    events = twin.parse_frames(stream.data)
    assert twin.check_grammar(events, complete=True) == expected.text
    assert event.stop_sequence == expected.stop
    reason = "max_tokens" if expected.stop is None else "stop_sequence"
    assert event.stop_reason == reason
    assert event.output_tokens == expected.output_tokens
    closing = twin.message_delta(
        reason, expected.stop, PROMPT_TOKENS, CACHED_TOKENS, expected.output_tokens
    )
    assert stream.data.startswith(twin.message_start('m"1', "a\\b\n", PROMPT_TOKENS, CACHED_TOKENS))
    assert stream.data.endswith(closing + twin.MESSAGE_STOP)
    assert (b"content_block" in stream.data) == (expected.text != "")
    assert stream.client.in_flight == 0


@given(cases())
def test_every_poll_shows_all_that_may_be_shown(
    case: tuple[list[bytes], list[str], list[int]],
) -> None:
    tokens, stops, _ = case
    stream = Stream(tokens, stops)
    shown = ""
    for count in range(1, len(tokens) + 1):
        stream.push(stream.token(count - 1))
        expected = twin.answer(tokens[:count], stops, ended=False)
        before, stream.data = stream.data, b""
        stream.poll()
        opened = twin.BLOCK_START if b"content_block_start" not in before else b""
        fresh = expected.text[len(shown) :]
        frames = opened + twin.text_delta(fresh) if fresh else b""
        if not expected.ended:
            assert stream.data == frames
        else:
            assert stream.data.startswith(frames)
            assert stream.data.endswith(twin.MESSAGE_STOP)
        shown, stream.data = expected.text, before + stream.data
        if expected.ended:
            break
    stream.close()


@given(cases())
def test_text_format_equals_the_stream(case: tuple[list[bytes], list[str], list[int]]) -> None:
    tokens, stops, polls = case
    streamed = Stream(tokens, stops)
    run(streamed, len(tokens), polls, ring.BUDGET)
    whole = Stream(tokens, stops, form="text")
    event = run(whole, len(tokens), polls, ring.BUDGET)
    assert whole.data == b""
    assert event.text == twin.check_grammar(twin.parse_frames(streamed.data), complete=True)
    assert event.text == twin.answer(tokens, stops, ended=True).text


@pytest.mark.parametrize("length", [1, 2])
def test_every_short_byte_string_decodes_like_python(length: int) -> None:
    """All leads with all first continuations, one byte per token."""
    vocabulary = [bytes([byte]) for byte in range(256)]
    for first in range(256):
        stream = Stream(vocabulary, form="text")
        wanted = b""
        for last in range(256) if length == 2 else [0]:
            pair = [*[first, last][:length], ord("|")]
            wanted += bytes(pair)
            stream.push(*[stream.token(byte) for byte in pair])
        stream.push(stream.end(ring.BUDGET))
        (event,) = stream.poll()
        assert event.text == twin.decode(wanted)


@given(st.binary(max_size=8))
def test_any_bytes_one_per_token_decode_like_python(data: bytes) -> None:
    stream = Stream([bytes([byte]) for byte in range(256)])
    for byte in data:
        stream.push(stream.token(byte))
        stream.poll()
    stream.push(stream.end(ring.BUDGET))
    stream.poll()
    text = twin.check_grammar(twin.parse_frames(stream.data), complete=True)
    assert text == data.decode("utf-8", "replace")


# ---- one by one ---------------------------------------------------------------------------------


def test_ascii_before_an_unfinished_code_point_leaves_at_once() -> None:
    stream = Stream([b"ok \xf0\x9f", b"\x98\xb8"])
    stream.push(stream.token(0))
    (event,) = stream.poll()
    assert event.data == twin.BLOCK_START + twin.text_delta("ok ")
    stream.push(stream.token(1))
    (event,) = stream.poll()
    assert event.data == twin.text_delta("😸")
    stream.close()


def test_several_tokens_of_a_poll_make_one_delta() -> None:
    stream = Stream([b"one ", b"two ", b"three"])
    stream.push(stream.token(0), stream.token(1))
    stream.push(stream.token(2))
    (event,) = stream.poll()
    assert event.data == twin.BLOCK_START + twin.text_delta("one two three")
    assert event.first_token_ns == RECORD_NS and event.output_tokens == 3
    assert event.submitted_ns < event.last_record_ns == event.polled_ns == event.encoded_ns
    stream.close()


def test_a_stop_string_ends_the_stream_in_the_same_poll_and_cancels_the_loop() -> None:
    stream = Stream([b"A B ST", b"OP C", b"D"], ["STOP"])
    stream.push(stream.token(0))
    stream.poll()
    stream.push(stream.token(1))
    (event,) = stream.poll()
    assert event.finished and event.stop_reason == "stop_sequence"
    assert event.stop_sequence == "STOP" and event.output_tokens == 2
    assert stream.loop.cancel_requested(stream.slot, stream.generation)
    assert stream.loop.bell_rung()
    assert stream.client.in_flight == 1, "the loop still owns the slot"
    stream.push(stream.token(2))  # computed before the loop saw the cancel word
    assert stream.poll() == []
    stream.push(stream.end(ring.CANCELLED))
    assert stream.poll() == []
    assert stream.client.in_flight == 0 and stream.client.slots_in_use == 0
    text = twin.check_grammar(twin.parse_frames(stream.data), complete=True)
    assert text == "A B "


@pytest.mark.parametrize("ends", [False, True])
def test_tokens_of_the_same_step_after_a_stop_string_are_neither_billed_nor_shown(
    ends: bool,
) -> None:
    """A step can say several tokens of one request, its end among them."""
    stream = Stream([b"A B ST", b"OP C", b"D"], ["STOP"])
    last = stream.token(2, ring.BUDGET if ends else 0)
    stream.push(stream.token(0), stream.token(1), stream.token(2), last)
    (event,) = stream.poll()
    assert event.stop_reason == "stop_sequence" and event.output_tokens == 2
    if not ends:
        assert stream.loop.cancel_requested(stream.slot, stream.generation)
        stream.push(stream.end(ring.CANCELLED))
        assert stream.poll() == []
    assert stream.client.in_flight == 0 and stream.client.slots_in_use == 0
    assert twin.check_grammar(twin.parse_frames(stream.data), complete=True) == "A B "


def test_a_slot_used_again_starts_anew() -> None:
    """Whatever the request before left open, carried or held back is not in the next one."""
    tokens = [b"text ST", b"\xf0\x9f", b"OP", b"\x98\xb8"]
    fresh = Stream(tokens, ["STOP"])
    event = run(fresh, 4, [1], ring.BUDGET)
    for reason in (ring.FAILED, ring.CANCELLED, ring.BUDGET, ring.STOP_TOKEN):
        for count in (0, 1, 2):
            first = Stream(tokens, ["STOP"])
            run(first, count, [1], reason)
            again = Stream(tokens, ["STOP"], client=first.client)
            assert (again.slot, again.generation) == (first.slot, first.generation + 1)
            second = run(again, 4, [1], ring.BUDGET)
            assert again.data == fresh.data
            assert second.output_tokens == event.output_tokens == 4


def test_the_stop_token_is_billed_and_not_shown() -> None:
    stream = Stream([b"hi", b"<end>"])
    stream.push(stream.token(0))
    stream.push(stream.token(1, ring.STOP_TOKEN))
    (event,) = stream.poll()
    assert event.stop_reason == "end_turn" and event.output_tokens == 2
    billed = twin.message_delta("end_turn", None, PROMPT_TOKENS, CACHED_TOKENS, 2)
    assert event.data.endswith(billed + twin.MESSAGE_STOP)
    text = twin.check_grammar(twin.parse_frames(stream.data), complete=True)
    assert text == "hi"


def test_the_last_token_of_the_budget_is_shown() -> None:
    stream = Stream([b"hi", b" there"])
    stream.push(stream.token(0), stream.token(1, ring.BUDGET))
    (event,) = stream.poll()
    assert event.stop_reason == "max_tokens" and event.output_tokens == 2
    text = twin.check_grammar(twin.parse_frames(stream.data), complete=True)
    assert text == "hi there"


def test_an_empty_answer_has_no_block_and_bills_one_token() -> None:
    stream = Stream([b""])
    stream.push(stream.end(ring.STOP_TOKEN))
    (event,) = stream.poll()
    assert event.output_tokens == 1
    assert event.data == (
        twin.message_delta("end_turn", None, PROMPT_TOKENS, CACHED_TOKENS, 1) + twin.MESSAGE_STOP
    )


@pytest.mark.parametrize("reason", [ring.FAILED, ring.REFUSED])
def test_a_failure_after_admission_shows_its_text_and_leaves_the_error_to_the_edge(
    reason: int,
) -> None:
    stream = Stream([b"text ST", b"x"], ["STOP"])
    stream.push(stream.token(0), stream.end(reason, detail=2 if reason == ring.REFUSED else 0))
    (event,) = stream.poll()
    events = twin.parse_frames(stream.data)
    assert twin.check_grammar(events, complete=False) == "text "
    assert events[-1]["type"] == "content_block_delta"
    assert event.stop_reason == ("refused" if reason == ring.REFUSED else "failed")


def test_a_cancelled_stream_says_nothing_more() -> None:
    stream = Stream([b"text"])
    stream.client.cancel(stream.slot, stream.generation)
    stream.client.cancel(stream.slot, stream.generation)
    assert stream.loop.cancel_requested(stream.slot, stream.generation)
    stream.push(stream.token(0), stream.end(ring.CANCELLED))
    (event,) = stream.poll()
    assert event.finished and event.stop_reason == "cancelled" and event.data == b""


@pytest.mark.parametrize(("detail", "name"), [(1, "too_long"), (2, "queue_full"), (3, "malformed")])
def test_a_refusal_before_admission_writes_nothing_and_says_why(detail: int, name: str) -> None:
    stream = Stream([b"text"], admit=False)
    stream.push(stream.end(ring.REFUSED, detail))
    (event,) = stream.poll()
    assert (event.stop_reason, event.refuse_reason) == ("refused", name)
    assert event.data == b"" and not event.admitted


def test_raw_reports_ids_and_logprobs_of_the_poll() -> None:
    client = _core.EdgeClient(REGION, None)
    loop = ring.LoopTwin(REGION)
    lease = client.acquire(100)
    assert lease is not None
    slot, generation, view = lease
    Stream.fields(view, prompt_length=1, token_budget=9, logprobs=2, mask_slot=-1)
    client.submit(slot, generation, -3, format="raw")
    loop.submission_pop()
    loop.token_push([Row(slot, generation, ring.ADMITTED, 0)])
    pairs = [(11, -0.5), (12, -1.5)]
    loop.token_push([Row(slot, generation, ring.TOKEN, 11, logprob=-0.5, pairs=pairs)])
    loop.token_push([Row(slot, generation, ring.TOKEN, 12, logprob=-2.0)])
    (event,) = client.poll()
    assert event.key == -3 and event.admitted and event.token_ids == [11, 12]
    assert event.logprobs == [(-0.5, pairs), (-2.0, [])]
    loop.token_push([Row(slot, generation, ring.FINISHED, reason=ring.BUDGET)])
    (event,) = client.poll()
    assert event.token_ids == [] and event.logprobs == [] and event.output_tokens == 2


def test_names_from_the_client_are_escaped() -> None:
    stream = Stream([b"x"])
    (start,) = twin.parse_frames(stream.data)
    assert start["message"]["id"] == 'm"1' and start["message"]["model"] == "a\\b\n"
    stream.close()


@pytest.mark.parametrize("stops", [["a"] * 65, [""], ["a" * 1025], ["é" * 513]])
def test_stop_strings_beyond_the_limits_are_refused(stops: list[str]) -> None:
    client = _core.EdgeClient(REGION, _core.Vocabulary([b"a"]))
    lease = client.acquire(100)
    assert lease is not None
    slot, generation, view = lease
    Stream.fields(view, prompt_length=1, token_budget=9, logprobs=-1)
    with pytest.raises(ValueError, match="stop strings"):
        client.submit(slot, generation, 1, format="sse", stop_strings=stops)
    client.discard(slot, generation)
    assert client.slots_in_use == 0


def test_the_longest_stop_strings_match() -> None:
    stops = ["x" * 255 + end for end in "abcdefgh"]
    stream = Stream([b"x", b"h"], stops, form="text")
    stream.push(*[stream.token(0)] * 700, stream.token(1))
    (event,) = stream.poll()
    assert event.stop_sequence == stops[7]
    assert event.text == "x" * 445 and event.output_tokens == 701


def test_vocabulary_decodes_and_is_bounded() -> None:
    vocabulary = _core.Vocabulary([b"ab", b"", b"\xff"])
    assert len(vocabulary) == 3
    assert vocabulary.decode([2, 0, 1, 0, -1, 3]) == b"\xffabab"
    with pytest.raises(_core.CoreError):
        _core.Vocabulary([b"x" * (_core.LIMITS["TOKEN_BYTES_MAX"] + 1)])


@pytest.mark.parametrize("form", ["sse", "text"])
@pytest.mark.parametrize("space", [b" ", b""])
def test_a_template_of_plain_words_ends_a_turn_where_the_next_begins(
    form: str, space: bytes
) -> None:
    """As its stop token would: no stop sequence of the client, and nothing of it is shown."""
    tokens = [space + b"Hi, \n", b"\nuser", b": and", b"\n", b"x"]
    stream = Stream(tokens, ["x"], form=form, turn_ends=["\n\nuser:"], drops_space=True)
    for token in range(3):
        stream.push(stream.token(token))
    events = stream.poll()
    assert events[-1].finished and events[-1].stop_reason == "end_turn"
    assert events[-1].stop_sequence is None and events[-1].output_tokens == 3
    if form == "text":
        assert events[-1].text == "Hi, "
    else:
        stream.data += events[-1].data
        content = [frame for frame in twin.parse_frames(stream.data) if "delta" in frame]
        assert content[0]["delta"]["text"] == "Hi, "
        assert content[-1]["delta"]["stop_reason"] == "end_turn"
        assert content[-1]["delta"]["stop_sequence"] is None
    client_stop = Stream(tokens, ["x"], form="text", turn_ends=["\n\nuser:"], drops_space=True)
    client_stop.push(*[client_stop.token(each) for each in (0, 3, 4)])
    (event,) = client_stop.poll()
    assert event.stop_reason == "stop_sequence" and event.stop_sequence == "x"
    assert event.text == "Hi, \n\n"


def test_only_a_space_that_begins_an_answer_is_the_templates() -> None:
    stream = Stream([b"  a b", b" c"], form="text", drops_space=True)
    stream.push(stream.token(0), stream.token(1, ring.BUDGET))
    (event,) = stream.poll()
    assert event.text == " a b c"


@pytest.mark.parametrize("ends", [["a"] * 3, [""], ["a" * 1025]])
def test_ends_of_turns_are_few_and_short(ends: list[str]) -> None:
    client = _core.EdgeClient(REGION, _core.Vocabulary([b"a"]))
    lease = client.acquire(100)
    assert lease is not None
    slot, generation, view = lease
    Stream.fields(view, prompt_length=1, token_budget=9, logprobs=-1)
    with pytest.raises(ValueError, match="stop strings"):
        client.submit(slot, generation, 1, format="sse", turn_ends=ends)
    client.discard(slot, generation)
