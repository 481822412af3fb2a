"""A server in a nested control group of 1 GiB, under more long prompts than its memory holds."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from servers import Server, wait_until

from sublimate import _core

GIB = 1 << 30
PROMPTS = 8
WORDS = 6500 if os.environ.get("SUBLIMATE_TEST_LONG") else 2500
JOIN = (
    "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'sublimate', *sys.argv[2:]])\n"
)


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def removed(folder: Path) -> bool:
    """Whether it could be: a process that has ended is in its group for a moment longer."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def group() -> Iterator[Path]:
    """An inner group without a limit, below one that has it."""
    folders = _core.group_folders(read, "memory") or _core.group_folders(read, "")
    outer = Path(folders[0] if folders else "/nowhere") / f"sublimate-test-{os.getpid()}-long"
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
        limit = outer / "memory.limit_in_bytes"
        (limit if limit.exists() else outer / "memory.max").write_text(str(GIB))
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        yield inner
    finally:
        for folder in (inner, outer):
            wait_until(lambda folder=folder: removed(folder), 30)


async def ask(client: httpx.AsyncClient, index: int) -> int:
    text = f"{index} " + "count " * WORDS
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    return (await client.post("/v1/messages", json=body)).status_code


@pytest.mark.timeout(600)
def test_f66_no_request_is_lost_in_a_small_nested_group(group: Path) -> None:
    command = ["-c", JOIN, str(group), "serve", "--port", "0", "--json", "--log-level", "error"]
    with Server(command) as server:
        server.ready(60)

        async def ask_all() -> list[int]:
            headers = {"x-api-key": "none", "anthropic-version": "2023-06-01"}
            async with httpx.AsyncClient(
                base_url=server.url, headers=headers, timeout=500
            ) as client:
                return await asyncio.gather(*(ask(client, index) for index in range(PROMPTS)))

        assert asyncio.run(ask_all()) == [200] * PROMPTS
        assert not any("ended" in line for line in server.errors), server.errors
