"""The soak's verdict: what breathes is flat, what leaks grows."""

import random

import pytest

from soak.figures import KIB, Sample, picture, table, trend

MINUTES, MIB = 14, 1 << 20


def samples(slope_kib: float = 0.0, descriptors: int = 0) -> list[Sample]:
    """Four a minute, of a process of 80 MiB that breathes by half a MiB; until `descriptors` more
    are held at the end."""
    draw = random.Random(1)
    made: list[Sample] = []
    for number in range(4 * MINUTES):
        minutes = number / 4
        memory = 80 * MIB + round(minutes * slope_kib * KIB) + draw.randrange(MIB // 2)
        held = 40 + round(descriptors * minutes / MINUTES)
        made.append(Sample(60 * minutes, "edge", 7, memory, held, 5))
    return made


def test_a_process_that_breathes_is_flat() -> None:
    found = trend(samples(), "edge", 0.0)
    assert not found.grows and abs(found.slope_kib_per_minute) < 20
    assert "| flat |" in table([found])


@pytest.mark.parametrize(("slope_kib", "descriptors"), [(300.0, 0), (0.0, 12)])
def test_what_leaks_grows(slope_kib: float, descriptors: int) -> None:
    found = trend(samples(slope_kib, descriptors), "edge", 0.0)
    assert found.grows and "**grows**" in table([found])
    assert abs(found.slope_kib_per_minute - slope_kib) < 20


def test_only_the_process_that_lived_to_the_end_counts() -> None:
    before = [Sample(n, "edge", 6, 10 * MIB, 9, 5) for n in range(20)]
    later = [Sample(100 + one.at_seconds, "edge", 7, one.memory_bytes, 40, 5) for one in samples()]
    assert trend(before + later, "edge", 0.0).samples == 4 * MINUTES
    with pytest.raises(ValueError, match="tell nothing"):
        trend(before[:5], "edge", 0.0)


def test_the_picture_has_a_panel_for_each_role_and_a_line_for_each_kill() -> None:
    drawn = picture(samples(), [(60.0, "edge"), (90.0, "engine")])
    assert drawn.count("stroke-dasharray") == 1 and "edge: RssAnon" in drawn
