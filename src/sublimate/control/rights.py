"""What a child gives up before it reads a client's byte: the rights that only the supervisor needs,
to load programs into the kernel. Those to files and devices stay: root's server reads root's files.

defines: GIVEN_UP, give_up_rights
"""

from __future__ import annotations

import ctypes

# Of linux/capability.h. Who has CAP_SYS_ADMIN needs neither of the others.
CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 12, 21, 38, 39
GIVEN_UP = (CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF)
PR_CAPBSET_DROP = 24
VERSION_3 = 0x20080522
WORD_BITS = 32
WORDS = 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("process_id", ctypes.c_int))


class _Sets(ctypes.Structure):
    """Word by word: each has 32 capabilities of each set."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def give_up_rights() -> None:
    """Of this thread, the process's only one, and of all that it starts; for ever. Does nothing for
    a process that has none of them. What the kernel does not let go stays: it is its own rule."""
    library = ctypes.CDLL(None, use_errno=True)
    header = _Header(VERSION_3, 0)
    sets = (_Sets * WORDS)()
    if library.capget(ctypes.byref(header), ctypes.byref(sets)) != 0:
        return
    # First the bound on what a program that is executed may get, which needs CAP_SETPCAP.
    for capability in GIVEN_UP:
        library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    for capability in GIVEN_UP:
        word, bit = divmod(capability, WORD_BITS)
        for name in ("effective", "permitted", "inheritable"):
            setattr(sets[word], name, getattr(sets[word], name) & ~(1 << bit))
    library.capset(ctypes.byref(header), ctypes.byref(sets))
