"""`sublimate debug`: a call with both sides of it, one request afterwards, all as it happens, and
the trace file."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from harness import Served, body, serve, wait_until
from sublimate.cli import debug
from sublimate.cli.certificate import own_certificate
from sublimate.cli.debug_text import Filter, is_shown, matches
from sublimate.cli.peer import Peer, configured_peer
from sublimate.cli.perfetto import LOOP, REQUESTS, Recorder
from sublimate.config import EdgeSettings, Effective, Settings
from sublimate.edge import limits
from sublimate.errors import ConfigError, ExitCode, PeerError

ALL = Filter()
CALLED = body("count", max_tokens=12, stream=True)


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serve(step_delay_us=1500) as served:
        yield served


@pytest.fixture(autouse=True)
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows for some seconds looks at the clock when something comes."""
    monkeypatch.setattr(limits, "FOLLOW_PING_SECONDS", 0.05)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Takes what the command prints."""
    console = Console(record=True, width=200, highlight=False, file=io.StringIO())
    monkeypatch.setattr(debug, "out", console)
    return console


def call(served: Served, **chosen: Any) -> ExitCode:
    given: dict[str, Any] = {"verbose": True, "as_json": False, "perfetto": None, **chosen}
    return debug.call(Peer(served.url), CALLED, **given)


# ---- a call of its own ---------------------------------------------------------------------------
def test_a_call_tells_both_sides_in_order(slow: Served, shown: Console) -> None:
    assert call(slow) == ExitCode.OK
    text = shown.export_text()
    assert text.startswith("0 1 2 3"), "the answer comes first"
    order = [
        "client  connects",
        "edge    POST /v1/messages over HTTP/1.1",
        "edge    tokenise:",
        "edge    shard decision: 1 shard for",
        "loop    taken:",
        "loop    admitted: prefix lookup found",
        "loop    step ",
        "edge    generate:",
        "edge    end: status 200, max_tokens, 12 tokens",
    ]
    lines = text.splitlines()
    places = [next(at for at, line in enumerate(lines) if wanted in line) for wanted in order]
    assert places == sorted(places), text
    assert all(f"client  {did}" in text for did in ("sent", "head", "first text", "last byte"))
    assert any(line.startswith("sum") and "100.0%" in line for line in lines)
    assert "cached token ranges:" in text


def test_a_call_without_details_tells_its_begin_and_end(slow: Served, shown: Console) -> None:
    assert call(slow, verbose=False) == ExitCode.OK
    text = shown.export_text()
    assert "client  connects" in text and "client  last byte" in text
    assert "client  sent" not in text


def test_a_call_that_is_refused_is_told_too(slow: Served, shown: Console) -> None:
    asked = {**CALLED, "max_tokens": -1}
    code = debug.call(Peer(slow.url), asked, verbose=False, as_json=False, perfetto=None)
    assert code == ExitCode.PEER
    text = shown.export_text()
    assert "max_tokens" in text and "end: status 400, field" in text


def test_a_call_as_json(slow: Served, shown: Console) -> None:
    assert call(slow, as_json=True) == ExitCode.OK
    told = msgspec.json.decode(shown.export_text())
    assert told["client"][0]["text"] == "connects"
    assert told["server"]["answer"]["output_tokens"] == 12
    assert told["client"][0]["ns"] <= told["server"]["began_ns"] <= told["client"][-1]["ns"]


# ---- one request ---------------------------------------------------------------------------------
@pytest.fixture
def unfollowed() -> Iterator[Served]:
    """A server whose loop nobody has followed, which it would go on to trace for a while."""
    with serve() as served:
        yield served


def test_one_request_afterwards(unfollowed: Served, shown: Console) -> None:
    request_id = unfollowed.message("say hello").headers["request-id"]
    path = f"/v1/debug/requests/{request_id}"
    wait_until(lambda: unfollowed.client.get(path).status_code == 200)
    peer = Peer(unfollowed.url)
    assert debug.show(peer, request_id, as_json=False, perfetto=None) == ExitCode.OK
    text = shown.export_text()
    assert request_id in text and "first_token" in text
    assert "Nobody followed while it ran" in text
    debug.show(peer, request_id, as_json=True, perfetto=None)
    assert msgspec.json.decode(shown.export_text())["id"] == request_id
    with pytest.raises(PeerError, match="There is no request of yours"):
        debug.show(peer, "req_none", as_json=False, perfetto=None)


# ---- follow --------------------------------------------------------------------------------------
def ask_twice(served: Served) -> threading.Thread:
    """Once somebody follows who did not before: the server may still know of an earlier one."""
    stories = served.server.stories
    earlier = served.call(lambda: list(stories._followers))

    def has_another() -> bool:
        return any(one not in earlier for one in stories._followers)

    def ask() -> None:
        wait_until(lambda: served.call(has_another))
        served.message("count", max_tokens=200)
        served.message("count", max_tokens=-1)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def followed(served: Served, chosen: Filter = ALL, **given: Any) -> None:
    thread = ask_twice(served)
    options: dict[str, Any] = {"as_json": False, "perfetto": None, "seconds": 1.0, **given}
    assert debug.follow(Peer(served.url), chosen, **options) == ExitCode.OK
    thread.join()


def test_following_shows_what_happens(slow: Served, shown: Console) -> None:
    followed(slow)
    text = shown.export_text()
    assert text.count("POST /v1/messages") == 2
    assert "admitted: prefix lookup" in text and "end: status 400, field" in text
    assert "1 token at" not in text, "decode steps only with --steps"


@pytest.mark.parametrize(
    ("chosen", "ends"),
    [
        (Filter(errors=True), ["status 400"]),
        (Filter(slow_ms=250), ["status 200"]),
        (Filter(path="/v1/chat"), []),
        (Filter(steps=True), ["status 200", "status 400"]),
    ],
)
def test_filters(slow: Served, shown: Console, chosen: Filter, ends: list[str]) -> None:
    followed(slow, chosen)
    text = shown.export_text()
    found = [end for end in ("status 200", "status 400") if f"end: {end}" in text]
    assert found == ends
    assert ("1 token at" in text) == chosen.steps


def test_following_as_json_and_into_a_trace(slow: Served, shown: Console, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    followed(slow, as_json=True, perfetto=path)
    lines = [msgspec.json.decode(line) for line in shown.export_text().splitlines()]
    assert {line["event"] for line in lines} >= {"server", "request", "loop", "story"}
    check_trace(path.read_bytes())


def test_filters_by_themselves() -> None:
    answer = {"status": 200, "end": "max_tokens"}
    story = {"state": "ended", "request": {"path": "/v1/messages"}, "end_to_end_ms": 12.0}
    whole = {**story, "answer": answer}
    assert matches(whole, ALL) and not matches(whole, Filter(errors=True))
    cut = {**story, "answer": {"status": 200, "end": "client_gone"}}
    assert matches(cut, Filter(errors=True)) and not matches(cut, Filter(slow_ms=13))
    runs = {**whole, "state": "running"}
    assert matches(runs, ALL) and not matches(runs, Filter(slow_ms=1))
    late = {"what": "part", "prompt_rows": 0, "sampled": 0}
    assert is_shown(late, ALL) and not is_shown({**late, "sampled": 1}, ALL)
    assert is_shown({"what": "step"}, Filter(steps=True))
    assert not is_shown({"what": "published"}, Filter(steps=True))


# ---- the trace -----------------------------------------------------------------------------------
def check_trace(data: bytes) -> list[dict[str, Any]]:
    """As the format has it: slices of one track lie in or beside each other."""
    whole = msgspec.json.decode(data)
    assert whole["displayTimeUnit"] == "ms"
    events = whole["traceEvents"]
    slices: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= event.keys()
        if event["ph"] == "X":
            end = event["ts"] + event["dur"]
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], end))
        elif event["ph"] == "C":
            assert isinstance(event["args"]["value"], int)
    for track in slices.values():
        open_ends: list[float] = []
        for begin, end in sorted(track, key=lambda times: (times[0], -times[1])):
            while open_ends and open_ends[-1] <= begin + 0.001:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.001, (begin, end, open_ends)
            open_ends.append(end)
    return events


def test_a_trace_has_a_track_per_request_and_one_for_the_loop(
    slow: Served, shown: Console, tmp_path: Path
) -> None:
    path = tmp_path / "call.json"
    call(slow, perfetto=path)
    events = check_trace(path.read_bytes())
    named = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"resident loop", "requests", "steps"} < named
    assert any("/v1/messages req_" in name for name in named)
    steps = [e for e in events if e["ph"] == "X" and e["pid"] == LOOP]
    assert len({e["args"]["step"] for e in steps}) == len(steps) >= 12
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert counters == {"rows", "KV pages in use", "requests that wait"}
    names = [e["name"] for e in events if e["pid"] == REQUESTS and e["ph"] == "X"]
    assert "first_token" in names and names.count("decode") == 11 and "prefill" in names
    assert shown.export_text()
    with pytest.raises(PeerError, match="cannot be written"):
        call(slow, perfetto=tmp_path / "absent" / "trace.json")


def test_a_slice_cannot_end_before_it_begins() -> None:
    recorder = Recorder()
    step = {"what": "step", "ns": 5, "step": 1, "took_ns": -1, "prompt_rows": 0}
    with pytest.raises(ValueError, match="ends before it begins"):
        recorder.told("", step)


def test_an_error_is_told_in_its_words(slow: Served, shown: Console) -> None:
    wrong = {**CALLED, "max_tokens": -1}
    debug.call(Peer(slow.url), wrong, verbose=False, as_json=False, perfetto=None)
    assert shown.export_text().startswith("max_tokens: ")


def test_https_wants_a_certificate_that_is_named(tmp_path: Path, shown: Console) -> None:
    """Or that the user's own server has made, in its data folder."""
    pem, key = own_certificate(tmp_path / "tls")
    edge = EdgeSettings(tls_certificate=str(pem), tls_key=str(key), data_dir=str(tmp_path))
    with serve(settings=edge, tls=True) as secure:
        url = secure.server.tls_info["https"]
        settings = Effective(Settings(edge=edge), {})
        for peer in (Peer(url, certificate=pem), configured_peer(settings, url)):
            assert debug.call(peer, CALLED, verbose=False, as_json=False, perfetto=None) == 0
        for ask in (lambda: debug.Stream(Peer(url)), lambda: Peer(url).ask("/readyz")):
            with pytest.raises(PeerError, match="--cacert FILE"):
                ask()
    with pytest.raises(ConfigError, match="no file with certificates"):
        Peer(url, certificate=tmp_path / "absent.pem")


# ---- servers that are none -----------------------------------------------------------------------
def test_a_server_that_does_not_tell(shown: Console) -> None:
    with serve(settings=EdgeSettings(api_keys=("secret",))) as locked:
        refused = "does not tell what it does: A valid API key is needed, in x-api-key or"
        with pytest.raises(PeerError, match=refused):
            debug.follow(Peer(locked.url), ALL, as_json=False, perfetto=None, seconds=1)
        with pytest.raises(PeerError, match="wants a key"):
            debug.show(Peer(locked.url), "req_1", as_json=False, perfetto=None)
        url = locked.url
    with pytest.raises(PeerError, match="No server is ready at"):
        debug.follow(Peer(url), ALL, as_json=False, perfetto=None, seconds=1)
    assert shown.export_text() == ""
