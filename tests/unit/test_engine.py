"""The in-process engine on a scripted model: the real loop, rings and pages, known token ids."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import sublimate
from sublimate import _core as core
from sublimate.engine.inprocess import Engine
from sublimate.engine.record import check_sampling, request_words, write_request
from sublimate.engine.results import Sampling
from sublimate.engine.script import Script, read_script
from sublimate.errors import ConfigError, EngineError, RequestError

VOCABULARY = 1000
STOP = 2
SCRIPT = Script(
    answers=[([10], [20, 21, 22]), ([11, 12], [30] * 40), ([13], [])],
    vocabulary=VOCABULARY,
    context_length=256,
    kv_pages=512,
    stop_token=STOP,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.scripted(SCRIPT) as running:
        yield running
        assert running.audit() == ""


def test_answers_end_at_the_stop_token_which_is_no_part_of_them(engine: Engine) -> None:
    answer = engine.generate([[5, 10, 6]])[0]
    assert answer.token_ids == [20, 21, 22] and answer.finish_reason == "end_turn"
    assert answer.prompt_tokens == 3 and answer.text is None
    assert 0 < answer.first_token_seconds <= answer.total_seconds < 5
    assert engine.generate([[13]])[0].token_ids == []


def test_the_budget_ends_an_answer(engine: Engine) -> None:
    answer = engine.generate([[11, 12]], 7)[0]
    assert answer.token_ids == [30] * 7 and answer.finish_reason == "max_tokens"
    assert engine.generate([[11, 12]], 0)[0].token_ids == []


def test_the_budget_is_cut_to_the_context(engine: Engine) -> None:
    prompt = [11, 12] + [7] * 250
    answer = engine.generate([prompt], 100)[0]
    assert len(answer.token_ids) == 256 - 252 and answer.finish_reason == "max_tokens"


def test_more_prompts_than_slots_all_come_back_in_order(engine: Engine) -> None:
    count = 2 * core.LIMITS["SEQUENCES_MAX"] + 50
    done: list[tuple[int, int]] = []
    prompts = [[10, index] if index % 2 else [11, 12, index] for index in range(100, 100 + count)]
    answers = engine.generate(prompts, 5, progress=lambda *step: done.append(step))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == ([20, 21, 22] if prompt[0] == 10 else [30] * 5)
    assert done == [(number, count) for number in range(1, count + 1)]
    assert engine.stats["accepted"] == engine.stats["finished"]


def test_a_stream_brings_the_same_tokens_in_pieces(engine: Engine) -> None:
    pieces = list(engine.stream([11, 12], 9))
    assert [token for piece in pieces for token in piece.token_ids] == [30] * 9
    assert [piece.finish_reason for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "max_tokens"


def test_leaving_a_stream_cancels_its_request(engine: Engine) -> None:
    with Engine.scripted(
        Script(answers=[([], [5] * 200)], vocabulary=10, context_length=256, step_delay_us=2000)
    ) as slow:
        stream = slow.stream([1, 2], 200)
        next(stream)
        stream.close()
        assert slow.stats["running"] == 0
        assert slow.stats["cancelled_decode"] == 1
        assert slow.stats["accepted"] == slow.stats["finished"] == 1


def test_streams_and_batches_of_several_threads_do_not_mix(engine: Engine) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        for _ in range(10):
            if number % 2:
                tokens = [
                    t for piece in engine.stream([11, 12, number], 6) for t in piece.token_ids
                ]
                expected = [30] * 6
            else:
                tokens = engine.generate([[10, number]])[0].token_ids
                expected = [20, 21, 22]
            if tokens != expected:
                failures.append((number, tokens))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_repeated_prompt_is_found_in_the_cache_unless_told_not_to_look(engine: Engine) -> None:
    prompt = [10, *range(300, 400)]
    first, second = (engine.generate([prompt])[0] for _ in range(2))
    page = core.LIMITS["PAGE_TOKENS"]
    assert first.cached_tokens == 0
    assert second.cached_tokens >= page and second.cached_tokens % page == 0
    assert engine.generate([prompt], cache=False)[0].cached_tokens == 0


def test_logprobs_are_per_token(engine: Engine) -> None:
    answer = engine.generate([[10]], logprobs=3)[0]
    assert len(answer.logprobs) == len(answer.token_ids) == 3
    for token, (chosen, best) in zip(answer.token_ids, answer.logprobs, strict=True):
        assert len(best) == 3 and best[0][0] == token and best[0][1] == chosen <= 0


def test_ignore_eos_goes_on_to_the_budget(engine: Engine) -> None:
    answer = engine.generate([[10]], 6, ignore_eos=True)[0]
    assert len(answer.token_ids) == 6 and answer.token_ids[:4] == [20, 21, 22, STOP]
    assert answer.finish_reason == "max_tokens"


def test_a_logit_bias_forbids_a_token(engine: Engine) -> None:
    answer = engine.generate([[10]], 1, logit_bias={20: -1e9})[0]
    assert answer.token_ids and answer.token_ids[0] != 20


def test_scores_have_one_place_per_position(engine: Engine) -> None:
    logprobs, argmax = engine.score([10, 20, 21, 22])
    assert logprobs.shape == argmax.shape == (4,)
    assert logprobs.dtype == np.float32 and argmax.dtype == np.int32
    assert logprobs[0] == 0 and argmax[0] == -1
    assert (logprobs[1:] <= 0).all() and (0 <= argmax[1:]).all() and (argmax < VOCABULARY).all()
    done: list[int] = []
    pairs = engine.score(
        [[10, STOP], [10, 99, 5]], "decode", progress=lambda count, total: done.append(count)
    )
    assert [len(argmax) for _, argmax in pairs] == [2, 3] and done == [1, 2]
    # Inside a prompt the scripted model expects its stop token.
    assert pairs[0][1][1] == STOP and pairs[0][0][1] > pairs[1][0][1]
    assert engine.generate([[10]])[0].token_ids == [20, 21, 22], "slots are free again"


def test_scores_that_nobody_reads_hold_no_slot(engine: Engine) -> None:
    """Whoever asks leaves at the first result, while others are there too."""
    at_once = 8

    def leave(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for _ in range(core.LIMITS["SLOTS_MAX"] // (at_once - 1) + 1):
        with pytest.raises(KeyboardInterrupt):
            engine.score([[10, 20]] * at_once, progress=leave)
    assert [len(argmax) for _, argmax in engine.score([[10, 20]] * at_once)] == [2] * at_once


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 1.0},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3.0},
        {"logprobs": 21},
        {"stop_tokens": [VOCABULARY]},
        {"stop_tokens": [1] * 9},
        {"logit_bias": {VOCABULARY: 1.0}},
        {"logit_bias": {1: float("inf")}},
        {"logit_bias": {1: -1e39}},
        {"temperature": 1e39},
        {"temperature": float("inf")},
        {"repetition_penalty": 1e39},
        {"repetition_penalty": 1e-50},
        {"repetition_penalty": float("nan")},
        {"top_p": float("nan")},
        {"min_p": float("nan")},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("-inf")},
        {"temperature": "hot"},
        {"profile": "fast"},
        {"seed": 1 << 64},
    ],
    ids=str,
)
def test_a_wrong_parameter_is_refused_before_the_loop(
    engine: Engine, wrong: dict[str, object]
) -> None:
    with pytest.raises(RequestError, match=next(iter(wrong))):
        engine.generate([[10]], **wrong)
    assert engine._client.slots_in_use == 0


def test_an_error_while_a_request_is_written_frees_its_slot(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise OverflowError("no such number")

    monkeypatch.setattr("sublimate.engine.inprocess.write_request", fail)
    for call in (lambda: engine.generate([[10]]), lambda: next(engine.stream([10]))):
        with pytest.raises(OverflowError):
            call()
        assert engine._client.slots_in_use == 0
    monkeypatch.undo()
    assert engine.generate([[10]])[0].token_ids == [20, 21, 22]


def test_wrong_prompts_are_refused(engine: Engine) -> None:
    for prompt in ([], [VOCABULARY], [-1], [1] * 257, [1 << 40]):
        with pytest.raises(ValueError, match="token"):
            engine.generate([prompt])
    with pytest.raises(TypeError, match="list"):
        engine.generate("text")
    with pytest.raises(TypeError, match="unknown sampling fields: temprature"):
        engine.generate([[10]], temprature=1.0)
    with pytest.raises(EngineError, match="no tokenizer"):
        engine.generate(["text"])


def test_a_closed_engine_says_so() -> None:
    engine = Engine.scripted(SCRIPT)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.generate([[10]])


def test_an_idle_engine_costs_nothing(engine: Engine) -> None:
    engine.generate([[10]])
    time.sleep(0.2)
    # Less than 1 %, over long enough that one tick of the clock is no part of the answer.
    before, seconds = time.process_time(), 2.0
    time.sleep(seconds)
    assert time.process_time() - before < 0.01 * seconds


def test_a_record_holds_what_was_asked() -> None:
    sampling = Sampling(
        temperature=0.5, seed=(1 << 63) + 5, stop_tokens=(7, 8), logit_bias=((3, -1.5),), top_k=4
    )
    tokens = np.array([5, 6, 7], np.int32)
    view = np.zeros(request_words(3, sampling, False), np.int32)
    write_request(view, tokens, sampling, token_budget=9, flags=("score",))
    fields = {
        name: view[first : first + count] for name, (first, count) in core.REQUEST_FIELDS.items()
    }
    assert fields["prompt_length"] == 3 and fields["token_budget"] == 9
    assert fields["temperature_bits"].view(np.float32) == np.float32(0.5)
    assert fields["top_p_bits"].view(np.float32) == 1 and fields["mask_slot"] == -1
    seed = np.concatenate([fields["seed_low"], fields["seed_high"]]).view(np.uint64)
    assert seed == (1 << 63) + 5
    assert list(fields["stop_tokens"][:2]) == [7, 8] and fields["stop_token_count"] == 2
    assert fields["flags"] == core.FLAGS["score"] and fields["logprobs"] == -1
    end = core.REQUEST_HEADER_WORDS + 3
    assert list(view[end - 3 : end]) == [5, 6, 7]
    assert view[end] == 3 and view[end + 1 :].view(np.float32) == np.float32(-1.5)
    assert len(view) == end + 2
    check_sampling(sampling, 10)


def test_scripts_come_from_files(tmp_path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"answers":[[[1],[2]]],"vocabulary":10,"stop_token":3}')
    assert read_script(str(path)).answers == [([1], [2])]
    path.write_text('{"answers":1}')
    with pytest.raises(ConfigError, match="not valid"):
        read_script(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_script(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="token id 99"):
        Engine.scripted(Script(answers=[([], [99])], vocabulary=10))


def test_the_public_names() -> None:
    errors = ["InvalidSignatureError", "SublimateError"]
    names = ["Completion", "Engine", "Piece", "__version__", "provenance_kind"]
    assert sorted(sublimate.__all__) == sorted([*errors, *names])
    assert sublimate.Engine is Engine
    assert all(hasattr(sublimate, name) for name in sublimate.__all__)
    with pytest.raises(AttributeError):
        _ = sublimate.absent


def test_a_model_answers_the_same_whole_in_pieces_and_beside_others() -> None:
    """The default model: text in, text out."""
    with Engine("default", context_length=512, kv_memory=64 << 20) as engine:
        prompt = "The capital of France is"
        ids = engine.tokenise(prompt)
        assert engine.detokenise(ids) == prompt
        whole = engine.generate([prompt], 12, logprobs=0)[0]
        assert whole.text is not None and whole.text.startswith(" Paris")
        pieces = list(engine.stream(prompt, 12))
        assert "".join(piece.text for piece in pieces) == whole.text
        others = [f"{number} is a number that" for number in range(20)]
        among = engine.generate([*others, prompt], 12, logprobs=0)[-1]
        assert (among.token_ids, among.logprobs) == (whole.token_ids, whole.logprobs)
        logprobs, argmax = engine.score([*ids, *whole.token_ids], "decode")
        assert list(argmax[len(ids) :]) == whole.token_ids
        assert logprobs[len(ids)] == pytest.approx(whole.logprobs[0][0], abs=0.05)
        seeded = [
            engine.generate([prompt], 12, temperature=0.9, seed=7)[0].token_ids for _ in range(2)
        ]
        assert seeded[0] == seeded[1]
        assert engine.audit() == ""
