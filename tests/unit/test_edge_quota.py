"""Limits of a key on a clock of the test's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.edge.errors import ApiError
from sublimate.edge.quota import Bucket, Quota
from sublimate.keys import KeyLimits


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def refused(quota: Quota, prompt_tokens: int = 1) -> tuple[str, int]:
    """(text, retry-after) of the refusal."""
    with pytest.raises(ApiError) as caught:
        quota.admit(prompt_tokens)
    assert caught.value.kind.status == 429 and caught.value.kind.type == "rate_limit_error"
    assert caught.value.retry_after_seconds is not None
    return caught.value.text, caught.value.retry_after_seconds


def header(quota: Quota, name: str) -> str:
    return dict(quota.headers())[f"anthropic-ratelimit-{name}"]


def test_requests_a_minute_refill_evenly() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=6), clock)
    for _ in range(6):
        quota.admit(10)
    text, seconds = refused(quota)
    assert text.startswith("This key's limit of 6 requests per minute") and seconds == 10
    assert header(quota, "requests-remaining") == "0"
    clock.seconds += 10
    quota.admit(10)
    assert refused(quota)[1] == 10


def test_a_bucket_holds_a_minutes_worth_whatever_the_clock_does() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=6), clock)
    quota.admit(1)
    clock.seconds += 3600
    assert header(quota, "requests-remaining") == "6"
    for left in (5, 4, 3):
        quota.admit(1)
        assert header(quota, "requests-remaining") == str(left), "no hour's worth was saved"
    clock.seconds -= 50
    assert header(quota, "requests-remaining") == "3", "a clock that goes back takes nothing"
    clock.seconds += 50 + 20
    assert header(quota, "requests-remaining") == "5"


def test_of_all_limits_that_are_reached_the_longest_wait_is_told() -> None:
    clock = Clock()
    limits = KeyLimits(requests_per_minute=60, input_tokens_per_minute=600, concurrency=1)
    quota = Quota(limits, clock)
    assert quota.places() == 1
    for _ in range(60):
        quota.admit(10).settle(0, 0)
    text, seconds = refused(quota, 100)
    assert "600 input tokens" in text and seconds == 10, "not the 1 s of the requests"
    clock.seconds += 10
    lease = quota.admit(100)
    assert quota.places() == 0
    text, seconds = refused(quota, 200)
    assert "600 input tokens" in text and seconds == 20, "not the 1 s of the place"
    text, _ = refused(quota, 0)
    assert text.startswith("This key's limit of 1 requests at once")
    lease.settle(0, 0)
    assert quota.places() == 1 and Quota(KeyLimits(), clock).places() is None


def test_input_is_charged_at_once_and_the_cached_part_given_back() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(input_tokens_per_minute=600), clock)
    lease = quota.admit(500)
    text, seconds = refused(quota, 200)
    assert "600 input tokens per minute" in text and seconds == 10
    lease.settle(cached_tokens=450, output_tokens=99)
    assert header(quota, "input-tokens-remaining") == "550"
    lease.settle(cached_tokens=450, output_tokens=99)
    assert header(quota, "input-tokens-remaining") == "550", "a lease ends once"


def test_output_is_charged_at_the_end_and_may_leave_a_debt() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(output_tokens_per_minute=60), clock)
    quota.admit(5).settle(0, 90)
    assert header(quota, "output-tokens-remaining") == "0"
    text, seconds = refused(quota)
    assert "60 output tokens" in text and seconds == 31
    clock.seconds += 31
    quota.admit(5)


def test_tokens_count_both_ways() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(tokens_per_minute=100), clock)
    quota.admit(30).settle(cached_tokens=10, output_tokens=40)
    assert header(quota, "tokens-remaining") == "40"


def test_a_prompt_above_a_minute_needs_a_full_bucket() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(input_tokens_per_minute=60), clock)
    quota.admit(300)
    assert refused(quota, 1)[1] == 241
    clock.seconds += 300
    quota.admit(300)


def test_what_was_not_computed_is_given_back() -> None:
    quota = Quota(KeyLimits(requests_per_minute=2, tokens_per_minute=100, concurrency=1), Clock())
    quota.admit(80).cancel()
    assert header(quota, "requests-remaining") == "2"
    assert header(quota, "tokens-remaining") == "100"
    quota.admit(80)


def test_requests_at_once() -> None:
    quota = Quota(KeyLimits(concurrency=2), Clock())
    first, _ = quota.admit(1), quota.admit(1)
    assert refused(quota) == ("This key's limit of 2 requests at once is reached.", 1)
    first.settle(0, 1)
    quota.admit(1)
    assert quota.headers() == []


def test_a_refusal_by_one_limit_takes_nothing_from_the_others() -> None:
    quota = Quota(KeyLimits(requests_per_minute=5, input_tokens_per_minute=10), Clock())
    quota.admit(10)
    refused(quota, 10)
    assert header(quota, "requests-remaining") == "4"


def test_new_limits_keep_what_was_used() -> None:
    clock = Clock()
    quota = Quota(KeyLimits(requests_per_minute=10), clock)
    for _ in range(4):
        quota.admit(1)
    quota.set_limits(KeyLimits(requests_per_minute=5, tokens_per_minute=7))
    assert header(quota, "requests-remaining") == "1"
    assert header(quota, "tokens-limit") == "7"
    quota.set_limits(KeyLimits())
    assert quota.headers() == []


def test_headers_name_limit_remaining_and_reset() -> None:
    quota = Quota(KeyLimits(requests_per_minute=3, output_tokens_per_minute=9), Clock())
    names = [name for name, _ in quota.headers()]
    assert names == [
        f"anthropic-ratelimit-{kind}-{field}"
        for kind in ("requests", "output-tokens")
        for field in ("limit", "remaining", "reset")
    ]
    assert header(quota, "requests-reset").endswith("Z")


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 100), st.integers(-500, 20_000)), max_size=30),
)
def test_a_bucket_is_never_above_its_capacity_and_says_when_to_come_back(
    capacity: int, events: list[tuple[float, int]]
) -> None:
    now = 0.0
    bucket = Bucket(capacity, now)
    for passed, units in events:
        now += passed
        bucket.take(units, now)
        assert bucket.level(now) <= capacity
        wait = bucket.seconds_until(1, now)
        assert bucket.level(now + wait) >= min(1, capacity) - 1e-6
        now += wait


def test_what_gives_way_leaves_a_place_and_ends_for_others() -> None:
    quota = Quota(KeyLimits(concurrency=3, requests_per_minute=60), Clock())
    ended: list[str] = []
    assert quota.spare_places() == 2
    quota.admit(1, lambda: ended.append("first"))
    second = quota.admit(1, lambda: ended.append("second"))
    assert quota.spare_places() == 0 and quota.places() == 1
    quota.admit(1)
    assert not ended, "there was a place"
    quota.admit(1)
    assert ended == ["second"] and quota.places() == 0
    second.settle(0, 5)
    assert quota.places() == 0, "its lease has ended"
    with pytest.raises(ApiError, match="too_many_at_once"):
        quota.admit(1, lambda: ended.append("third"))
    live = quota.admit(1)
    assert ended == ["second", "first"]
    with pytest.raises(ApiError, match="too_many_at_once"):
        quota.admit(1)
    assert quota.headers()[1][1] == "57", "what gave way was not charged"
    live.settle(0, 0)
    assert quota.places() == 1


def test_a_request_that_is_refused_anyway_ends_no_other() -> None:
    quota = Quota(KeyLimits(concurrency=1, requests_per_minute=1), Clock())
    assert quota.spare_places() == 1, "of one place none can be left"
    ended: list[int] = []
    quota.admit(1, lambda: ended.append(1)).cancel()
    quota.admit(1, lambda: ended.append(2))
    with pytest.raises(ApiError, match="rate_limited"):
        quota.admit(1)
    assert not ended
