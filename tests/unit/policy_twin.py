"""The slow twin of core/policy/decide.h, written from its words, and the vectors that all of its
builds must give: C++, Python, WebAssembly.

`python tests/unit/policy_twin.py` writes tests/policy/vectors.json anew.

defines: INPUTS, OUTPUTS, LayerRules, rules, decide, vectors, vectors_text
"""

import json
import random
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests/policy/vectors.json"
PLANNED_TOKENS_MAX = 1 << 17
INPUTS = (
    "unit", "prompt_length", "output_tokens_max", "system_characters", "profile", "streamed",
    "role", "cores", "memory_mib", "has_gpu", "kv_tokens_total", "kv_tokens_free",
    "utilization_ppm", "queue_is_open", "has_fallback_server",
)  # fmt: skip
OUTPUTS = ("prompt_tokens", "profile", "split", "target", "reason", "shard_count")
LOW_LATENCY, HIGH_THROUGHPUT, LONG_CONTEXT = 0, 1, 2
NONE, UNIFORM, SEMANTIC = 0, 1, 2
RESIDENT, QUEUE, CPU, SERVER, REFUSE = 0, 1, 2, 3, 4
OOM, TOO_LONG = 1, 2
SEED = 20_261_130

Borders = list[tuple[int, int]]


@dataclass(frozen=True)
class LayerRules:
    """The numbers of LayerPolicy that a decision takes."""

    shard: int
    threshold: Fraction
    semantic: bool
    system_characters: int
    shard_least: Fraction
    block: int
    characters: int
    short: int
    cores: int
    memory_mib: int


def rules(policy: Any) -> LayerRules:
    """Of the descriptor's policy, not of the compiled one."""
    return LayerRules(
        shard=policy.max_tokens_per_shard,
        threshold=Fraction(str(policy.fallback_cpu_threshold)),
        semantic=policy.split_algorithm == SEMANTIC,
        system_characters=policy.semantic_system_characters_min,
        shard_least=Fraction(policy.semantic_shard_percent_min * policy.max_tokens_per_shard, 100),
        block=policy.attention_block_tokens,
        characters=policy.characters_per_token,
        short=policy.short_prompt_tokens,
        cores=policy.local_cores_min,
        memory_mib=policy.local_memory_mib_min,
    )


def tokens_of(length: int, in_characters: bool, r: LayerRules) -> int:
    return -(-max(length, 0) // r.characters) if in_characters else max(length, 0)


def even_ends(tokens: int, r: LayerRules) -> list[int]:
    """Whole blocks are dealt out so that shard i ends where i parts of them end, rounded down."""
    blocks = -(-tokens // r.block)
    shards = -(-tokens // r.shard)
    ends = [int(Fraction(blocks * i, shards)) * r.block for i in range(1, shards)]
    return [*ends, tokens]


def semantic_ends(tokens: int, places: list[tuple[int, int]], r: LayerRules) -> list[int]:
    """Of all places in reach the best kind wins, then the last place."""
    ends: list[int] = []
    start = 0
    while tokens - start > r.shard:
        reach = [p for p in places if start + int(r.shard_least) <= p[1] <= start + r.shard]
        start = max(reach)[1] if reach else start + r.shard
        ends.append(start)
    return [*ends, tokens]


def decide(words: dict[str, int], borders: Borders, r: LayerRules) -> list[int]:
    """OUTPUTS and then the ends of the shards."""
    in_characters = words["unit"] == 1
    tokens = tokens_of(words["prompt_length"], in_characters, r)
    busy = Fraction(words["utilization_ppm"], 10**6)
    profile = words["profile"]
    if profile not in (LOW_LATENCY, HIGH_THROUGHPUT, LONG_CONTEXT):
        profile = HIGH_THROUGHPUT
        if tokens > r.shard:
            profile = LONG_CONTEXT
        elif words["streamed"] and tokens <= r.short and busy < r.threshold:
            profile = LOW_LATENCY
    split, ends = NONE, [tokens]
    if tokens > PLANNED_TOKENS_MAX:
        ends = []
    elif tokens > r.shard:
        split, ends = UNIFORM, even_ends(tokens, r)
        if r.semantic and borders and words["system_characters"] >= r.system_characters:
            cut = [(kind, tokens_of(at, in_characters, r)) for at, kind in borders]
            cut = [(kind, at - at % r.block) for kind, at in cut]
            split, ends = SEMANTIC, semantic_ends(tokens, cut, r)
    target, reason = place(words, tokens, r)
    return [tokens, profile, split, target, reason, len(ends), *ends]


def place(words: dict[str, int], tokens: int, r: LayerRules) -> tuple[int, int]:
    """(target, reason)."""
    total, free = words["kv_tokens_total"], max(words["kv_tokens_free"], 0)
    need = tokens + max(words["output_tokens_max"], 0)
    known = total > 0
    reason = 0
    if known and Fraction(total - free + need, total) > r.threshold:
        reason = OOM
    if tokens > PLANNED_TOKENS_MAX or (known and need > total):
        reason = TOO_LONG
    if not reason:
        return RESIDENT, 0
    memory = words["memory_mib"] >= max(r.memory_mib, 1)
    cores = words["cores"] >= r.cores
    gpu = bool(words["has_gpu"])
    if memory and (cores and gpu if words["role"] == 1 else cores or gpu):
        return CPU, reason
    if words["has_fallback_server"]:
        return SERVER, reason
    if reason == OOM and need <= free:
        return RESIDENT, 0
    return (QUEUE if reason == OOM and words["queue_is_open"] else REFUSE), reason


# ---- vectors ------------------------------------------------------------------------------------
def drawn(random_: random.Random, r: LayerRules) -> tuple[dict[str, int], Borders]:
    """An input near the borders of the rules, more often than not."""
    unit = random_.randrange(2)
    scale = r.characters if unit else 1
    near = random_.choice([0, 1, r.short, r.shard // 2, r.shard, 2 * r.shard, 3 * r.shard + 77])
    near = random_.choice([near, random_.randrange(12 * r.shard), PLANNED_TOKENS_MAX])
    length = max(0, near * scale + random_.choice([-1, 0, 1, random_.randrange(400)]))
    total = random_.choice([0, 0, 4096, 65_536, 1 << 20])
    need = length // scale + 256
    free = random_.choice(
        [0, need, total, round(total * 0.15) + need, random_.randrange(total + 1)]
    )
    words = {
        "unit": unit,
        "prompt_length": length,
        "output_tokens_max": random_.choice([0, 256, 4096]),
        "system_characters": random_.choice([0, 4999, 5000, 20_000]),
        "profile": random_.choice([-1, -1, -1, 0, 1, 2]),
        "streamed": random_.randrange(2),
        "role": random_.randrange(2),
        "cores": random_.choice([0, 1, 2, 64]),
        "memory_mib": random_.choice([0, 1023, 1024, 65_536]),
        "has_gpu": int(random_.random() < 0.3),
        "kv_tokens_total": total,
        "kv_tokens_free": min(total, free),
        "utilization_ppm": random_.choice([0, 849_999, 850_000, 1_000_000]),
        "queue_is_open": random_.randrange(2),
        "has_fallback_server": int(random_.random() < 0.3),
    }
    places = sorted(random_.randrange(length + 1) for _ in range(random_.choice([0, 3, 12, 40])))
    return words, [(at, int(random_.random() < 0.3)) for at in places]


def extremes() -> list[tuple[dict[str, int], Borders]]:
    """Numbers that no caller means."""
    least, most = -(2**31) + 1, 2**31 - 1
    none = dict.fromkeys(INPUTS, 0)
    borders = [(least, 0), (-1, 1), (0, 1), (most, 1), (8192, 0), (8191, 1), (8192, 1)]
    changed: list[dict[str, int]] = [{}, dict.fromkeys(INPUTS, most), dict.fromkeys(INPUTS, least)]
    changed += [{name: value} for name in INPUTS for value in (least, -1, most)]
    return [
        ({**none, "prompt_length": 20_000, "system_characters": 5000, **c}, borders)
        for c in changed
    ]


def vectors(r: LayerRules, count: int = 400) -> list[list[list[int]]]:
    """[input words, border words, output words] each."""
    random_ = random.Random(SEED)
    given = [*extremes(), *(drawn(random_, r) for _ in range(count))]
    return [
        [
            [words[name] for name in INPUTS],
            [number for border in borders for number in border],
            decide(words, borders, r),
        ]
        for words, borders in given
    ]


def vectors_text(r: LayerRules, digest: str) -> str:
    """The file: JSON, with a vector a line, so that a program without a JSON reader has it too."""
    lines = ",\n".join(json.dumps(vector, separators=(",", ":")) for vector in vectors(r))
    head = json.dumps({"policy": digest, "inputs": INPUTS, "outputs": OUTPUTS})
    return head[:-1] + ',\n"vectors": [\n' + lines + "\n]}\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    from sublimate.policy import digest, layer_policy

    VECTORS.parent.mkdir(exist_ok=True)
    VECTORS.write_text(vectors_text(rules(layer_policy()), digest()), encoding="utf-8")
