"""Requests in a client's first flight: only what may be repeated, and a ticket works once."""

from pathlib import Path

import pytest
from aioquic.tls import SessionTicket

from harness import Served, body
from http3_client import Answer, Client
from sublimate.edge.quic.tickets import Tickets


def ticket_of(served: Served, pair: tuple[Path, Path]) -> SessionTicket:
    first = Client(served.server.ports["h3"], pair[0])
    assert first.ask("GET", "/livez").status == 200
    first.run(lambda: bool(first.tickets))
    first.close()
    return first.tickets[-1]


def early(
    served: Served, pair: tuple[Path, Path], ticket: SessionTicket, *ask: object, **more: str
) -> tuple[Client, Answer]:
    """A request that goes out with the first datagrams."""
    client = Client(served.server.ports["h3"], pair[0], ticket=ticket)
    answer = client.ask(*ask, **more)  # type: ignore[arg-type]
    client.run(lambda: client.handshake is not None)
    return client, answer


def test_what_is_safe_is_answered_early(served: Served, pair: tuple[Path, Path]) -> None:
    client, answer = early(served, pair, ticket_of(served, pair), "GET", "/v1/models")
    assert client.handshake is not None and client.handshake.early_data_accepted
    assert answer.status == 200
    client.close()
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    ticket = ticket_of(served, pair)
    client, answer = early(served, pair, ticket, "POST", "/v1/messages/count_tokens", asked)
    assert client.handshake is not None and client.handshake.early_data_accepted
    assert answer.status == 200 and answer.json["input_tokens"] > 0
    client.close()


def test_what_costs_is_425_and_taken_after_the_handshake(
    served: Served, pair: tuple[Path, Path]
) -> None:
    client, answer = early(served, pair, ticket_of(served, pair), "POST", "/v1/messages", body())
    assert answer.status == 425 and answer.headers["x-should-retry"] == "true"
    assert "idempotency-key" in answer.json["error"]["message"]
    assert client.ask("POST", "/v1/messages", body()).status == 200
    client.close()


def test_with_a_key_it_is_taken_early(served: Served, pair: tuple[Path, Path]) -> None:
    for _ in range(2):
        ticket = ticket_of(served, pair)
        client, answer = early(
            served, pair, ticket, "POST", "/v1/messages", body(), idempotency_key="early"
        )
        assert client.handshake is not None and client.handshake.early_data_accepted
        assert answer.status == 200 and answer.json["content"][0]["text"] == "Hello there!"
    assert answer.headers["idempotency-replayed"] == "true"


def test_a_ticket_works_once(served: Served, pair: tuple[Path, Path]) -> None:
    ticket = ticket_of(served, pair)
    client, answer = early(served, pair, ticket, "GET", "/livez")
    assert client.handshake is not None and client.handshake.early_data_accepted
    client.close()
    client, answer = early(served, pair, ticket, "GET", "/livez")
    assert client.handshake is not None and not client.handshake.early_data_accepted
    assert not client.handshake.session_resumed and answer.status == 200
    client.close()


@pytest.mark.parametrize("asked", [1, 3])
def test_tickets_are_bounded_in_number_and_age(asked: int) -> None:
    now = [0.0]
    tickets = Tickets(2, 10.0, lambda: now[0])
    made = [SessionTicket.__new__(SessionTicket) for _ in range(3)]
    for number, ticket in enumerate(made):
        ticket.ticket = b"%d" % number
        tickets.put(ticket)
    assert len(tickets) == 2 and tickets.take(b"0") is None
    assert tickets.take(b"1") is made[1] and tickets.take(b"1") is None
    now[0] = 10.0 * asked
    assert tickets.take(b"2") is None and len(tickets) == 0
