"""The policy: what is compiled is what the descriptor says; the build notices when it is not."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import house
from sublimate import _core
from sublimate.v1 import layer_pb2

PPM = 1_000_000
GENERATOR = "core/policy/generate.py"
PROTO = "proto/sublimate/v1/layer.proto"
MODULE = "src/sublimate/v1/layer_pb2.py"


def described() -> layer_pb2.LayerPolicy:
    service = layer_pb2.DESCRIPTOR.services_by_name["Layer"]
    return service.GetOptions().Extensions[layer_pb2.policy]


def numbers(message: Any) -> dict[str, Any]:
    """A policy message as _core.POLICY has it."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == "profiles":
            found["profiles"] = [numbers(profile) for profile in value]
        elif field.name == "fallback_cpu_threshold":
            found["fallback_cpu_threshold_ppm"] = round(value * PPM)
        elif field.name != "profile":
            found[field.name] = value
    return found


def test_the_loop_is_compiled_with_the_numbers_of_the_descriptor() -> None:
    assert numbers(described()) == _core.POLICY


def test_the_numbers_that_the_contract_names() -> None:
    policy = described()
    assert policy.max_tokens_per_shard == 8192
    assert policy.fallback_cpu_threshold == 0.85
    assert policy.split_algorithm == layer_pb2.SEMANTIC
    assert policy.semantic_system_characters_min == 5000
    assert [profile.profile for profile in policy.profiles] == [1, 2, 3]
    assert policy.attention_block_tokens % _core.LIMITS["PAGE_TOKENS"] == 0


def test_the_digest_is_of_the_bytes_of_the_option() -> None:
    """As a client takes them from the descriptor, whatever its language."""
    policy = described()
    written = policy.SerializeToString(deterministic=True)
    assert hashlib.sha256(written).hexdigest() == _core.POLICY_DIGEST
    assert layer_pb2.LayerPolicy.FromString(written) == policy
    options = layer_pb2.DESCRIPTOR.services_by_name["Layer"].GetOptions().SerializeToString()
    assert written in options


def test_methods_say_what_a_client_may_do() -> None:
    method = layer_pb2.DESCRIPTOR.services_by_name["Layer"].methods_by_name["GetPolicy"]
    call = method.GetOptions().Extensions[layer_pb2.call]
    assert call.replay_safe and call.deadline_ms == 5000


def generate(root: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / GENERATOR), str(into)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for path in (GENERATOR, PROTO, MODULE):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes((house.ROOT / path).read_bytes())
    return tmp_path


def test_the_build_reads_the_descriptor(copied: Path) -> None:
    assert generate(copied, copied).returncode == 0
    text = (copied / "policy_values.h").read_text()
    assert _core.POLICY_DIGEST in text and ".max_tokens_per_shard = 8192," in text


@pytest.mark.parametrize(
    ("number", "other"),
    [
        ("step_percent: 235", "step_percent: 236"),
        ("split_algorithm: SEMANTIC", "split_algorithm: UNIFORM"),
    ],
)
def test_the_build_refuses_a_descriptor_that_is_older_than_the_file(
    copied: Path, number: str, other: str
) -> None:
    text = (copied / PROTO).read_text()
    assert text.count(number) == 1
    (copied / PROTO).write_text(text.replace(number, other))
    done = generate(copied, copied)
    assert done.returncode != 0 and "make proto" in done.stderr
    assert not (copied / "policy_values.h").exists()


def test_the_numbers_stand_in_one_place() -> None:
    """No header of the loop repeats a row of the table."""
    for path in house.source_files("core/loop", "core/policy", suffixes=(".h",)):
        assert ".step_percent =" not in house.strip_cpp(path), path
