"""Writes the manifest of a development build: signed with a key that is made now and forgotten.

usage: python core/policy/sign_build.py FOLDER VERSION [editable]

CMake runs it when it installs into FOLDER (the package's folder). A wheel will hold the sources too,
so they are listed; in an editable install they are there to be edited, so only what is built and the
policy's descriptor are. `sublimate sign` makes the manifest of a release, later, from the wheel.

defines: manifest_module, listed, main
"""

import importlib.util
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src/sublimate"
POLICY = "v1/layer_pb2.py"
SUFFIXES = (".py", ".pyi")


def manifest_module():
    """src/sublimate/policy/manifest.py without the package around it, which is not whole yet."""
    folder = SOURCE / "policy"
    spec = importlib.util.spec_from_file_location(
        "policy", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules["policy"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["policy"])
    return importlib.import_module("policy.manifest")


def listed(folder, is_editable):
    """Path in the package -> where the file is now."""
    own = [p for p in sorted(folder.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    files = {path.relative_to(folder).as_posix(): path for path in own}
    if is_editable:
        files[POLICY] = SOURCE / POLICY
        built = ("_core.", "policy/decide.", POLICY)
        return {name: path for name, path in files.items() if name.startswith(built)}
    sources = (path for path in SOURCE.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return files | {path.relative_to(SOURCE).as_posix(): path for path in sources}


def main(folder, version, state=""):
    manifest = manifest_module()
    target = Path(folder) / manifest.NAME
    target.unlink(missing_ok=True)
    files = listed(Path(folder), state == "editable")
    digests = {name: manifest.file_sha256(path) for name, path in files.items()}
    target.write_bytes(manifest.development_manifest(version, digests))


if __name__ == "__main__":
    main(*sys.argv[1:])
