"""GGUF files of Hugging Face repositories, where the `hub` extra is installed and reachable.

defines: cached, download, choose
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .registry import SUFFIX, HubRepository

# Taken in this order when a repository has several files and none was named.
PREFERRED = ("q4_k_m", "q4_1", "q4_0", "q5_k_m", "q6_k", "q8_0", "bf16", "f16", "f32")


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            "A Hugging Face repository needs the hub extra: pip install 'sublimate[hub]'."
        ) from None
    return huggingface_hub


def cached(wanted: HubRepository) -> Path | None:
    """The file in the hub's own cache, without asking the network; None if it is not there."""
    try:
        library = _library()
        snapshot = Path(library.snapshot_download(wanted.repository, local_files_only=True))
    except ModelError:
        return None
    except Exception:
        return None  # not cached; the library has many names for that
    names = [path.name for path in snapshot.glob("*" + SUFFIX)]
    if not names or (wanted.part and choose_or_none(names, wanted.part) is None):
        return None
    return snapshot / choose(names, wanted)


def download(wanted: HubRepository) -> Path:
    """Fetch the file; the hub library shows its own progress. Raises ModelError."""
    library = _library()
    try:
        names: list[str] = library.HfApi().list_repo_files(wanted.repository)
        return Path(library.hf_hub_download(wanted.repository, choose(names, wanted)))
    except ModelError:
        raise
    except Exception as error:
        # The library raises errors of its HTTP client, its own and OSError.
        kind = type(error).__name__
        raise ModelError(
            f"{wanted.repository} cannot be fetched from Hugging Face ({kind}). Is the name right "
            f"and the hub reachable? A file that you have can be given by its path."
        ) from None


def choose_or_none(names: Sequence[str], part: str) -> str | None:
    """The only GGUF file whose name contains `part`, regardless of case."""
    files = sorted(name for name in names if name.lower().endswith(SUFFIX))
    matching = [name for name in files if part.lower() in name.lower()]
    return matching[0] if len(matching) == 1 else None


def choose(names: Sequence[str], wanted: HubRepository) -> str:
    """The file to take. Raises ModelError if that is not clear, naming what there is."""
    files = sorted(name for name in names if name.lower().endswith(SUFFIX))
    if not files:
        raise ModelError(f"{wanted.repository} holds no {SUFFIX} file.")
    if wanted.part:
        chosen = choose_or_none(files, wanted.part)
        if chosen is None:
            raise ModelError(
                f"{wanted.part!r} does not name one file of {wanted.repository}: {', '.join(files)}"
            )
        return chosen
    for kind in PREFERRED:
        if chosen := choose_or_none(files, kind):
            return chosen
    if len(files) == 1:
        return files[0]
    raise ModelError(
        f"{wanted.repository} holds several files; name one as {wanted.repository}:PART of "
        f"{', '.join(files)}"
    )
