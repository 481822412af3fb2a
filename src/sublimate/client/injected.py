"""What `sublimate run` changes in a program: the HTTP clients that anthropic makes for itself carry
their requests by our transport, and are as they were in all else.

defines: patch, inject_path
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from .core import Core
from .report import say
from .transport import make_async_transport, make_transport

PATCHED = "anthropic._base_client"
PROFILE_VARIABLE = "SUBLIMATE_CLIENT_PROFILE"
"""The execution profile that each request names; unset or empty: none."""
WRAPPERS = {"SyncHttpxClientWrapper": False, "AsyncHttpxClientWrapper": True}
"""Names of anthropic._base_client, the same since its release 0.3; is it the async one?"""


def inject_path() -> Path:
    """The folder to put first into PYTHONPATH."""
    return Path(__file__).parent / "inject"


def patch(module: ModuleType) -> None:
    """anthropic._base_client, just imported. Without the names that are known it stays as it is."""
    if any(not hasattr(module, name) for name in WRAPPERS):
        say("this anthropic makes its clients in another way: nothing is changed")
        return
    for name, is_async in WRAPPERS.items():
        setattr(module, name, _carried(getattr(module, name), is_async))


def _carried(base: type[Any], is_async: bool) -> Any:
    """The same class with our transport before its own."""
    root = next(one.__module__.partition(".")[0] for one in base.__mro__ if _is_client(one))
    library = import_module(root)
    made = make_async_transport if is_async else make_transport

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        base.__init__(self, *args, **kwargs)
        core = Core(library, (), True, os.environ)
        inner = self._transport
        self._transport = made(core, lambda: inner)
        self.report = core.tally.report
        if profile := os.environ.get(PROFILE_VARIABLE):
            self.headers.setdefault("x-execution-profile", profile)

    return cast(
        Any, type(base.__name__, (base,), {"__init__": begin, "__module__": base.__module__})
    )


def _is_client(one: type[Any]) -> bool:
    return one.__module__.partition(".")[0] in ("httpx", "httpx2")
