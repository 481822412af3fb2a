"""A circuit: opens by failures, closes by one probe, waits longer after each that failed."""

import pytest

from sublimate.guard.circuit import OPEN_SECONDS_MAX, PROBE_SECONDS, Circuit


def test_failures_in_a_row_open_it_and_an_answer_between_them_does_not() -> None:
    circuit = Circuit()
    for _ in range(5):
        circuit.failed(0.0)
        circuit.failed(0.0)
        assert circuit.let(0.0) and circuit.state == "closed"
        circuit.succeeded()
    for _ in range(3):
        circuit.failed(10.0)
    assert circuit.state == "open" and not circuit.let(10.9) and not circuit.would_let(10.9)


def test_one_request_probes_and_its_answer_closes() -> None:
    circuit = Circuit()
    circuit.trip(0.0)
    assert circuit.would_let(1.0) and circuit.let(1.0)
    assert circuit.state == "half_open"
    assert not circuit.let(1.1), "one is enough"
    circuit.succeeded()
    assert circuit.state == "closed" and circuit.let(1.2)


def test_each_probe_that_fails_doubles_the_wait_to_a_limit() -> None:
    circuit = Circuit()
    circuit.trip(0.0)
    now, waits = 0.0, []
    for _ in range(9):
        begin = now
        while not circuit.let(now):
            now += 0.5
        waits.append(now - begin)
        circuit.failed(now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60] and waits[-1] == OPEN_SECONDS_MAX
    while not circuit.let(now):
        now += 0.5
    circuit.succeeded()
    circuit.trip(now)
    assert circuit.would_let(now + 1.0), "it begins anew"


def test_a_probe_that_tells_nothing_does_not_keep_it_open() -> None:
    circuit = Circuit()
    circuit.trip(0.0)
    assert circuit.let(1.0)
    circuit.gave_up(1.5)
    assert circuit.state == "open" and circuit.let(1.5), "whoever comes next probes"
    assert not circuit.let(1.5 + PROBE_SECONDS - 0.1)
    assert circuit.let(1.5 + PROBE_SECONDS), "a probe that was lost"
    with pytest.raises(ValueError, match="opens"):
        Circuit(failures_max=0)
