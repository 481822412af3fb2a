"""What the end of an engine under torture is worth: one that says nothing is wrong, and the trace
that faulthandler writes for every signal is no word of the engine's.

defines: words_of, judged
"""

import re

KNOWN = r"channel\.py\", line \d+ in send"
"""Where a crash is not ours: msgspec's encoder, when its buffer cannot grow (msgspec 0.23)."""
TRACE = re.compile(
    r"Fatal Python error: (Aborted|Segmentation fault|Bus error|Illegal instruction"
    r"|Floating point exception)"
    r"|(Current thread|Thread) 0x[0-9a-f]+ .*|Current thread's C stack trace .*"
    r"|  (File|Binary file) .*|  \.\.\.|  <.*>|Extension modules: .*"
)
"""A line of faulthandler's (Python 3.11 to 3.14)."""


def words_of(said: str) -> str:
    """What is left without faulthandler's lines."""
    lines = [line for line in said.splitlines() if not TRACE.fullmatch(line.rstrip())]
    return "\n".join(lines).strip()


def judged(result: str, said: str) -> str:
    """The result, with WRONG before one that must not be."""
    if "(SIG" in result and "SIGABRT" not in result:
        return result if re.search(KNOWN, said) else f"WRONG: {result}"
    if result.startswith("ended") and not words_of(said):
        return f"WRONG: silently {result}"
    return result
