"""Signed installations: a changed byte of what decides is refused at import, anything else by
`sublimate verify`; keys, pins, and the manifests of builds and of releases."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

import house
from sublimate.cli.verify import PASSWORD_VARIABLE, examine
from sublimate.config import load_settings
from sublimate.errors import ConfigError, ExitCode, InvalidSignatureError
from sublimate.policy import ed25519, manifest, signature
from sublimate.policy.sign import load_key, sign_wheel

VERSION = "9.9.9"
CORE = "_core.abi3.so"
DESCRIPTOR = "v1/layer_pb2.py"
WASM = "policy/decide.wasm"
OTHER = "errors.py"
DECIDING = [CORE, DESCRIPTOR, WASM, "policy/decision.py"]


# ---- the arithmetic -----------------------------------------------------------------------------
# RFC 8032, 7.1: secret key, public key, message, signature.
RFC_VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]


@pytest.mark.parametrize("vector", RFC_VECTORS)
def test_ed25519_of_the_standard(vector: tuple[str, ...]) -> None:
    seed, public, message, signed = map(bytes.fromhex, vector)
    assert ed25519.public_key(seed) == public
    assert ed25519.sign(seed, message) == signed
    assert ed25519.verify(public, message, signed)


@settings(max_examples=15, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.integers(0, 511))
def test_ed25519_is_that_of_the_library(seed: bytes, message: bytes, bit: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes_raw()
    assert ed25519.public_key(seed) == public
    signed = key.sign(message)
    assert ed25519.sign(seed, message) == signed
    assert ed25519.verify(public, message, signed)
    assert not ed25519.verify(public, message + b"x", signed)
    changed = bytearray(signed)
    changed[bit // 8] ^= 1 << bit % 8
    assert not ed25519.verify(public, message, bytes(changed))


def test_ed25519_takes_one_form_of_a_signature() -> None:
    seed = bytes(range(32))
    public, signed = ed25519.public_key(seed), ed25519.sign(seed, b"m")
    response = int.from_bytes(signed[32:], "little") + ed25519.ORDER
    assert not ed25519.verify(public, b"m", signed[:32] + response.to_bytes(32, "little"))
    assert not ed25519.verify(public, b"m", signed[:63])
    assert not ed25519.verify(public[:31], b"m", signed)
    for y in (2**255 - 1, ed25519.P + 1, 2, 1 << 255 | 1):  # too large, on no curve, -0
        assert not ed25519.verify(y.to_bytes(32, "little"), b"m", signed)
    with pytest.raises(ValueError, match="32 bytes"):
        ed25519.sign(b"short", b"m")


# ---- a package to sign --------------------------------------------------------------------------
@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What `import sublimate` needs, with a decision module that is never loaded."""
    folder = tmp_path / "site/sublimate"
    for name in ("__init__.py", OTHER, "policy", "v1"):
        source = house.ROOT / "src/sublimate" / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    shutil.copy(house.ROOT / "clients/policy/decide.wasm", folder / WASM)
    (folder / CORE).write_bytes(b"\x7fELF" + bytes(1000))
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != manifest.NAME)
    return {
        path.relative_to(folder).as_posix(): manifest.file_sha256(path)
        for path in files
        if "__pycache__" not in path.parts
    }


def sign_dev(folder: Path) -> None:
    data = manifest.development_manifest(VERSION, digests(folder))
    (folder / manifest.NAME).write_bytes(data)


def sign_release(folder: Path, seed: bytes = b"k" * 32) -> str:
    """The fingerprint of the key."""
    key = ed25519.public_key(seed)
    data = manifest.written(
        "release", VERSION, key, digests(folder), lambda signed: ed25519.sign(seed, signed)
    )
    (folder / manifest.NAME).write_bytes(data)
    return manifest.fingerprint(key)


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[at if at >= 0 else len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def imported(package: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`import sublimate` in a process of its own; prints who signed it."""
    code = "import sublimate; print(sublimate.provenance_kind())"
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUBLIMATE")} | environment
    env |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    # Without site: an editable install would answer the import before any path does.
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", DECIDING)
def test_a_changed_byte_of_what_decides_ends_the_import(package: Path, path: str) -> None:
    sign_dev(package)
    assert imported(package).stdout == "dev\n"
    flip(package / path)
    done = imported(package)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "InvalidSignatureError" in last and path in last and "is not as it was signed" in last
    assert "To get back: make build" in last


def test_f12_a_release_that_calls_itself_a_development_build_is_refused(package: Path) -> None:
    sign_release(package)
    path = package / "MANIFEST"
    path.write_bytes(path.read_bytes().replace(b"kind: release", b"kind: dev"))
    decision = package / "policy" / "decision.py"
    before = digests(package)
    decision.write_bytes(decision.read_bytes() + b"# changed")
    told = path.read_bytes()
    for name, digest in digests(package).items():
        told = told.replace(before[name].encode(), digest.encode())
    path.write_bytes(told)
    done = imported(package)
    assert done.returncode == 1
    assert "is not as it was signed" in done.stderr and "MANIFEST" in done.stderr


def test_the_command_says_so_in_a_line(package: Path, tmp_path: Path) -> None:
    sign_dev(package)
    flip(package / WASM)
    script = tmp_path / "sublimate"
    script.write_text("import sublimate.cli.main")
    env = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in (["-m", "sublimate", "serve"], [str(script)]):
        done = subprocess.run(
            [sys.executable, "-S", *command], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == ExitCode.SIGNATURE
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("Error: ") and WASM in done.stderr


def test_a_release_names_the_way_back(package: Path) -> None:
    mark = sign_release(package)
    pinned = {signature.PIN_VARIABLE: mark}
    assert imported(package, **pinned).stdout == "release\n"
    (package / WASM).unlink()
    last = imported(package, **pinned).stderr.splitlines()[-1]
    assert WASM in last and "is missing" in last
    assert "pip install --force-reinstall --no-deps sublimate" in last


def test_it_is_an_import_error_of_ours() -> None:
    assert issubclass(InvalidSignatureError, ImportError)
    assert InvalidSignatureError.exit_code == ExitCode.SIGNATURE == 7


# ---- who may have signed ------------------------------------------------------------------------
def refusal(folder: Path, pin: str = "") -> str:
    with pytest.raises(InvalidSignatureError) as caught:
        signature.provenance([folder], pin)
    return str(caught.value)


def test_a_release_key_is_pinned_in_the_code_or_by_the_setting(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = sign_release(package)
    assert mark in refusal(package), "nobody vouches for that key"
    assert signature.provenance([package], mark)[0].kind == "release"
    monkeypatch.setattr(signature, "RELEASE_KEYS", frozenset([mark]))
    assert signature.provenance([package])[0] == ("release", VERSION, mark)
    other = sign_release(package, b"o" * 32)
    assert other in refusal(package)
    assert mark in refusal(package, mark), "the pin is told"


def test_a_pin_takes_nothing_less(package: Path) -> None:
    mark = sign_release(package)
    sign_dev(package)
    assert signature.provenance([package])[0].kind == "dev"
    assert "names " + mark in refusal(package, mark)
    (package / manifest.NAME).unlink()
    assert signature.PIN_VARIABLE in refusal(package, mark)


def test_a_checkout_is_unsigned_and_an_installation_never_is(package: Path) -> None:
    assert manifest.NAME in refusal(package)
    (package.parent.parent / "pyproject.toml").write_text("")
    assert signature.provenance([package]) == (("unsigned", "", ""), {})
    assert imported(package).stdout == "unsigned\n"


def test_a_manifest_that_was_written_over_is_refused(package: Path) -> None:
    """The hash of a changed file cannot be put in, but for one who has the key."""
    mark = sign_release(package)
    path = package / manifest.NAME
    original = path.read_bytes()
    flip(package / WASM)
    new = manifest.file_sha256(package / WASM).encode()
    old = manifest.read(original).files[WASM].encode()
    path.write_bytes(original.replace(old, new))
    assert "MANIFEST is not as it was signed" in refusal(package, mark)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\n",
        lambda data: data.replace(b"manifest 1", b"manifest 2"),
        lambda data: data.replace(b"kind: release", b"kind: trusted"),
        lambda data: data.replace(b"  policy/decide.wasm", b"  ../decide.wasm"),
        lambda data: data.replace(b"  policy/decide.wasm", b"  /decide.wasm"),
        lambda data: data.replace(b"  policy/decide.wasm", b" policy/decide.wasm"),
        lambda data: data.replace(b"  errors.py", b"  __init__.py"),
        lambda data: data.replace(b"key: ", b"key: X"),
        lambda data: data.replace(b"9.9.9", b"\xff"),
        lambda data: bytes(manifest.MANIFEST_BYTES_MAX + 1),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(package: Path, change: Callable[[bytes], bytes]) -> None:
    mark = sign_release(package)
    path = package / manifest.NAME
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    assert "cannot be used" in refusal(package, mark)


@pytest.mark.parametrize("path", [CORE, DESCRIPTOR])
def test_a_manifest_without_what_decides_vouches_for_nothing(package: Path, path: str) -> None:
    (package / path).unlink()
    sign_dev(package)
    assert "does not name v1/layer_pb2.py and _core." in refusal(package)


# ---- the whole installation ---------------------------------------------------------------------
def test_verify_finds_every_kind_of_change(package: Path) -> None:
    sign_dev(package)
    report = examine([str(package)], "")
    assert report.findings == [] and report.files == len(digests(package))
    flip(package / OTHER)
    (package / "v1/frames_pb2.py").unlink()
    (package / "v1/extra.py").write_text("")
    assert imported(package).returncode == 0, "at import only what decides is looked at"
    found = {(finding.path, finding.problem) for finding in examine([str(package)], "").findings}
    assert found == {
        (OTHER, "changed"),
        ("v1/frames_pb2.py", "missing"),
        ("v1/extra.py", "unknown"),
    }


def test_verify_looks_at_a_development_signature_too(package: Path) -> None:
    sign_dev(package)
    flip(package / manifest.NAME, (package / manifest.NAME).read_bytes().index(VERSION.encode()))
    with pytest.raises(InvalidSignatureError, match="MANIFEST is not as it was signed"):
        examine([str(package)], "")


def test_the_variables_are_no_mistaken_settings() -> None:
    given = {signature.PIN_VARIABLE: "0" * 64, PASSWORD_VARIABLE: "secret"}
    assert load_settings({}, environment=given).notes == load_settings({}, environment={}).notes


def run_verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sublimate", "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(package: Path) -> None:
    mark = sign_release(package)
    done = run_verify("--package", str(package), "--key", mark)
    assert done.returncode == 0 and mark in done.stdout and "are as they were signed" in done.stdout
    flip(package / OTHER)
    done = run_verify("--package", str(package), "--key", mark, "--json")
    assert done.returncode == 7
    assert '"findings":[{"path":"errors.py","problem":"changed"}]' in done.stdout
    done = run_verify("--package", str(package))
    assert done.returncode == 7 and "To get back" in done.stderr


# ---- signing ------------------------------------------------------------------------------------
def pem(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )


def wheel_of(package: Path) -> Path:
    path = package.parent / f"sublimate-{VERSION}-py3-none-any.whl"
    record = f"sublimate-{VERSION}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in digests(package):
            wheel.write(package / name, f"sublimate/{name}")
        wheel.writestr("sublimate/MANIFEST", manifest.development_manifest(VERSION, {}))
        wheel.writestr(
            record, f"sublimate/MANIFEST,sha256=old,1\nsublimate/{OTHER},,\n{record},,\n"
        )
    return path


def test_a_signed_wheel(package: Path, tmp_path: Path) -> None:
    wheel = wheel_of(package)
    (tmp_path / "key.pem").write_bytes(pem(Ed25519PrivateKey.generate(), b"secret"))
    mark = sign_wheel(wheel, load_key(tmp_path / "key.pem", b"secret"))
    with zipfile.ZipFile(wheel) as signed:
        assert len(signed.namelist()) == len(set(signed.namelist())) == len(digests(package)) + 2
        text = signed.read("sublimate/MANIFEST")
        record = signed.read(f"sublimate-{VERSION}.dist-info/RECORD").decode().splitlines()
        signed.extractall(tmp_path / "installed")
    expected = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")
    assert record[-1] == f"sublimate/MANIFEST,sha256={expected},{len(text)}" and len(record) == 3
    report = examine([str(tmp_path / "installed/sublimate")], mark)
    assert (report.kind, report.version, report.findings) == ("release", VERSION, [])
    assert report.files == len(digests(package))


def test_what_cannot_be_signed_with_or_signed(package: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_key(key)
    for data, words in (
        (b"no key", "is no PEM private key"),
        (pem(Ed25519PrivateKey.generate(), b"secret"), "is no PEM private key, or"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "is no Ed25519 key"),
    ):
        key.write_bytes(data)
        with pytest.raises(ConfigError, match=words):
            load_key(key)
    key.write_bytes(pem(Ed25519PrivateKey.generate()))
    wheel = tmp_path / f"other-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as other:
        other.writestr("other/__init__.py", "")
    for path in (wheel, tmp_path / "missing.whl", key):
        with pytest.raises(ConfigError, match="wheel"):
            sign_wheel(path, load_key(key))


@pytest.mark.parametrize("state", ["wheel", "editable"])
def test_the_build_signs_with_a_key_that_it_forgets(tmp_path: Path, state: str) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / CORE).write_bytes(b"core")
    (tmp_path / WASM).write_bytes(b"wasm")
    keys: set[bytes] = set()
    for _ in range(2):
        script = house.ROOT / "core/policy/sign_build.py"
        subprocess.run([sys.executable, script, tmp_path, VERSION, state], check=True)
        made = manifest.read((tmp_path / manifest.NAME).read_bytes())
        assert made.kind == "dev" and made.version == VERSION
        assert manifest.is_signature_valid(made)
        keys.add(made.key)
    assert len(keys) == 2
    sources = {
        p.removeprefix("src/sublimate/") for p in house.tracked_files() if "/sublimate/" in p
    }
    is_whole = OTHER in made.files
    assert is_whole == (state == "wheel")
    assert {CORE, WASM, DESCRIPTOR} <= made.files.keys() <= sources | {CORE, WASM}
    # The descriptor of an editable install is the one in the sources.
    folders = [house.ROOT / "src/sublimate", tmp_path]
    assert signature.findings(folders, {DESCRIPTOR: made.files[DESCRIPTOR]}) == []
