"""A second real model, of another family, format and tokenizer, through the API and the terminal.

It is a base model without a chat template: it goes on with what it is given, turns marked by plain
words. LLAMA_PERPLEXITY names llama.cpp's program, to compare perplexities with it.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from sublimate.config import Settings, cache_folder
from sublimate.model.files import locate

pytestmark = pytest.mark.gemma
MODEL = "gemma3-270m"
BENCH = Path(__file__).parents[2] / "bench" / "perplexity.py"
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    command = ["-m", "sublimate", "serve", "--model", MODEL, "--port", "0", "--json"]
    with Server([*command, "--log-level", "error"]) as running:
        running.ready(START_SECONDS)
        yield running


def ask(server: Server, path: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": MODEL, "max_tokens": 48, "temperature": 0, **fields}).encode()
    request = urllib.request.Request(server.url + path, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def test_it_answers_and_ends_its_turn(server: Server) -> None:
    turn = {"role": "user", "content": "What is the capital of France?"}
    message = ask(server, "/v1/messages", messages=[turn])
    assert message["content"] == [{"type": "text", "text": "The capital of France is Paris."}]
    assert message["stop_reason"] == "end_turn" and message["stop_sequence"] is None


def test_it_goes_on_with_a_text(server: Server) -> None:
    completion = ask(server, "/v1/completions", prompt="1, 2, 3, 4, 5, 6, 7, 8,", max_tokens=12)
    assert completion["choices"][0]["text"].startswith(" 9, 10, 11")


def test_it_talks_in_the_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sublimate", "chat", "--model", MODEL, "--temperature", "0"],
        input="What is the capital of France?\nWhat is the capital of Italy?\n",
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    assert "The capital of France is Paris." in done.stdout and "Rome" in done.stdout
    assert "user:" not in done.stdout


def test_its_perplexity_is_that_of_llama_cpp() -> None:
    program = os.environ.get("LLAMA_PERPLEXITY")
    if not program:
        pytest.skip("LLAMA_PERPLEXITY names no program")
    file = locate(MODEL, cache_folder(Settings()))
    assert file is not None
    command = [sys.executable, str(BENCH), "--model", str(file.path), "--json", "--peer", program]
    done = subprocess.run([*command, "--chunks", "12"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["ratio"] <= 1.005
