"""What `sublimate verify` and `sublimate sign` take.

defines: verify_command, sign_command
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from . import options as flags
from .output import run_guarded


def verify_command(
    package: Annotated[
        Path | None, typer.Option(help="The package's folder in another installation.")
    ] = None,
    key: Annotated[str, typer.Option(help="Fingerprint of the key that must have signed it.")] = "",
    json: flags.Json = False,
) -> None:
    """Check every file of this installation against its signed manifest."""

    def action() -> int:
        from .verify import verify

        return verify(package, key, json)

    if code := run_guarded(action):
        sys.exit(code)


def sign_command(
    wheel: Annotated[Path, typer.Argument(help="A wheel of Sublimate; it is rewritten.")],
    key: Annotated[Path, typer.Option(help="Ed25519 private key, PEM.")],
) -> None:
    """Sign a wheel of your own build."""

    def action() -> int:
        from .verify import sign

        return sign(wheel, key)

    if code := run_guarded(action):
        sys.exit(code)
