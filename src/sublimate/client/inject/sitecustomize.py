"""Run by each Python that `sublimate run` starts, and by those that these start, before the
program's own code: once that imports anthropic, clients it makes without an http_client of their
own get ours. Nothing is imported until then.

defines: nothing; it acts when it is imported
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

PATCHED = "anthropic._base_client"
PARENT = "SUBLIMATE_RUN_PARENT"


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the patch."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        from sublimate.client.injected import patch

        patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Looks for one module, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _is_missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):
        return True


def _begin() -> None:
    missing = [name for name in ("anthropic", "sublimate") if _is_missing(name)]
    if not missing:
        sys.meta_path.insert(0, _Finder())
    elif os.environ.get(PARENT) == str(os.getppid()):  # told once, not by every helper
        sys.stderr.write(
            f"sublimate run: {' and '.join(missing)} cannot be imported by {sys.executable}: "
            "nothing is changed\n"
        )


def _next_one() -> None:
    """Another sitecustomize that this one stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_begin()
_next_one()
