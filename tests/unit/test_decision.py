"""The decision function in each of its builds, against the shared vectors: Python's, Node's and a
browser's WebAssembly; against its slow twin for any numbers. (C++: tests/cpp/test_policy.cpp.)"""

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import house
import policy_twin as twin
from sublimate import _core
from sublimate.config import PROFILES
from sublimate.policy import Border, Hardware, Headroom, Request, decide, digest, layer_policy
from sublimate.policy.decision import headroom_of, message_borders

RULES = twin.rules(layer_policy())
FILE = json.loads(twin.VECTORS.read_text())
WORD = st.integers(-(2**31) + 1, 2**31 - 1)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
SAID = (
    f"{len(FILE['vectors'])} vectors, 0 wrong, policy same, "
    '{"promptTokens":20000,"profile":"long-context","split":"semantic","target":"cpu",'
    '"reason":"oom","shardEnds":[6656,14848,20000]}, promptCharacters is a count, and less than 0'
)


def pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_the_vectors_are_those_of_the_twin() -> None:
    made = twin.vectors_text(RULES, digest())
    assert twin.VECTORS.read_text() == made, "run tests/unit/policy_twin.py"
    assert len(FILE["vectors"]) >= 400
    for column in (1, 2, 3, 4):  # every profile, split, target and reason is in them
        values = {output[column] for _, _, output in FILE["vectors"]}
        assert values == set(range(len(values))) and len(values) >= 3, twin.OUTPUTS[column]


def test_vectors_in_python() -> None:
    for words, borders, expected in FILE["vectors"]:
        assert _core.decide(words, pairs(borders)) == expected, words


def test_names_are_those_of_the_words() -> None:
    """Each field of the structs lands in its word, and each word of the answer has its name."""
    for words, borders, expected in FILE["vectors"][len(twin.extremes()) :]:
        w = dict(zip(twin.INPUTS, words, strict=True))
        length = "prompt_characters" if w["unit"] else "prompt_tokens"
        request = Request(
            **{length: w["prompt_length"]},
            output_tokens_max=w["output_tokens_max"],
            system_characters=w["system_characters"],
            profile=None if w["profile"] < 0 else PROFILES[w["profile"]],
            streamed=bool(w["streamed"]),
            borders=tuple(
                Border(at, "message" if kind else "paragraph") for at, kind in pairs(borders)
            ),
        )
        hardware = Hardware(
            role="engine" if w["role"] else "client",
            cores=w["cores"],
            memory_mib=w["memory_mib"],
            has_gpu=bool(w["has_gpu"]),
        )
        headroom = Headroom(
            kv_tokens_total=w["kv_tokens_total"],
            kv_tokens_free=w["kv_tokens_free"],
            utilization_ppm=w["utilization_ppm"],
            queue_is_open=bool(w["queue_is_open"]),
            has_fallback_server=bool(w["has_fallback_server"]),
        )
        told = decide(request, hardware, headroom)
        names = (PROFILES, ("none", "uniform", "semantic"))
        assert told.prompt_tokens == expected[0]
        assert told.profile == names[0][expected[1]] and told.split == names[1][expected[2]]
        assert told.target == ("resident", "queue", "cpu", "server", "refuse")[expected[3]]
        assert told.reason == ("", "oom", "too_long")[expected[4]]
        assert list(told.shard_ends) == expected[6:]


@given(st.lists(WORD, min_size=15, max_size=15), st.lists(st.tuples(WORD, st.integers(0, 1))))
def test_any_numbers_are_decided_as_the_twin_does(
    words: list[int], borders: list[tuple[int, int]]
) -> None:
    named = dict(zip(twin.INPUTS, words, strict=True))
    assert _core.decide(words, borders) == twin.decide(named, borders, RULES)


@given(
    length=st.integers(0, 140_000),
    system=st.sampled_from([0, 5000]),
    unit=st.integers(0, 1),
    borders=st.lists(st.tuples(st.integers(0, 140_000), st.integers(0, 1)), max_size=60),
)
def test_plans_are_those_of_the_twin(
    length: int, system: int, unit: int, borders: list[tuple[int, int]]
) -> None:
    named = dict.fromkeys(twin.INPUTS, 0)
    named |= {"unit": unit, "prompt_length": length, "system_characters": system}
    assert _core.decide(list(named.values()), borders) == twin.decide(named, borders, RULES)


def test_a_request_has_one_length() -> None:
    for lengths in ({}, {"prompt_tokens": 1, "prompt_characters": 3}):
        with pytest.raises(ValueError, match="either prompt_tokens or prompt_characters"):
            Request(**lengths)
    assert decide(Request(prompt_characters=4)).prompt_tokens == 2
    assert decide(Request(prompt_tokens=2**40)).reason == "too_long"


@pytest.mark.parametrize(
    "name", ["prompt_tokens", "prompt_characters", "output_tokens_max", "system_characters"]
)
def test_a_count_is_not_below_0(name: str) -> None:
    length = {} if name.startswith("prompt") else {"prompt_tokens": 1}
    with pytest.raises(ValueError, match=f"{name} is a count"):
        decide(Request(**{name: -1}, **length))


def test_borders_of_messages() -> None:
    assert message_borders([3, 4, 5]) == (Border(3, "message"), Border(7, "message"))
    assert message_borders([3]) == ()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Headroom()),
        (
            {"x-kv-headroom": "free=96, total=4096", "x-engine-utilization": "0.731"},
            Headroom(kv_tokens_total=4096, kv_tokens_free=96, utilization_ppm=731_000),
        ),
        ({"x-kv-headroom": "free=-1, total=x", "x-engine-utilization": "nan"}, Headroom()),
        ({"x-kv-headroom": "free=99999999999, total=1"}, Headroom()),
    ],
)
def test_headroom_is_read_from_headers(headers: dict[str, str], expected: Headroom) -> None:
    assert headroom_of(headers) == expected


# ---- WebAssembly --------------------------------------------------------------------------------
def test_the_module_is_what_the_compiler_makes_of_the_header(tmp_path: Path) -> None:
    if not shutil.which("clang++-16") or not shutil.which("wasm-ld-16"):
        pytest.skip("clang-16 with lld-16 is not installed")
    made = tmp_path / "decide.wasm"
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([house.ROOT / "core/policy/wasm.sh", made], env=environment, check=True)
    committed = (house.ROOT / "clients/policy/decide.wasm").read_bytes()
    assert made.read_bytes() == committed, "run core/policy/wasm.sh"


def test_vectors_in_node() -> None:
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    command = ["node", house.ROOT / "tests/policy/check_vectors.js"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == SAID, done.stderr


PAGE = b"""<!doctype html><meta charset="utf-8"><body><script type="module">
import { loadPolicy } from "/clients/policy/decide.js";
import { check } from "/tests/policy/check_vectors.js";
const file = await (await fetch("/tests/policy/vectors.json")).json();
document.body.textContent = check(await loadPolicy(), file);
</script>"""


class Files(SimpleHTTPRequestHandler):
    """The repository's files and one page."""

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    handler = functools.partial(Files, directory=str(house.ROOT))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_vectors_in_a_browser(site: str, tmp_path: Path) -> None:
    if BROWSER is None:
        pytest.skip("chromium is not installed")
    said = ""
    # Time in the page is not the machine's: where others are busy it may be over before the answers
    # of the server are there.
    for budget in (20_000, 100_000, 500_000):
        profile = f"--user-data-dir={tmp_path / str(budget)}"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", profile]
        command = [BROWSER, *flags, f"--virtual-time-budget={budget}", "--dump-dom", site]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        said = done.stdout + done.stderr[-2000:]
        if SAID in done.stdout:
            break
    assert SAID in said
