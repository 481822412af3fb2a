"""Writes a golden JSON file in the plain form that tests/cpp/golden_check.cpp reads.

usage: golden_as_text.py GOLDEN.json OUT.txt
"""

import json
import sys
from pathlib import Path


def main() -> None:
    source, target = sys.argv[1:3]
    words: list[str] = []
    for case in json.loads(Path(source).read_text())["cases"]:
        words.append(case["name"].replace(" ", "_"))
        words += [str(len(case["ids"])), str(len(case["greedy"])), repr(case["nll"])]
        for field in ("ids", "greedy", "gaps"):
            words += [str(value) for value in case[field]]
        words.append("\n")
    Path(target).write_text(" ".join(words))


if __name__ == "__main__":
    main()
