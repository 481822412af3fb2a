"""What the tests of deploy/ share: the metrics of a server, and tools that may be missing."""

import os
import shutil
from collections.abc import Callable

import pytest
from exposition import Told, tell

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin")
"""Where programs are that a user's own path may lack."""


@pytest.fixture(scope="session")
def told() -> Told:
    return tell()


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """Path of a program; skips the test where it is not installed."""

    def find(name: str) -> str:
        path = shutil.which(name, path=os.pathsep.join((os.environ["PATH"], *SYSTEM_FOLDERS)))
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find
