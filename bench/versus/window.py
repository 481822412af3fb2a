"""Rates of streams that ran together, from when their tokens came. Standard library only, since
peers' interpreters run it too.

defines: Streams, rates
"""

from __future__ import annotations

Streams = list[list[float]]
"""Per stream the seconds at which its tokens came, from one common start, ascending."""


def rates(streams: Streams, prompt_tokens: int) -> dict[str, float]:
    """prefill: prompt tokens of all streams by the last first token. decode: tokens per second
    while all streams ran, from the last first token to the first end; absent where there was no
    such time. all: tokens per second from the start to the end."""
    last_first = max(times[0] for times in streams)
    first_end = min(times[-1] for times in streams)
    end = max(times[-1] for times in streams)
    found = {
        "prefill": prompt_tokens * len(streams) / last_first,
        "all": sum(len(times) for times in streams) / end,
    }
    if first_end > last_first:
        within = sum(last_first < at <= first_end for times in streams for at in times)
        found["decode"] = within / (first_end - last_first)
    return found
