"""`sublimate serve --lora` as a person starts it: the default model with two adapters of random
numbers, asked all at once and one after the other.
"""

import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import Server, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from peft_files import peft_tensors, write_peft

HIDDEN, INNER, LAYERS = 576, 1536, 30  # of the default model
MATRICES = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(LAYERS)
    for name, shape in {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
    }.items()
}
SERVE = ("-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error")


def ask(server: Server, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else msgspec.json.encode(body)
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{server.url}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return msgspec.json.decode(reply.read())


def said(server: Server, model: str, question: str) -> str:
    body = {
        "model": model,
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": question}],
    }
    return str(ask(server, "/v1/messages", body)["content"][0]["text"])


@pytest.mark.timeout(90)
def test_requests_name_their_adapters_and_share_the_batch(tmp_path: Path) -> None:
    lora: list[str] = []
    for number, name in enumerate(("sql", "support"), 1):
        tensors = peft_tensors(MATRICES, 4, number, 0.15)
        folder = write_peft(tmp_path / name, tensors, "BF16", lora_alpha=4)
        lora += ["--lora", f"{name}={folder}"]
    with Server([*SERVE, "--context-length", "1024", *lora]) as server:
        server.ready(50)
        listed = ask(server, "/v1/models")["data"]
        parents = {each["id"]: each["parent"] for each in listed}
        assert parents["sql"] == parents["support"] and parents[parents["sql"]] is None
        questions = [
            (model, f"Question {number}: why is the sky blue?")
            for number in range(2)
            for model in ("default", "sql", "support")
        ]
        with ThreadPoolExecutor(len(questions)) as clients:
            together = list(clients.map(lambda each: said(server, *each), questions))
        assert together == [said(server, *each) for each in questions]
        assert len(set(together[:3])) == 3, "each adapter says something else"


def test_a_broken_adapter_is_a_message_and_exit_code_3(tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "it", peft_tensors(MATRICES, 4, 1), use_dora=True)
    with Server([*SERVE, "--lora", f"sql={folder}"]) as server:
        assert server.wait(20) == 3
        wait_until(lambda: any("DoRA is not supported" in line for line in server.errors))
        assert not any("Traceback" in line for line in server.errors), "".join(server.errors)
