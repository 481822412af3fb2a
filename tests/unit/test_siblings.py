"""The inbox of an edge: what comes there, and what becomes of it when nobody writes any more."""

import asyncio
import socket

from sublimate.edge.place import ALONE
from sublimate.edge.siblings import Siblings, _Message


def test_an_inbox_that_nobody_writes_to_is_read_no_more() -> None:
    """Else the end of the file would wake the loop for ever."""

    async def run() -> tuple[list[bytes], bool]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        siblings, came = Siblings(loop, ALONE), list[bytes]()
        siblings.on_datagram = lambda data, address: came.append(data)
        siblings.open(ours)
        theirs.send(siblings._encoder.encode(_Message(b"last", ("127.0.0.1", 1))))
        theirs.close()
        for _ in range(3):
            await asyncio.sleep(0)
        is_read = loop.remove_reader(ours.fileno())
        siblings.close()
        siblings.close()
        return came, is_read

    assert asyncio.run(run()) == ([b"last"], False)
