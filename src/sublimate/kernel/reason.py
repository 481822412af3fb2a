"""Whether this process may load programs into this kernel, and why not: never an error, since
everything works without them.

defines: Reason, REASONS, LOADED, missing, refused
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Literal

Reason = Literal[
    "loaded", "off", "no_bpf", "old_kernel", "no_capability", "no_btf", "lockdown", "refused"
]
LOADED: Reason = "loaded"
REASONS: dict[Reason, str] = {
    "loaded": "works",
    "off": "is switched off (--no-kernel-state)",
    "no_bpf": "is not offered: this kernel or container has no bpf(2)",
    "old_kernel": "needs Linux 5.14 or newer",
    "no_capability": "is off, and nothing depends on it: it needs CAP_BPF and CAP_PERFMON, for "
    "cgroups also CAP_NET_ADMIN",
    "no_btf": "needs a kernel that describes itself (CONFIG_DEBUG_INFO_BTF)",
    "lockdown": "is refused by the kernel's lockdown mode",
    "refused": "was refused by the kernel",
}
"""What each says to an operator, after the name of the part. docs/kernel.md has the remedies."""

KERNEL_MIN = (5, 14)
CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 21, 38, 39
STATUS = Path("/proc/self/status")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
BTF = Path("/sys/kernel/btf/vmlinux")


def capabilities(status: Path = STATUS) -> int:
    """The effective ones of this process, a bit each; none where it cannot be told."""
    found = re.search(r"(?m)^CapEff:\s*([0-9a-f]+)$", _text(status))
    return int(found.group(1), 16) if found else 0


def missing(
    *, release: str | None = None, effective: int | None = None, needs_btf: bool = False
) -> Reason | None:
    """What stands in the way, as far as it can be told without trying."""
    release = os.uname().release if release is None else release
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version < KERNEL_MIN:
        return "old_kernel"
    effective = capabilities() if effective is None else effective
    needed = 1 << CAP_BPF | 1 << CAP_PERFMON
    if effective & needed != needed and not effective >> CAP_SYS_ADMIN & 1:
        return "no_capability"
    if "[confidentiality]" in _text(LOCKDOWN):
        return "lockdown"
    return "no_btf" if needs_btf and not BTF.exists() else None


def refused(error: OSError) -> Reason:
    """What the kernel's answer means."""
    return "no_bpf" if error.errno == errno.ENOSYS else "refused"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
