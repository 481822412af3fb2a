"""The version that this server tells.

defines: package_version
"""

from __future__ import annotations

from importlib import metadata


def package_version() -> str:
    """Of the installed package; of a tree of sources, 0.0.0+source."""
    try:
        return metadata.version("sublimate")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"
