"""The flags of `serve` as they are read at once, against the library that reads all others."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from sublimate.cli import serve_command
from sublimate.cli.plain_flags import ALSO, plain_flags
from sublimate.config import FIELDS, Field

SAMPLES = {"int": ["0", "8080"], "float": ["0.5", "3"], "size": ["1GiB"], "str": ["a", "a b", "=x"]}


def by_the_library(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(serve_command, "serve_with", told.append)
    monkeypatch.setattr(sys, "argv", ["sublimate", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        serve_command.main()
    assert ended.value.code == 0
    return told[0]


def given(read: dict[str, Any] | None) -> dict[str, Any]:
    """Without what was not given, which a start leaves out."""
    assert read is not None
    return {name: value for name, value in read.items() if value not in (None, [], ())}


def written(field: Field, draw: random.Random) -> list[str]:
    """A flag as somebody may write it."""
    if field.kind == "bool":
        return [draw.choice([field.flag, f"--no-{field.flag[2:]}"])]
    flag = draw.choice([field.flag, *ALSO.get(field.name, ())])
    value = draw.choice(SAMPLES.get(field.kind, SAMPLES["str"]))
    return [f"{flag}={value}"] if flag[:2] == "--" and draw.random() < 0.4 else [flag, value]


def test_all_flags_are_read_as_the_library_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(5)
    for _ in range(8):
        fields = draw.choices(list(FIELDS.values()), k=60)
        arguments = [word for field in fields for word in written(field, draw)]
        arguments += draw.choice([[], ["--json"], ["--config", "x.toml"], ["--config=y/z.toml"]])
        read = plain_flags(arguments)
        assert given(read) == given(by_the_library(arguments, monkeypatch))
    everything = [word for field in FIELDS.values() for word in written(field, draw)]
    assert given(plain_flags(everything)).keys() == FIELDS.keys() | {"json"}
    assert given(plain_flags(["--config", "a"])) == {"json": False, "config": Path("a")}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-flag"],
        ["--mode", "x"],
        ["file.gguf"],
        ["--model"],
        ["--model", "--json"],
        ["--port", "x"],
        ["--port", "-1"],
        ["--port=٣"],
        ["--port", "1" * 40],
        ["-p8000"],
        ["-p=8000"],
        ["--watchdog-seconds", "1e3"],
        ["--watchdog-seconds", "nan"],
        ["--json=1"],
        ["--tls=true"],
        ["--"],
        ["--help"],
        [""],
    ],
)
def test_what_is_unusual_is_left_to_the_library(arguments: list[str]) -> None:
    assert plain_flags(arguments) is None
    assert plain_flags(["--json", *arguments]) is None
    assert plain_flags([*arguments, "--json"]) is None
