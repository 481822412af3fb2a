"""Who is compared, and how each is asked: commands that print figures, and servers.

defines: Peers, Job, read_figures, engine_jobs, file_jobs, vllm_engine,
server_command, served_steps
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

import shapes
from summary import OURS

HERE = Path(__file__).parent
LLAMA, VLLM = "llama.cpp", "vllm"
SERVED_STREAMS, SERVED_PROMPT, SERVED_TOKENS = 32, 130, 64
ALONE_PROMPT, ALONE_REQUESTS = 125, 5
SERVED_NAMES = ("tok_s", "first_ms", "token_ms", "prompt_tokens")
BUSY_STREAMS = 8
READY_PATHS = {OURS: "/readyz", LLAMA: "/health", VLLM: "/health"}
CONTEXT_PER_SLOT = 1024
FILE_PREFILL = shapes.PREFILLS[0]


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """Where the peers are; empty: it is not compared."""

    model: str
    threads: int
    llama: str = ""
    """Folder of llama.cpp's programs."""
    openvino: str = ""
    """Python interpreter that has openvino_genai."""
    openvino_models: list[str] = []
    vllm: str = ""
    """The vllm program."""
    vllm_model: str = ""
    limits: str = ""
    """Independent program of the machine's limits."""
    template_tokens: int = 30
    """Tokens that the chat template adds to a prompt."""

    @property
    def missing(self) -> list[str]:
        found = {LLAMA: self.llama, "openvino": self.openvino, VLLM: self.vllm}
        return [name for name, path in found.items() if not path]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One command whose output `read` turns into figures."""

    subject: str
    command: list[str]
    read: Callable[[str], dict[str, float]]
    environment: dict[str, str] = {}


def read_figures(output: str) -> dict[str, float]:
    """The last line, one JSON object: what the programs beside this file print."""
    return msgspec.json.decode(output.strip().splitlines()[-1], type=dict[str, float])


def _llama_environment(peers: Peers) -> dict[str, str]:
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [peers.llama, known]))}


def _read_llama_bench(output: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for row in json.loads(output):
        if row["n_gen"]:
            figures["decode_1"] = row["avg_ts"]
        else:
            figures[f"prefill_{row['n_prompt']}"] = row["avg_ts"]
    return figures


def _read_batched_bench(output: str) -> dict[str, float]:
    row = next(json.loads(line) for line in output.splitlines() if line.startswith("{"))
    tokens = row["pl"] * row["tg"]
    return {"decode_32": row["speed_tg"], "generate_32": tokens / row["t"]}


def _llama_bench(peers: Peers, model: str, prompts: tuple[int, ...], depth: int) -> list[str]:
    sizes = ",".join(str(size) for size in prompts)
    return [
        *(f"{peers.llama}/llama-bench", "-m", model, "-t", str(peers.threads), "-fa", "on"),
        *("-p", sizes, "-n", "0" if prompts != (0,) else str(shapes.DECODE_TOKENS)),
        *("-d", str(depth), "-r", "1", "-o", "json"),
    ]


def engine_jobs(peers: Peers) -> list[Job]:
    """Prefill, one stream, many streams, without any server."""
    ours = [sys.executable, str(HERE / "ours.py")]
    threads = ["--threads", str(peers.threads), "--limits", peers.limits]
    jobs = [
        Job(
            subject=OURS,
            command=[*ours, peers.model, *threads],
            read=read_figures,
        )
    ]
    if peers.llama:
        environment = _llama_environment(peers)
        batched = [
            *(f"{peers.llama}/llama-batched-bench", "-m", peers.model),
            *("-t", str(peers.threads), "-fa", "on", "-c", "16384"),
            *("-npp", str(shapes.DECODE_PROMPT), "-ntg", str(shapes.DECODE_TOKENS)),
            *("-npl", str(shapes.STREAMS), "--output-format", "jsonl"),
        ]
        prefill = _llama_bench(peers, peers.model, shapes.PREFILLS, 0)
        decode = _llama_bench(peers, peers.model, (0,), shapes.DECODE_PROMPT)
        for command, read in (
            (prefill, _read_llama_bench),
            (decode, _read_llama_bench),
            (batched, _read_batched_bench),
        ):
            jobs.append(Job(subject=LLAMA, command=command, read=read, environment=environment))
    for folder in peers.openvino_models if peers.openvino else []:
        command = [peers.openvino, str(HERE / "openvino_engine.py"), folder]
        jobs.append(Job(subject=Path(folder).name, command=command, read=read_figures))
    return jobs


def file_jobs(peers: Peers, model: str) -> list[Job]:
    """Prefill and one stream of another model file, ours and llama.cpp."""
    ours = [sys.executable, str(HERE / "ours.py"), model, "--threads", str(peers.threads)]
    jobs = [Job(subject=OURS, command=[*ours, "--quick"], read=read_figures)]
    if peers.llama:
        environment = _llama_environment(peers)
        for prompts, depth in (((FILE_PREFILL,), 0), ((0,), shapes.DECODE_PROMPT)):
            command = _llama_bench(peers, model, prompts, depth)
            read = _read_llama_bench
            jobs.append(Job(subject=LLAMA, command=command, read=read, environment=environment))
    return jobs


def vllm_engine(figures: dict[str, float]) -> dict[str, float]:
    """Engine figures of vLLM, which has no program for its engine alone, from served ones."""
    found = {f"prefill_{n}": n / figures[f"first_{n}_ms"] * 1e3 for n in shapes.PREFILLS}
    return {**found, "decode_1": 1e3 / figures["served_1_token_ms"]}


def server_command(peers: Peers, subject: str) -> tuple[list[str], dict[str, str]]:
    """(command with {port}, environment) of a subject's server at its best."""
    threads = str(peers.threads)
    if subject == OURS:
        serve = [sys.executable, "-m", "sublimate", "serve", "--model", peers.model]
        return [*serve, "--threads", threads, "--port", "{port}"], {}
    if subject == LLAMA:
        context = str(SERVED_STREAMS * CONTEXT_PER_SLOT)
        flags = ["-t", threads, "-np", str(SERVED_STREAMS), "-c", context, "-fa", "on", "--jinja"]
        command = [f"{peers.llama}/llama-server", "-m", peers.model, *flags, "--port", "{port}"]
        return command, _llama_environment(peers)
    command = [
        *(peers.vllm, "serve", peers.vllm_model, "--dtype", "bfloat16"),
        *("--max-model-len", "4096", "--max-num-seqs", "64", "--port", "{port}"),
    ]
    cores = f"0-{peers.threads - 1}"
    path = f"{Path(peers.vllm).parent}:{os.environ.get('PATH', '')}"
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": cores}
    return command, {**environment, "HF_HUB_OFFLINE": "1", "PATH": path}


def _client(peers: Peers, url: str, subject: str, *flags: str) -> list[str]:
    """Ours is asked by the Messages API; peers by the OpenAI one, which is native to them."""
    api = "messages" if subject == OURS else "openai"
    client = [sys.executable, str(HERE / "client.py"), url, "--api", api]
    return [*client, "--model", peers.model, *flags]


def served_steps(
    peers: Peers, section: str, subject: str, url: str
) -> list[tuple[dict[str, str], list[str]]]:
    """(name in the client's output -> name of the figure, command) of each step of a turn."""

    def ask(streams: int, requests: int, prompt: int, generate: int, busy: int = 0) -> list[str]:
        words = str(prompt - peers.template_tokens)
        count = ["--streams", str(streams), "--requests", str(requests)]
        tokens = ["--prompt", words, "--generate", str(generate), "--busy", str(busy)]
        return _client(peers, url, subject, *count, *tokens)

    warm_up = ({}, ask(2, 2, SERVED_PROMPT, 4))
    if section == "interference":
        many = (BUSY_STREAMS, BUSY_STREAMS, SERVED_PROMPT, SERVED_TOKENS)
        busy = os.cpu_count() or 1
        steps = [({"tok_s": "alone_tok_s"}, ask(*many))]
        return [warm_up, *steps, ({"tok_s": "busy_tok_s"}, ask(*many, busy=busy))]
    alone = {"first_ms": "served_1_first_ms", "token_ms": "served_1_token_ms"}
    many = {name: f"served_32_{name}" for name in SERVED_NAMES}
    streams = SERVED_STREAMS
    steps = [
        warm_up,
        (alone, ask(1, ALONE_REQUESTS, ALONE_PROMPT, SERVED_TOKENS)),
        (many, ask(streams, streams, SERVED_PROMPT, SERVED_TOKENS)),
    ]
    if subject == VLLM:  # it has no program for its engine alone
        for size in shapes.PREFILLS:
            steps.append(({"first_ms": f"first_{size}_ms"}, ask(1, 1, size, 1)))
    return steps
