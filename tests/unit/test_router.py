"""Which engine a request goes to: the pure decision."""

import random

import pytest

from sublimate.edge.router import RUNNING_TOKENS, Candidate, choose


def test_the_longest_prefix_wins_and_without_one_the_near_engine() -> None:
    near, far = Candidate(is_near=True), Candidate()
    assert choose(100, [far, near]) == 1 and choose(100, [near, far]) == 0
    assert choose(100, [near, Candidate(cached_tokens=64)]) == 1
    assert choose(100, [Candidate(cached_tokens=96), Candidate(cached_tokens=64)]) == 0
    assert choose(100, [far, far]) == 0
    with pytest.raises(ValueError, match="no engine"):
        choose(100, [])


def test_an_engine_that_is_busy_for_longer_than_its_prefix_saves_is_left() -> None:
    idle = Candidate()
    for unread in range(0, 500, 100):
        holder = Candidate(cached_tokens=300, unread_tokens=unread)
        assert choose(400, [idle, holder]) == (1 if unread < 300 else 0)
    running = 300 // RUNNING_TOKENS
    assert choose(400, [idle, Candidate(cached_tokens=300, running=running)]) == 1
    assert choose(400, [idle, Candidate(cached_tokens=300, running=running + 1)]) == 0


def test_figures_that_cannot_be_are_refused() -> None:
    for wrong in ({"cached_tokens": -1}, {"unread_tokens": -1}, {"running": -1}):
        with pytest.raises(ValueError, match="nothing"):
            Candidate(**wrong)


def test_a_full_engine_is_the_last_choice() -> None:
    full = Candidate(cached_tokens=4000, is_full=True, is_near=True)
    busy = Candidate(unread_tokens=10_000, running=128)
    assert choose(4000, [full, busy]) == 1
    assert choose(4000, [full, full]) == 0


def test_the_choice_is_the_least_work_of_all() -> None:
    draw = random.Random(5)
    for _ in range(200):
        many = [
            Candidate(
                cached_tokens=draw.randrange(0, 500),
                unread_tokens=draw.randrange(300),
                running=draw.randrange(4),
            )
            for _ in range(draw.randrange(1, 6))
        ]
        chosen = many[choose(400, many)]
        assert all(chosen.work(400) <= one.work(400) for one in many)
