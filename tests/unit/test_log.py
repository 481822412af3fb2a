"""Lines of the log that repeat: one a second at most, with a count."""

import asyncio
import logging

import pytest

from sublimate.edge.exchange import new_identifier
from sublimate.edge.observe.log import REPEAT_SECONDS, REPEATS_KEPT_MAX, REQUESTS, Repeats

LOG = logging.getLogger("sublimate.test")


class Lines(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(text: str, *args: object, name: str = LOG.name) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, __file__, 1, text, args, None)


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def repeats(lines: Lines, clock: Clock) -> Repeats:
    return Repeats(lines, clock)


def test_f71_a_repeated_line_is_written_once_and_then_counted(
    repeats: Repeats, lines: Lines, clock: Clock
) -> None:
    for _ in range(1000):
        repeats.handle(record("refused: %d are open", 5))
    assert lines.texts == ["refused: 5 are open"]
    clock.now += REPEAT_SECONDS
    repeats.handle(record("another"))
    assert lines.texts[1:] == ["refused: 5 are open (999 more like this)", "another"]
    clock.now += 2 * REPEAT_SECONDS
    repeats.handle(record("refused: %d are open", 5))
    assert lines.texts[3:] == ["refused: 5 are open"], "a new one is written at once"


def test_f71_a_flood_that_lasts_is_one_line_a_second(
    repeats: Repeats, lines: Lines, clock: Clock
) -> None:
    for _ in range(1000):
        clock.now += 0.01
        repeats.handle(record("again"))
    assert 10 <= len(lines.texts) <= 11


def test_f71_lines_are_alike_whatever_their_request(repeats: Repeats, lines: Lines) -> None:
    for _ in range(10):
        repeats.handle(record("%s: a handler failed with %s", new_identifier("req"), "A"))
    repeats.handle(record("%s: a handler failed with %s", new_identifier("req"), "B"))
    assert len(lines.texts) == 2 and lines.texts[1].endswith("B")


def test_f71_every_answered_request_has_its_line(repeats: Repeats, lines: Lines) -> None:
    for _ in range(10):
        repeats.handle(record("GET /", name=REQUESTS.name))
    assert len(lines.texts) == 10


def test_f71_a_traceback_is_written_once(repeats: Repeats, lines: Lines, clock: Clock) -> None:
    for _ in range(3):
        failed = record("failed")
        failed.exc_info = (ValueError, ValueError("x"), None)
        repeats.handle(failed)
    clock.now += REPEAT_SECONDS
    repeats.write_due()
    assert [bool(each.exc_info) for each in lines.records] == [True, False]


def test_f71_the_kinds_that_are_kept_are_bounded(repeats: Repeats, lines: Lines) -> None:
    for number in range(10 * REPEATS_KEPT_MAX):
        repeats.handle(record("about %d", number))
    assert len(repeats._kept) <= REPEATS_KEPT_MAX + 1 and len(lines.texts) <= REPEATS_KEPT_MAX + 1


def test_f71_counts_are_written_at_the_end(repeats: Repeats, lines: Lines) -> None:
    for _ in range(3):
        repeats.handle(record("again"))
    repeats.close()
    assert lines.texts == ["again", "again (2 more like this)"]


async def test_f71_the_count_needs_no_further_line(lines: Lines) -> None:
    repeats = Repeats(lines)
    for _ in range(3):
        repeats.handle(record("again"))
    for _ in range(100):
        await asyncio.sleep(REPEAT_SECONDS / 4)
        if len(lines.texts) == 2:
            break
    assert lines.texts == ["again", "again (2 more like this)"]
    repeats.close()
