"""Commands that documents name, and whether the command line takes them.

defines: commands, refusal, all_options
"""

import functools
import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from sublimate.cli.main import app


def commands(text: str) -> Iterator[str]:
    """`sublimate ...` in code, of a line or a block."""
    for block in re.findall(r"(?ms)^```sh\n(.*?)^```", text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|", line.partition("#")[0]):
                if found := re.search(r"(?:^|\s|/)(sublimate [a-z].*)$", part.strip()):
                    yield found[1]
    outside = re.sub(r"(?ms)^```.*?^```", "", text)
    for code in re.findall(r"`([^`\n]+)`", outside.replace("\n", " ")):
        if code.startswith("sublimate "):
            yield code


@functools.cache
def whole() -> Any:
    """The command line."""
    return typer.main.get_command(app)


def refusal(command: str) -> str:
    """Why the command line does not take a command; empty if it does. Nothing is run."""
    words = shlex.split(command)[1:]
    current, name, context = whole(), "sublimate", None
    try:
        while True:
            context = current.make_context(name, words, parent=context)
            if not isinstance(current, typer.core.TyperGroup):
                return ""
            words = [*context._protected_args, *context.args]
            name, current, words = current.resolve_command(context, words)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return error.format_message()


def all_options() -> Iterator[str]:
    """Of every command."""
    waiting: list[Any] = [whole()]
    while waiting:
        command = waiting.pop()
        yield from (option for parameter in command.params for option in parameter.opts)
        waiting += getattr(command, "commands", {}).values()
