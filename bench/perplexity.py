"""What a model makes of a text, beside llama.cpp on the same file and the same tokens.

usage: python bench/perplexity.py --model FILE.gguf --text FILE [--chunks 24] [--exact] [--decode]
                                  [--peer llama-perplexity] [--json]

As llama-perplexity counts it: the text's tokens behind a token that begins it (if the model has one)
in chunks of 512, each with that token in the first place; of each the tokens of its second half
are predicted. Perplexity is the exponential of their mean negative log-likelihood.

--peer: the program, asked for the same chunks; its libraries are found as it finds them itself
(LD_LIBRARY_PATH). Without --text: what Python's own help says of its topics, some 500 KB of English.

defines: CHUNK_TOKENS, perplexity, of_peer, main
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from pydoc_data import topics

import numpy as np

from sublimate import _core
from sublimate.edge.textmodel import load_text_model

CHUNK_TOKENS = 512
"""llama-perplexity's default."""
KV_BYTES = 1 << 28


def perplexity(
    model: _core.Model, tokens: list[int], chunks: int, *, begins: int | None, decode: bool
) -> float:
    """Of the first `chunks` chunks of `tokens`. `begins`: what each chunk has in its first place.
    `decode`: by the arithmetic of generated rows instead of that of prompts. Raises ValueError if
    there are fewer."""
    if len(tokens) < chunks * CHUNK_TOKENS:
        raise ValueError(f"the text has {len(tokens) // CHUNK_TOKENS} chunks, not {chunks}")
    first = CHUNK_TOKENS // 2
    total = 0.0
    for index in range(chunks):
        chunk = tokens[index * CHUNK_TOKENS : (index + 1) * CHUNK_TOKENS]
        if begins is not None:
            chunk[0] = begins
        rows = model.logits(chunk, decode=decode)[first:-1].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        targets = np.array(chunk[first + 1 :])
        likelihood = rows[np.arange(len(targets)), targets] - np.log(np.exp(rows).sum(axis=1))
        total -= likelihood.sum()
    return float(np.exp(total / (chunks * (CHUNK_TOKENS - first - 1))))


def of_peer(program: str, model: str, text: Path, chunks: int) -> float:
    """Raises RuntimeError with what the program said last."""
    command = [program, "-m", model, "-f", str(text), "-c", str(CHUNK_TOKENS)]
    done = subprocess.run(
        [*command, "--chunks", str(chunks)], capture_output=True, text=True, check=False
    )
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", done.stdout + done.stderr)
    if found is None:
        raise RuntimeError((done.stdout + done.stderr)[-500:])
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", default="")
    parser.add_argument("--chunks", type=int, default=24)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--peer", default="")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    own = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    text = Path(arguments.text).read_text() if arguments.text else own
    side = load_text_model(arguments.model)
    model = _core.Model.load(arguments.model, exact=arguments.exact, kv_bytes=KV_BYTES)
    tokens = side.tokenizer.encode(text)
    begins = side.tokenizer.bos_id if side.tokenizer.add_bos else None
    tokens = [begins, *tokens] if begins is not None else tokens
    own_figure = perplexity(model, tokens, arguments.chunks, begins=begins, decode=arguments.decode)
    figures = {"sublimate": own_figure}
    if arguments.peer:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            figures["llama.cpp"] = of_peer(
                arguments.peer, arguments.model, Path(file.name), arguments.chunks
            )
        figures["ratio"] = figures["sublimate"] / figures["llama.cpp"]
    if arguments.json:
        print(json.dumps(figures))
    else:
        print(*(f"{name} {value:.4f}" for name, value in figures.items()), sep="\n")


if __name__ == "__main__":
    main()
