"""The torture's verdict: an engine that ends has to say why, and faulthandler does not say it."""

import pytest

from torture.verdict import judged, words_of

TRACE = """Fatal Python error: Aborted

Thread 0x00007f81ed39a6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  ...

Current thread 0x00007f81ede13b80 (most recent call first):
  <no Python frame>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python3", at _Py_DumpStack+0x2f [0x5d]
  <truncated rest of calls>

Extension modules: numpy._core._multiarray_umath, yaml._yaml (total: 2)
"""
CRASH = TRACE.replace("Aborted", "Segmentation fault")
SEND = '  File "/src/sublimate/control/channel.py", line 90 in send\n'


@pytest.mark.parametrize(
    ("result", "said", "verdict"),
    [
        ("answered", "", "answered"),
        ("refused (load_failed)", "", "refused (load_failed)"),
        ("ended (exit code 1)", "MemoryError\n", "ended (exit code 1)"),
        ("ended (exit code 1)", " \n", "WRONG: silently ended (exit code 1)"),
        ("ended (SIGABRT)", TRACE, "WRONG: silently ended (SIGABRT)"),
        ("ended (SIGABRT)", "", "WRONG: silently ended (SIGABRT)"),
        ("ended (SIGABRT)", f"CHECK failed: x > 0\n{TRACE}", "ended (SIGABRT)"),
        ("ended (SIGABRT)", f"Fatal Python error: gc: no memory\n{TRACE}", "ended (SIGABRT)"),
        ("ended (SIGSEGV)", f"words\n{CRASH}", "WRONG: ended (SIGSEGV)"),
        ("ended (SIGSEGV)", CRASH + SEND, "ended (SIGSEGV)"),
        ("ended (SIGKILL)", "", "WRONG: ended (SIGKILL)"),
        ("WRONG: hang", TRACE, "WRONG: hang"),
    ],
)
def test_an_end_is_worth_what_the_engine_says_of_it(result: str, said: str, verdict: str) -> None:
    assert judged(result, said) == verdict


def test_an_exceptions_own_line_is_not_faulthandlers() -> None:
    said = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\n'
    assert words_of(said + TRACE).splitlines()[-1] == "MemoryError"
