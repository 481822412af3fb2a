"""Prefill and decode of a model in each block type of GGUF, ours beside llama.cpp, in turn.

usage: python bench/block_types.py --records FILE [--llama FOLDER] [--types q4_k,iq4_xs,...]
         [--shape llama-1b-short] [--rounds 3] [--threads N] [--models FOLDER]

For each type a file of random weights in the shapes of a real model (bench/random_model.py) is
made, in a folder that is kept if --models names it; then `bench/versus` gives both engines a turn
per type and round (prefill of 512 tokens, one stream of 64 after 128) and prints medians, ratios
and spreads.

defines: parse, command, main
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from random_model import SHAPES, TYPES, write_model

from sublimate.config import Settings, cache_folder
from sublimate.model.files import locate
from sublimate.model.registry import DEFAULT

VERSUS = Path(__file__).with_name("versus")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=Path, required=True, help="of the turns, appended to")
    parser.add_argument("--llama", default=os.environ.get("VERSUS_LLAMA", ""))
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-1b-short")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--models", type=Path, help="where the files are, or are made")
    parser.add_argument("--tokenizer", default=DEFAULT.name)
    options = parser.parse_args(arguments)
    options.types = options.types.split(",")
    unknown = set(options.types) - set(TYPES)
    if unknown:
        parser.error(f"unknown types: {', '.join(sorted(unknown))}; known are {', '.join(TYPES)}")
    return options


def command(options: argparse.Namespace, files: dict[str, Path]) -> list[str]:
    """What measures `files`, by the name of their type."""
    return [
        *(sys.executable, str(VERSUS), "--sections", "files", "--records", str(options.records)),
        *("--rounds", str(options.rounds), "--threads", str(options.threads)),
        *("--llama", options.llama, "--model", str(next(iter(files.values())))),
        *(word for name, path in files.items() for word in ("--file", f"{name}={path}")),
    ]


def main() -> int:
    options = parse(sys.argv[1:])
    tokenizer = locate(options.tokenizer, cache_folder(Settings()))
    if tokenizer is None:
        print(f"{options.tokenizer} is not here: run `sublimate pull`", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="block-types-") as folder:
        models = options.models or Path(folder)
        models.mkdir(parents=True, exist_ok=True)
        files = {kind: models / f"{options.shape}-{kind}.gguf" for kind in options.types}
        for kind, path in files.items():
            if not path.exists():
                write_model(path, SHAPES[options.shape], kind, tokenizer.path)
        return subprocess.run(command(options, files)).returncode


if __name__ == "__main__":
    sys.exit(main())
