"""Sublimate beside llama.cpp, OpenVINO GenAI and vLLM, in turn, on this machine.

usage: python bench/versus --records FILE [--rounds 5] [--first-round 0]
         [--sections engine,served,interference]
         [--llama FOLDER] [--openvino PYTHON --openvino-model FOLDER ...]
         [--vllm PROGRAM --vllm-model FOLDER] [--file NAME=GGUF ...] [--wrap COMMAND]
         [--json FILE] [--picture FILE]

Every round gives each subject one turn per section, in an order that rotates. Records are appended
to FILE, one JSON object a line, so that a run can be cut into pieces; table and picture are made
of all of them. docs/benchmarks.md tells how to install the peers. --wrap: put before each command
that measures; it finds the session of the server under test in VERSUS_PIDS.

defines: parse, Run, main
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

import subjects
from peer_servers import Server
from picture import draw
from subjects import LLAMA, VLLM, Peers
from summary import OURS, Record, summarise, to_markdown

SECTIONS = ("engine", "served", "interference", "files")
COMMAND_SECONDS = 900


def parse(arguments: list[str]) -> argparse.Namespace:
    """Paths of peers also come from the environment: VERSUS_LLAMA, VERSUS_OPENVINO, ..."""

    def known(name: str) -> str:
        return os.environ.get(f"VERSUS_{name}", "")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="0: only summarise the records")
    parser.add_argument("--first-round", type=int, default=0, help="for a run cut into pieces")
    parser.add_argument("--sections", default="engine,served,interference")
    parser.add_argument("--subjects", default="", help="only these, by name")
    parser.add_argument("--model", default="default", help="GGUF file that ours and llama.cpp read")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--llama", default=known("LLAMA"))
    parser.add_argument("--openvino", default=known("OPENVINO"))
    parser.add_argument("--openvino-model", action="append", default=[])
    parser.add_argument("--vllm", default=known("VLLM"))
    parser.add_argument("--vllm-model", default=known("VLLM_MODEL"))
    parser.add_argument("--file", action="append", default=[], help="NAME=GGUF, section files")
    parser.add_argument("--limits", default=known("LIMITS"), help="program that prints limits")
    parser.add_argument("--wrap", default="")
    parser.add_argument("--json", type=Path, help="the table for machines")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args(arguments)
    options.sections = options.sections.split(",") if options.sections else []
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    options.openvino_model += filter(None, known("OPENVINO_MODELS").split(":"))
    return options


class Run:
    """Turns of all rounds; servers live as long as it."""

    def __init__(self, options: argparse.Namespace, peers: Peers) -> None:
        self._options = options
        self._peers = peers
        self._servers: dict[str, Server] = {}
        self._logs = Path(tempfile.mkdtemp(prefix="versus-"))

    def round(self, number: int) -> None:
        for section in self._options.sections:
            if section in ("engine", "files"):
                self._commands(number, section)
            else:
                self._served(number, section)

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()

    def _commands(self, number: int, section: str) -> None:
        groups = {section: subjects.engine_jobs(self._peers)} if section == "engine" else {}
        for entry in self._options.file if section == "files" else []:
            name, _, path = entry.partition("=")
            groups[name] = subjects.file_jobs(self._peers, path)
        for name, jobs in groups.items():
            asked = list(dict.fromkeys(job.subject for job in jobs))
            for subject in self._order(asked, number):
                figures: dict[str, float] = {}
                try:
                    for job in [job for job in jobs if job.subject == subject]:
                        figures |= job.read(self._measure(job.command, job.environment))
                    self._record(number, name, subject, figures)
                except (RuntimeError, ValueError) as error:
                    self._record(number, name, subject, figures, str(error))

    def _served(self, number: int, section: str) -> None:
        present = [OURS, *([LLAMA] if self._peers.llama else [])]
        if section == "served" and self._peers.vllm:
            present.append(VLLM)
        for subject in self._order(present, number):
            figures: dict[str, float] = {}
            error, idle = "", 0.0
            try:
                server = self._server(subject)
                server.resume()
                steps = subjects.served_steps(self._peers, section, subject, server.url)
                for names, command in steps:
                    output = self._measure(command, {"VERSUS_PIDS": str(server.session)})
                    found = subjects.read_figures(output)
                    figures |= {to: found[name] for name, to in names.items()}
                server.rest()
                idle = server.idle_share
                if "busy_tok_s" in figures:
                    figures["kept"] = figures["busy_tok_s"] / figures["alone_tok_s"]
            except RuntimeError as caught:
                error = str(caught)
            self._record(number, section, subject, figures, error, idle)
            if subject == VLLM and not error:
                self._record(number, "engine", f"{VLLM}, served", subjects.vllm_engine(figures))

    def _order(self, names: list[str], number: int) -> list[str]:
        """Who goes first changes from round to round."""
        only = self._options.subjects.split(",") if self._options.subjects else names
        names = [name for name in names if name in only]
        turn = number % len(names) if names else 0
        return names[turn:] + names[:turn]

    def _server(self, subject: str) -> Server:
        if subject not in self._servers:
            command, environment = subjects.server_command(self._peers, subject)
            log = self._logs / f"{subject}.log"
            self._servers[subject] = Server(subject, command, environment, log)
            self._servers[subject].wait_ready(subjects.READY_PATHS[subject])
        return self._servers[subject]

    def _measure(self, command: list[str], environment: dict[str, str]) -> str:
        """Its output. Raises RuntimeError with the end of what it said."""
        done = subprocess.run(
            [*shlex.split(self._options.wrap), *command],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
        return done.stdout

    def _record(
        self,
        number: int,
        section: str,
        subject: str,
        figures: dict[str, float],
        error: str = "",
        idle_share: float = 0.0,
    ) -> None:
        record = Record(
            round=number,
            section=section,
            subject=subject,
            figures=figures,
            error=error,
            idle_share=idle_share,
        )
        with self._options.records.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        shown = error or ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
        print(f"round {number}, {section}, {subject}: {shown}", file=sys.stderr, flush=True)


def read_records(path: Path) -> list[Record]:
    """All records of a file; none if it is not there."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]


def main() -> None:
    options = parse(sys.argv[1:])
    model = options.model
    if model == "default":
        from sublimate.config import Settings, cache_folder
        from sublimate.model.files import fetch

        model = str(fetch(model, cache_folder(Settings())).path)
    peers = Peers(
        model=model,
        threads=options.threads,
        llama=options.llama,
        openvino=options.openvino,
        openvino_models=options.openvino_model,
        vllm=options.vllm,
        vllm_model=options.vllm_model,
        limits=options.limits,
    )
    for name in peers.missing:
        print(f"not compared, no path given: {name}", file=sys.stderr)
    first = options.first_round
    # So that servers end with a run that is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    run = Run(options, peers)
    try:
        for number in range(first, first + options.rounds):
            run.round(number)
    finally:
        run.close()
    records = read_records(options.records)
    lines = summarise(records)
    print(to_markdown(lines))
    for record in records:
        if record.error:
            print(f"round {record.round}, {record.section}, {record.subject}: {record.error}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(lines)))
    if options.picture:
        options.picture.write_text(draw(lines))


if __name__ == "__main__":
    main()
