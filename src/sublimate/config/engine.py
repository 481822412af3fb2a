"""What the engine process is told.

defines: EngineSettings
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import CONTEXT_TOKENS_MAX, ROPE_FACTOR_MAX, THREADS_MAX, Section


class EngineSettings(Section, frozen=True, kw_only=True):
    """What the engine process is told."""

    context_length: Annotated[
        int,
        Meta(ge=0, le=CONTEXT_TOKENS_MAX, description="Context in tokens; 0 takes the model's."),
    ] = 0
    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        Meta(description="Overrides the model's RoPE scaling."),
    ] = ""
    rope_factor: Annotated[
        float,
        Meta(ge=0, le=ROPE_FACTOR_MAX, description="RoPE scaling factor; 0 takes the model's."),
    ] = 0.0
    exact: Annotated[
        bool, Meta(description="fp32 weights and arithmetic: slower, nearest to the reference.")
    ] = False
    quantize: Annotated[
        Literal["", "int8", "int4"],
        Meta(
            description="Rounds weights of 16 and 32 bits to 8 or 4 while they are loaded; empty "
            "takes them as they are."
        ),
    ] = ""
    batch_invariant: Annotated[
        bool,
        Meta(
            description="A request's text does not depend on its batch. Without it large batches "
            "are faster on AMX; elsewhere it changes nothing."
        ),
    ] = True
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=THREADS_MAX,
            description="Compute threads; 0 takes the cores, 16 at most, or fewer where that is "
            "measured to be faster.",
        ),
    ] = 0
    isa: Annotated[
        Literal["", "ref", "portable", "avx2", "avx512", "amx"],
        Meta(description="Instruction set; empty takes the best that runs here, as measured."),
    ] = ""
    kv: Annotated[
        Literal["bf16", "int8"],
        Meta(
            description="Keys and values: int8 takes about half of bf16's memory and costs a text "
            "little (docs/kv.md). With --exact they are f32."
        ),
    ] = "bf16"
    kv_memory: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for keys and values, such as 2GiB; 0 sizes it from the machine.",
            extra={"size": True},
        ),
    ] = 0
    speculation: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: guess tokens from the text so far and check them in the same step, "
            "where that is faster; the answer stays the same."
        ),
    ] = "auto"
    lora: Annotated[
        tuple[str, ...],
        Meta(
            description="A LoRA adapter as NAME=PATH, a folder of PEFT or a GGUF file, for the "
            "requests whose model is NAME (docs/lora.md)."
        ),
    ] = ()
    script: Annotated[
        str,
        Meta(
            description="JSON file of token ids to answer with in place of a model (for tests).",
            extra={"hidden": True},
        ),
    ] = ""
