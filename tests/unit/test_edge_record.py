"""The request record: each field at its place, by a slow twin that reads it back."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate import _core
from sublimate.config import PROFILES
from sublimate.edge.record import Tenant, request_words, write_record
from sublimate.edge.sampling import Sampling

Word = st.integers(min_value=-(1 << 31), max_value=(1 << 31) - 1)
Float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def chosen(**fields: Any) -> Sampling:
    defaults: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 1,
        "ignore_eos": False,
        "stop_sequences": (),
        "stop_token_ids": (),
        "logit_bias": (),
    }
    return Sampling(**{**defaults, **fields})


def written(sampling: Sampling, ids: list[int], **more: Any) -> np.ndarray:
    view = np.zeros(request_words(len(ids), sampling) + 8, dtype=np.int32)
    view[:3] = (1, 2, 3)
    settings: dict[str, Any] = {
        "token_budget": 9,
        "stop_tokens": (2, 0),
        "profile": "low-latency",
        "tenant": Tenant(-5, 6),
        **more,
    }
    write_record(view, np.array(ids, dtype=np.int32), sampling, **settings)
    return view


def field(view: np.ndarray, name: str) -> int:
    return int(view[_core.REQUEST_FIELDS[name][0]])


def as_float(view: np.ndarray, name: str) -> float:
    return struct.unpack("<f", struct.pack("<i", field(view, name)))[0]


@given(Float32, Float32, st.integers(min_value=-(1 << 63), max_value=(1 << 64) - 1), Word, Word)
def test_bits_come_back(a: float, b: float, seed: int, low: int, high: int) -> None:
    view = written(chosen(temperature=a, min_p=b, seed=seed), [7], tenant=Tenant(low, high))
    assert as_float(view, "temperature_bits") == a and as_float(view, "min_p_bits") == b
    words = [field(view, name) & 0xFFFFFFFF for name in ("seed_low", "seed_high")]
    assert words[0] | words[1] << 32 == seed & 0xFFFFFFFFFFFFFFFF
    assert (field(view, "tenant_low"), field(view, "tenant_high")) == (low, high)


def test_every_field_has_its_place() -> None:
    sampling = chosen(top_k=4, ignore_eos=True, logit_bias=((5, -1.5), (6, 2.0)))
    view = written(sampling, [10, 11, 12], profile="long-context")
    assert list(view[:3]) == [1, 2, 3], "version, slot and generation are acquire's"
    expected = {
        "profile": PROFILES.index("long-context"),
        "prompt_length": 3,
        "token_budget": 9,
        "top_k": 4,
        "logprobs": -1,
        "logit_bias_count": 2,
        "stop_token_count": 2,
        "mask_slot": -1,
        "adapter": 0,
        "sparse_mode": 0,
        "shard_count": 0,
        "trigger_slot": -1,
        "free_end": 0,
    }
    for name, value in expected.items():
        assert field(view, name) == value, name
    assert field(view, "flags") & _core.FLAGS["ignore_eos"]
    first = _core.REQUEST_FIELDS["stop_tokens"][0]
    assert list(view[first : first + 3]) == [2, 0, 0]
    begin = _core.REQUEST_HEADER_WORDS
    assert list(view[begin : begin + 4]) == [10, 11, 12, 5]
    bias = struct.unpack("<f", struct.pack("<i", view[begin + 4]))[0]
    assert bias == -1.5 and view[begin + 5] == 6
    assert not view[begin + 7 :].any(), "nothing is written behind the record"


def test_every_number_has_its_place() -> None:
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
    asked = {name: 0.5 + place for place, name in enumerate((*names, "frequency_penalty"))}
    view = written(chosen(**asked), [1])
    assert {name: as_float(view, f"{name}_bits") for name in asked} == asked


def test_an_absent_seed_is_drawn() -> None:
    seeds = {field(written(chosen(seed=None), [1]), "seed_low") for _ in range(8)}
    assert len(seeds) > 1
    assert not field(written(chosen(seed=None), [1]), "flags")


@pytest.mark.parametrize("bias", [0, 1, 256])
def test_words(bias: int) -> None:
    sampling = chosen(logit_bias=tuple((n, 0.0) for n in range(bias)))
    assert request_words(100, sampling) == _core.REQUEST_HEADER_WORDS + 100 + 2 * bias
