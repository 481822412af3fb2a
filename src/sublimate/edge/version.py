"""The version that this server tells.

defines: package_version
"""

from __future__ import annotations

import contextlib
import os
import sys

BEGIN, END = "sublimate-", ".dist-info"


def package_version() -> str:
    """Of the installed package; of a tree of sources, 0.0.0+source.

    By the name of the folder that every installer leaves beside a package, as importlib.metadata
    has it: to load that takes a start longer than to look.
    """
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or os.curdir):
                if name.startswith(BEGIN) and name.endswith(END):
                    return name[len(BEGIN) : -len(END)]
    return "0.0.0+source"
