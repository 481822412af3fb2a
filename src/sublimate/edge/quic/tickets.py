"""What resumes a session without a handshake's round trip: tickets that work once.

Data in a client's first flight can be sent again by who recorded it. A ticket that is taken out
when it is used makes a second copy of that flight an ordinary handshake, which a recording cannot
complete.

defines: Tickets
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from aioquic.tls import SessionTicket


class Tickets:
    """Bounded in number and age; the oldest go first."""

    def __init__(
        self, count_max: int, seconds_max: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if count_max < 1 or seconds_max <= 0:
            raise ValueError("there is room for a ticket, for some time")
        self._count_max = count_max
        self._seconds_max = seconds_max
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, SessionTicket]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, ticket: SessionTicket) -> None:
        """One was given to a client."""
        if not ticket.ticket:
            raise ValueError("a ticket has a label")
        if len(self._known) >= self._count_max:
            self._known.popitem(last=False)
        self._known[ticket.ticket] = (self._clock() + self._seconds_max, ticket)

    def take(self, label: bytes) -> SessionTicket | None:
        """The one that a client shows, this once."""
        expires_seconds, ticket = self._known.pop(label, (0.0, None))
        return ticket if self._clock() < expires_seconds else None

    def clear(self) -> None:
        """The certificate that vouched for them is another now."""
        self._known.clear()
