"""How fast memory is read here, in a quarter of a second.

For `probe --measure`: enough to tell a good machine from a throttled one. `sublimate limits` takes
its time, uses the kernels' own loads and says what the engine can reach.

defines: read_bytes_per_s
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

WORKING_SET_BYTES = 256 << 20
"""More than the caches of most machines, shared by all threads."""
SECONDS = 0.15
PASSES_MAX = 16


def read_bytes_per_s(threads: int, available_bytes: int) -> float:
    """The fastest pass of some, each over all of the working set, in so many parts at once. 0 if
    there is no memory for it, or if the array library that does it cannot be loaded."""
    if threads < 1:
        raise ValueError("memory is read by a thread or more")
    if available_bytes < 2 * WORKING_SET_BYTES:
        return 0.0
    try:
        import numpy
    except ImportError:
        return 0.0
    words = WORKING_SET_BYTES // 8 // threads
    with ThreadPoolExecutor(threads) as pool:
        # Each thread writes its own part first: memory that was never written is one page of zeros.
        parts = list(pool.map(numpy.ones, [words] * threads, [numpy.uint64] * threads))
        fastest = float("inf")
        stop = time.perf_counter() + SECONDS
        for _ in range(PASSES_MAX):
            begin = time.perf_counter()
            greatest = list(pool.map(numpy.maximum.reduce, parts))  # 64-bit: one load, one compare
            end = time.perf_counter()
            if any(int(one) != 1 for one in greatest):
                raise ValueError("what was written was not what was read")
            fastest = min(fastest, end - begin)
            if end >= stop:
                break
    return words * threads * 8 / fastest
