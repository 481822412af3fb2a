"""What engines tell of their pages: hashed as the engine hashes, read by another process, right
about what the next request takes from the cache."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from sublimate import _core
from sublimate.engine.inprocess import Engine
from sublimate.engine.script import Script

PAGE = _core.LIMITS["PAGE_TOKENS"]
SECRET = 0x0123456789ABCDEF
WORD = (1 << 64) - 1
SCRIPT = Script(
    answers=[([], [20, 21, 22])], vocabulary=1000, context_length=512, kv_pages=48, stop_token=2
)


def mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def join(low: int, high: int) -> int:
    return (high & 0xFFFFFFFF) << 32 | (low & 0xFFFFFFFF)


def chain_twin(secret: int, ids: list[int], key: tuple[int, int, int, int]) -> list[int]:
    """The slow twin of PrefixHasher.chain, as core/loop/page_hash.h describes it."""
    value = mix(mix(secret ^ join(key[0], key[1])) ^ join(key[2], key[3]))
    chain: list[int] = []
    for first in range(0, len(ids) - PAGE, PAGE):
        for at in range(first, first + PAGE, 2):
            value = mix(value ^ join(ids[at], ids[at + 1]))
        chain.append(value)
    return chain


def ids_of(values: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(values, np.int32)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 65, 500, 2000])
def test_a_chain_is_that_of_its_slow_twin(count: int) -> None:
    draw = random.Random(count)
    ids = [draw.randrange(50_000) for _ in range(count)]
    for key in [(0, 0, 0, 0), (-5, 7, 0, 0), (1, 2, 3, -4)]:
        chain = _core.PrefixHasher(SECRET).chain(
            ids_of(ids), tenant_low=key[0], tenant_high=key[1], adapter=key[2], sparse_mode=key[3]
        )
        assert chain.dtype == np.uint64
        assert chain.tolist() == chain_twin(SECRET, ids, key)
        assert len(chain) == max(0, (count - 1) // PAGE)


def test_what_is_too_long_or_of_another_type_is_refused() -> None:
    hasher = _core.PrefixHasher(SECRET)
    too_long = np.zeros(_core.LIMITS["CONTEXT_TOKENS_MAX"] + 1, np.int32)
    with pytest.raises(ValueError, match="CONTEXT_TOKENS_MAX"):
        hasher.chain(too_long, tenant_low=0, tenant_high=0)
    with pytest.raises(TypeError):
        hasher.chain(np.zeros(64, np.float32), tenant_low=0, tenant_high=0)
    with Engine.scripted(SCRIPT) as engine:
        table = _core.PrefixTable.attach(engine._loop.prefix_fd)
        with pytest.raises(ValueError, match="PAGES_PER_SEQUENCE_MAX"):
            table.match(np.zeros(_core.LIMITS["PAGES_PER_SEQUENCE_MAX"] + 1, np.uint64))


def test_a_match_is_what_the_next_request_takes_from_the_cache() -> None:
    """Prompts that share beginnings, in a cache too small for all of them."""
    draw = random.Random(5)
    bases = [[draw.randrange(3, 900) for _ in range(400)] for _ in range(5)]
    hasher = _core.PrefixHasher(SECRET)
    hits = misses = 0
    with Engine.scripted(SCRIPT, prefix_secret=SECRET) as engine:
        table = _core.PrefixTable.attach(engine._loop.prefix_fd)
        for _ in range(150):
            base = draw.choice(bases)
            prompt = [*base[: draw.randrange(1, 400)], draw.randrange(3, 900)]
            chain = hasher.chain(ids_of(prompt), tenant_low=0, tenant_high=0)
            told = table.match(chain)
            assert engine.generate([prompt], 3)[0].cached_tokens == told
            assert table.match(chain) == len(chain) * PAGE
            hits, misses = hits + (told > 0), misses + (told == 0)
            other = hasher.chain(ids_of(prompt), tenant_low=1, tenant_high=0)
            assert table.match(other) == 0
        assert engine.stats["evictions"] > 0
        load = table.load()
        assert load["pages_total"] == load["pages_available"] == SCRIPT.kv_pages
        assert load["running"] == load["waiting"] == load["prompt_tokens_left"] == 0
    assert hits > 20 and misses > 10


def test_without_a_secret_nobody_else_finds_anything() -> None:
    prompt = list(range(3, 200))
    with Engine.scripted(SCRIPT) as engine:
        engine.generate([prompt], 1)
        table = _core.PrefixTable.attach(engine._loop.prefix_fd)
        for secret in (0, SECRET):
            chain = _core.PrefixHasher(secret).chain(ids_of(prompt), tenant_low=0, tenant_high=0)
            assert table.match(chain) == 0


LOOK = """
import mmap
import sys
import numpy as np
from sublimate import _core
fd, secret = int(sys.argv[1]), int(sys.argv[2])
table = _core.PrefixTable.attach(fd)
ids = np.arange(3, 200, dtype=np.int32)
print(table.match(_core.PrefixHasher(secret).chain(ids, tenant_low=0, tenant_high=0)))
try:
    mmap.mmap(fd, 0)
except PermissionError:
    print("cannot be written")
"""


def test_another_process_reads_and_cannot_write() -> None:
    with Engine.scripted(SCRIPT, prefix_secret=SECRET) as engine:
        engine.generate([list(range(3, 200))], 1)
        fd = engine._loop.prefix_fd
        done = subprocess.run(
            [sys.executable, "-c", LOOK, str(fd), str(SECRET)],
            pass_fds=(fd,),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["192", "cannot be written"]


def test_memory_that_is_no_table_is_refused() -> None:
    fd = os.memfd_create("test")
    with pytest.raises(_core.CoreError, match="sealed"):
        _core.PrefixTable.attach(fd)
    os.close(fd)
    with pytest.raises(_core.CoreError, match="closed"):
        _core.PrefixTable.attach(-1)
