"""Cases of messages_api.jsonl that a text server can meet, one check each."""

import asyncio
import itertools
import re
import threading
import time
from typing import Any

import httpx

from cases import case, request_of
from grammar import check_stream, parse_events, prompt_tokens
from harness import Served, body, exchange_bytes, http_get, http_post, serve, wait_until
from sublimate.config import EdgeSettings
from sublimate.edge.limits import HttpLimits
from test_errors import FIELD_ERRORS, check_error
from test_template import STRICT, strict_model

TOO_LONG = re.compile(r"^prompt is too long: \d+ tokens > \d+ maximum$")


def ask(served: Served, request: dict[str, Any], path: str = "/v1/messages") -> httpx.Response:
    return served.client.post(path, json=request)


def answered(served: Served, request: dict[str, Any]) -> dict[str, Any]:
    reply = ask(served, request)
    assert reply.status_code == 200, reply.text
    return reply.json()


def count(served: Served, request: dict[str, Any]) -> int:
    reply = ask(served, request, "/v1/messages/count_tokens")
    assert reply.status_code == 200, reply.text
    return reply.json()["input_tokens"]


# ---- system turns and prefixes -------------------------------------------------------------------
@case("A01")
def system_turns_are_taken_anywhere(served: Served) -> None:
    for content in ("Available agents: none.", [{"type": "text", "text": "Available agents."}]):
        request = request_of("A01")
        request["messages"][1]["content"] = content
        answered(served, request)
        request["messages"].append({"role": "user", "content": "go on"})
        answered(served, request)


@case("A03")
def a_strict_template_is_the_servers_concern(served: Served) -> None:
    del served
    model = strict_model()
    with serve(model=model, answers={}) as strict:
        request = request_of("A03", max_tokens=300, ignore_eos=True)
        shown = answered(strict, request)["content"][0]["text"]
        assert shown.index("b") < shown.index("c") < shown.rindex("d")
        assert "raise_exception" in STRICT


@case("A04")
def role_system_is_no_invalid_discriminator(served: Served) -> None:
    answered(served, request_of("A04"))


def prefix_of_next_turn(served: Served, first: dict[str, Any], second: dict[str, Any]) -> None:
    tokens = count(served, first)
    generation = len("<|im_start|>assistant\n") - len("<|im_start|>") + 1
    answered(served, first)
    read = answered(served, second)["usage"]["cache_read_input_tokens"]
    whole_pages = (tokens - generation) // 32 * 32
    assert read >= whole_pages, (read, whole_pages)


@case("A06")
def the_next_turn_extends_this_one(served: Served) -> None:
    first, second = request_of("A06", 0), request_of("A06", 1)
    long = "hi " * 400
    for request in (first, second):
        request["messages"][0]["content"] = long
    prefix_of_next_turn(served, first, second)
    assert count(served, first) * 0.95 < count(served, first) - 31


@case("A08")
def the_template_is_probed_once(served: Served) -> None:
    assert "in-place" in served.client.get("/version").json()["template"]
    assert "in-place" in served.client.get("/v1/models/tiny").json()["template"]
    with serve(model=strict_model()) as strict:
        assert "folded" in strict.client.get("/version").json()["template"]
        for each in (served, strict):
            first = request_of("A08")
            first["messages"][0]["content"] = "hi " * 200
            second = {
                **first,
                "messages": [
                    *first["messages"],
                    {"role": "assistant", "content": "ok"},
                    {"role": "user", "content": "next"},
                ],
            }
            prefix_of_next_turn(each, first, second)


@case("A09", "A95")
def the_billing_line_is_dropped(served: Served) -> None:
    for identifier in ("A09", "A95"):
        request = request_of(identifier)
        line, rest = request["system"]
        other = {**line, "text": line["text"].replace("2.1", "9.9").replace("abc", "def")}
        counts = {
            count(served, {**request, "system": system})
            for system in ([line, rest], [other, rest], [rest])
        }
        assert len(counts) == 1
    long = {"type": "text", "text": "LONG SYSTEM " * 60}
    answered(served, {**request, "system": [line, long]})
    second = answered(served, {**request, "system": [other, long]})
    assert second["usage"]["cache_read_input_tokens"] > 600


@case("A11")
def a_replay_keeps_the_cache_up_to_its_last_user_turn(served: Served) -> None:
    request = request_of("A11")
    request["messages"][0]["content"] = "q " * 300
    thinking = {"type": "thinking", "thinking": "hm", "signature": "foreign"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    with_thinking = {**request, "messages": [dict(turn) for turn in request["messages"]]}
    with_thinking["messages"][1]["content"] = [thinking, redacted, {"type": "text", "text": "a"}]
    first = {**request, "messages": request["messages"][:1]}
    prefix_of_next_turn(served, first, request)
    assert count(served, with_thinking) == count(served, request)


@case("A14")
def the_cache_goes_by_content(served: Served) -> None:
    shared_part = "common ground " * 250

    def tail(number: int) -> dict[str, Any]:
        turns = [{"role": "user", "content": shared_part + f"tail {number}"}]
        return body(messages=turns, metadata={"user_id": "same"})

    answered(served, tail(9))
    reads: list[int] = []

    def run(number: int) -> None:
        reads.append(answered(served, tail(number))["usage"]["cache_read_input_tokens"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 4 and min(reads) > len(shared_part) - 64


# ---- access and routes ---------------------------------------------------------------------------
@case("A15")
def both_key_headers(served: Served) -> None:
    del served
    with serve(settings=EdgeSettings(api_keys=("K",))) as locked:
        for headers in ({"x-api-key": "K"}, {"authorization": "Bearer K"}):
            reply = locked.client.post("/v1/messages", json=body(), headers=headers)
            assert reply.status_code == 200
        for headers in ({}, {"x-api-key": "k"}, {"authorization": "Bearer KK"}):
            check_error(locked.client.post("/v1/messages", json=body(), headers=headers), 401)


@case("A17")
def head_of_the_root(served: Served) -> None:
    for method in ("HEAD", "GET"):
        reply = served.client.request(method, "/")
        assert reply.status_code in (200, 204) and reply.content == b""


@case("A19")
def the_query_does_not_route(served: Served) -> None:
    assert ask(served, body(), "/v1/messages?beta=true").status_code == 200
    assert ask(served, body(), "/v1/messages/count_tokens?beta=true&x=1").status_code == 200
    check_error(ask(served, body(), "/v1/unknown?beta=true"), 404)


@case("A20")
def a_doubled_prefix_names_its_cure(served: Served) -> None:
    error = check_error(ask(served, body(), "/v1/v1/messages"), 404)
    assert "base URL: remove /v1" in error["message"]


@case("A21")
def models_for_gateway_discovery(served: Served) -> None:
    begun = time.monotonic()
    reply = served.client.get("/v1/models?limit=1000", headers={"anthropic-version": "2023-06-01"})
    assert time.monotonic() - begun < 3 and reply.status_code == 200
    page = reply.json()
    wanted = {"id", "display_name", "created_at", "type", "lifecycle", "max_input_tokens"}
    assert all(wanted | {"max_tokens", "capabilities"} <= set(entry) for entry in page["data"])
    assert {"has_more", "first_id", "last_id"} <= set(page)
    assert any("claude" in entry["id"] for entry in page["data"])
    other = served.client.get("/v1/models").json()
    assert other["object"] == "list" and other["data"][0]["object"] == "model"
    assert type(other["data"][0]["created"]) is int and other["data"][0]["owned_by"]


@case("A23", "A33")
def the_served_context_is_told(served: Served) -> None:
    del served
    for context, pages in ((1024, 4096), (8192, 16)):
        with serve(context_tokens=context, pages=pages) as small:
            real = min(context, pages * 32)
            assert small.client.get("/v1/models/tiny").json()["max_input_tokens"] == real
            assert small.client.get("/v1/models").json()["data"][0]["max_tokens"] == real
            request = body("x" * (real + 1), max_tokens=1)
            text = check_error(ask(small, request), 400)["message"]
            assert text.endswith(f"> {real} maximum")


@case("A24")
def preflight(served: Served) -> None:
    del served
    asked = "x-api-key,anthropic-version,anthropic-beta,anthropic-dangerous-direct-browser-access"
    with serve(settings=EdgeSettings(cors_origins=("https://ok.test",))) as listed:
        for origin, status in (("https://ok.test", 204), ("https://other.test", 403)):
            headers = {"origin": origin, "access-control-request-headers": asked}
            reply = listed.client.options("/v1/messages", headers=headers)
            assert reply.status_code == status
            allowed = reply.headers.get("access-control-allow-headers", "").split(", ")
            assert (set(asked.split(",")) <= set(allowed)) == (status == 204)


@case("A25")
def a_pause_on_one_connection(served: Served) -> None:
    assert HttpLimits().keep_alive_seconds >= 120
    with served.connect() as sock:
        assert exchange_bytes(sock, http_post(body())).status == 200
        time.sleep(6)  # longer than the default of the server that the case is about
        assert exchange_bytes(sock, http_post(body())).status == 200
        reply = exchange_bytes(sock, http_get("/livez", connection="close"))
        assert reply.headers["connection"] == "close"


# ---- errors and context --------------------------------------------------------------------------
@case("A27")
def one_envelope_for_every_error(served: Served) -> None:
    text = check_error(ask(served, request_of("A27")), 400, "max_tokens: ")["message"]
    assert "'" not in text and "<" not in text
    assert len(FIELD_ERRORS) >= 20
    for wanted, request in FIELD_ERRORS:
        check_error(ask(served, request), 400, wanted)


@case("A29", "A30", "A32")
def too_long_is_refused_before_the_first_byte(served: Served) -> None:
    for identifier in ("A29", "A30", "A32"):
        reply = ask(served, request_of(identifier))
        assert reply.headers["content-type"] == "application/json"
        assert TOO_LONG.match(check_error(reply, 400)["message"])


@case("A36")
def a_large_limit_is_clamped(served: Served) -> None:
    request = request_of("A36")
    request["messages"][0]["content"] = "say hello"
    folded = check_stream(ask(served, request).content)
    assert folded.message["stop_reason"] == "end_turn" and folded.text == "Hello there!"


@case("A37", "A40")
def stop_sequences_are_reported(served: Served) -> None:
    for identifier in ("A37", "A40"):
        request = request_of(identifier)
        request["messages"][0]["content"] = "say stop"
        streamed = check_stream(ask(served, {**request, "stream": True}).content).message
        for message in (answered(served, request), streamed):
            assert message["stop_reason"] == "stop_sequence"
            assert message["stop_sequence"] == "STOP"
            assert message["content"] == [{"type": "text", "text": "A B "}]


# ---- streams -------------------------------------------------------------------------------------
@case("A41", "A46", "A49")
def the_stream_contract(served: Served) -> None:
    for identifier in ("A41", "A46", "A49"):
        for asked in ("say hello", "say nothing", "say utf8", "count"):
            request = request_of(identifier)
            request["messages"][0]["content"] = asked
            check_stream(ask(served, request).content)


@case("A47")
def a_block_opens_with_content_and_closes(served: Served) -> None:
    request = request_of("A47")
    request["messages"][0]["content"] = "say nothing"
    events = parse_events(ask(served, request).content)
    assert [event.type for event in events] == ["message_start", "message_delta", "message_stop"]
    request["messages"][0]["content"] = "say hello"
    types = [event.type for event in parse_events(ask(served, request).content)]
    assert types.count("content_block_start") == types.count("content_block_stop") == 1


@case("A50")
def characters_stay_whole(served: Served) -> None:
    request = request_of("A50")
    request["messages"][0]["content"] = "say utf8"
    whole = answered(served, {**request, "stream": False})["content"][0]["text"]
    with serve(step_delay_us=2000) as slow:  # one token, that is one byte, an event
        folded = check_stream(ask(slow, request).content)
    assert folded.text == whole and "\ufffd" not in whole and "😸 你好 é" in whole


@case("A52", "A54", "A57")
def bytes_during_a_long_prefill(served: Served) -> None:
    """A prefill of seconds with pings every fraction: the same ratio as a minute with 10 s."""
    del served
    with serve(prefill_delay_us_per_token=2000, limits=HttpLimits(ping_seconds=0.2)) as slow:
        request = request_of("A57")
        request["messages"][0]["content"] = "x" * 3200
        with slow.connect() as sock:
            sock.sendall(http_post(request))
            times = [time.monotonic()]
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += sock.recv(65536)
                times.append(time.monotonic())
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert max(gaps) < 4 and gaps[0] < 3, "the prefill takes more than six seconds"
        assert b'event: ping\ndata: {"type": "ping"}\n\n' in received
        assert slow.client.get("/metrics").text.count("sublimate_pings_total{") == 1


@case("A55", "A58", "A60")
def a_closed_socket_frees_its_slot(served: Served) -> None:
    del served
    for identifier in ("A55", "A58", "A60"):
        with serve(step_delay_us=1000, prefill_delay_us_per_token=100) as slow:
            request = request_of(identifier)
            request["messages"][0]["content"] = "x" * 2000 if identifier == "A55" else "count"
            request["max_tokens"] = 3000
            with slow.connect() as sock:
                sock.sendall(http_post(request))
                wait_until(lambda: slow.region.stats()["running"] == 1)
            wait_until(slow.idle)
            stats = slow.region.stats()
            assert stats["finished"] == stats["cancelled_prefill"] + stats["cancelled_decode"] == 1


# ---- concurrency and usage -----------------------------------------------------------------------
@case("A62")
def counting_never_waits_for_the_model(served: Served) -> None:
    with serve(step_delay_us=1_000_000) as slow, slow.connect() as sock:
        sock.sendall(http_post(body("count", stream=True, max_tokens=2000)))
        wait_until(lambda: slow.region.stats()["running"] == 1)
        times: list[float] = []
        for _ in range(26):
            begun = time.monotonic()
            count(slow, body("a tool description " * 20))
            times.append(time.monotonic() - begun)
        assert sum(times) < 13, "some 26 s if each waited for a step"
        assert min(times) < 0.05
    assert served.idle()


@case("A63")
def sixteen_streams_keep_to_themselves(served: Served) -> None:
    async def run() -> list[str]:
        async with httpx.AsyncClient(base_url=served.url, timeout=20) as client:

            async def one(number: int) -> str:
                request = body(f"[{number:02d}]" * 30, stream=True, max_tokens=300, ignore_eos=True)
                return check_stream((await client.post("/v1/messages", json=request)).content).text

            return await asyncio.gather(*(one(number) for number in range(16)))

    for number, text in enumerate(asyncio.run(run())):
        assert text.count(f"[{number:02d}]") == 30 and set(re.findall(r"\[(\d\d)\]", text)) == {
            f"{number:02d}"
        }


@case("A77")
def no_thinking_unasked(served: Served) -> None:
    message = answered(served, request_of("A77", max_tokens=4))
    assert all(block["type"] == "text" for block in message["content"])


@case("A82", "A84", "A85")
def usage_is_exact_everywhere(served: Served) -> None:
    for stream in (False, True):
        for turn in (0, 1):
            request = request_of("A82", turn, stream=stream, max_tokens=4)
            request["messages"][0]["content"] = request["messages"][0]["content"][:3000]
            reply = ask(served, request)
            message = check_stream(reply.content).message if stream else reply.json()
            assert prompt_tokens(message) == count(served, request)
            assert all(
                type(message["usage"][name]) is int
                for name in (
                    "input_tokens",
                    "cache_read_input_tokens",
                    "cache_creation_input_tokens",
                    "output_tokens",
                )
            )
    started = check_stream(ask(served, request_of("A84", max_tokens=4)).content).message
    assert started["usage"]["input_tokens"] > 0
    request = request_of("A85", max_tokens=4)
    assert count(served, request) == prompt_tokens(answered(served, request))
    without = {name: value for name, value in request.items() if name != "system"}
    assert count(served, without) < count(served, request)
    assert count(served, {**request, "tools": []}) < count(served, request) - 100
    assert count(served, {**request, "messages": []}) < count(served, request)


# ---- what a text server refuses ------------------------------------------------------------------
@case("A87", "A89")
def images_are_refused_with_their_path(served: Served) -> None:
    for identifier in ("A87", "A89"):
        check_error(ask(served, request_of(identifier)), 400, "messages.0.content.0: ")
    source = {"type": "base64", "media_type": "application/pdf", "data": "x"}
    document = {"role": "user", "content": [{"type": "document", "source": source}]}
    check_error(ask(served, body(messages=[document])), 400, "messages.0.content.0.source.type: ")


@case("A91")
def empty_text_is_skipped_and_empty_turns_are_named(served: Served) -> None:
    request = request_of("A91")
    assert count(served, request) == count(served, body("hi"))
    request["messages"][0]["content"] = [{"type": "text", "text": ""}]
    check_error(ask(served, request), 400, "messages.0.content: ")
    turns = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": ""}]
    assert answered(served, body(messages=turns))["content"][0]["text"] == "Hello there!"
    empty = answered(served, body("say nothing"))
    assert empty["content"] == [] and empty["usage"]["output_tokens"] >= 1
