"""`sublimate serve` with the default model under many clients: answers that nobody else changes,
and nothing left behind by those who hang up."""

import asyncio
import os
import random
import urllib.request
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
from servers import Server, wait_until

pytestmark = pytest.mark.alone

CLIENTS = 64
IS_LONG = os.environ.get("SUBLIMATE_TEST_LONG") == "1"
TOKENS = 64 if IS_LONG else 24
REQUESTS = 1000 if IS_LONG else 300
DISCONNECT_SHARE = 0.3
TOPICS = ("rivers", "trains", "honey", "winter", "maps", "violins", "glass", "tides")
GROWTH_BYTES_MAX = 24 << 20


def serve() -> Server:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    return Server([*command, "--kv-memory", "1GiB"])


def body(client: int) -> dict[str, Any]:
    """Half of the clients are greedy, half sample with a seed of their own."""
    topic = TOPICS[client % len(TOPICS)]
    own: dict[str, Any] = {"ignore_eos": True, "temperature": 0.0}
    if client % 2:
        own = {"ignore_eos": True, "temperature": 0.9, "seed": 1000 + client}
    return {
        "model": "default",
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": f"Client {client}: tell me about {topic}."}],
        "extra_body": own,
    }


async def ask(client: anthropic.AsyncAnthropic, number: int) -> tuple[str, int]:
    """Text and output tokens; every other client streams."""
    if number % 4 < 2:
        message = await client.messages.create(**body(number))
    else:
        async with client.messages.stream(**body(number)) as stream:
            message = await stream.get_final_message()
    text = "".join(block.text for block in message.content if block.type == "text")
    return text, message.usage.output_tokens


def test_64_clients_each_get_the_answer_they_get_alone() -> None:
    with serve() as running:
        running.url = running.event("ready", 60)["url"]

        async def run() -> list[list[tuple[str, int]]]:
            async with anthropic.AsyncAnthropic(
                base_url=running.url, api_key="none", max_retries=0, timeout=300
            ) as client:
                numbers = range(CLIENTS)
                cold = await asyncio.gather(*(ask(client, n) for n in numbers))
                warm = await asyncio.gather(*(ask(client, n) for n in numbers))
                alone = [await ask(client, n) for n in numbers]
            return [cold, warm, alone]

        cold, warm, alone = asyncio.run(run())
    assert all(tokens == TOKENS for _, tokens in alone)
    assert cold == alone
    assert warm == alone
    assert len({text for text, _ in alone}) > CLIENTS // 2


def memory_bytes(pid: int) -> int:
    """Private memory of a process, swapped out or not."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmSwap"))


def gauges(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name.partition("{")[0]: float(value) for name, value in values}


async def visit(host: str, port: int, number: int, random_source: random.Random) -> None:
    """One request; some clients hang up at a moment of their own."""
    content = f"Request {number}: " + "words and more words " * random_source.randrange(1, 30)
    request = msgspec.json.encode(
        {
            "model": "default",
            "max_tokens": random_source.randrange(1, 12),
            "stream": number % 2 == 0,
            "messages": [{"role": "user", "content": content}],
        }
    )
    head = (
        f"POST /v1/messages HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(request)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(head.encode() + request)
    try:
        if random_source.random() < DISCONNECT_SHARE:
            patience = random_source.random() * 0.5
            try:
                async with asyncio.timeout(patience):
                    await reader.read()
            except TimeoutError:
                pass
        else:
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    finally:
        writer.transport.abort()


def visits(url: str, first: int, count: int, seed: int) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    source = random.Random(seed)
    gate = asyncio.Semaphore(48)

    async def one(number: int) -> None:
        async with gate:
            await visit(host, int(port), number, source)

    async def run() -> None:
        await asyncio.gather(*(one(n) for n in range(first, first + count)))

    asyncio.run(run())


def test_requests_with_disconnects_leave_nothing_behind() -> None:
    with serve() as running:
        url = running.event("ready", 60)["url"]
        children = running.children()
        # What it loads once it serves (edge/later.py), the last of it.
        maps = Path(f"/proc/{children['sublimate.edge']}/maps")
        wait_until(lambda: "numpy" in maps.read_text(), 30)
        visits(url, 0, REQUESTS // 4, seed=1)  # caches and pools reach their size
        before = {name: memory_bytes(pid) for name, pid in children.items()}
        visits(url, REQUESTS // 4, REQUESTS - REQUESTS // 4, seed=2)

        def at_rest() -> bool:
            now = gauges(url)
            return (
                now["sublimate_num_requests_running"] == 0
                and now["sublimate_num_requests_waiting"] == 0
                and now["sublimate_kv_cache_usage_perc"] == 0
                and now["sublimate_slots_in_use"] == 0
            )

        wait_until(at_rest, 5)
        after = {name: memory_bytes(pid) for name, pid in children.items()}
        assert running.children() == children
    edge = "sublimate.edge"
    assert after[edge] - before[edge] < GROWTH_BYTES_MAX
