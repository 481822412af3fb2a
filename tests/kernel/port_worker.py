"""A worker of the steering tests: its own socket on a shared port, and its number as every answer.

usage: port_worker.py FAMILY KIND PORT NUMBER CONTROL_FD
"""

import socket
import sys


def main() -> None:
    family, kind, port, number, control = map(int, sys.argv[1:])
    address = "::1" if family == socket.AF_INET6 else "0.0.0.0"  # noqa: S104
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((address, port))
    if kind == socket.SOCK_STREAM:
        sock.listen()
    with socket.socket(fileno=control) as channel:
        socket.send_fds(channel, [b"ready"], [sock.fileno()])
    answer = bytes([number])
    while True:
        if kind == socket.SOCK_STREAM:
            connection, _ = sock.accept()
            with connection:
                connection.sendall(answer)
        else:
            _, sender = sock.recvfrom(2048)
            sock.sendto(answer, sender)


if __name__ == "__main__":
    main()
