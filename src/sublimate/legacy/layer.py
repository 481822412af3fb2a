"""Starts the old layer beside a server and ends it: broker, scheduler, model address.

The fourth part, the gateway, is an endpoint of the edge: EDGE_MODULE in place of sublimate.edge.

defines: legacy_layer, EDGE_MODULE
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator

import msgspec

from ..config import Settings
from ..control.birth import PARENT_VARIABLE
from ..errors import ConfigError
from .broker import own_broker
from .records import ADDRESS_VARIABLE, Address

LOG = logging.getLogger("sublimate.legacy")
EDGE_MODULE = "sublimate.legacy"
PROCESSES = ("sublimate.legacy.scheduler", "sublimate.legacy.model_address")
STOP_SECONDS = 5.0


def _watch(module: str, child: subprocess.Popen[bytes], ending: threading.Event) -> None:
    """Tell in the log that a part has ended which should not have. It is not begun again."""
    status = child.wait()
    if not ending.is_set():
        LOG.error(
            "%s of the old layer has ended with exit code %d: its requests get a 503.",
            module.rpartition(".")[2],
            status,
        )


@contextlib.contextmanager
def legacy_layer(
    settings: Settings, executor: socket.socket, model_socket: socket.socket
) -> Generator[None]:
    """The layer runs for the time of a with block. Processes that are started in it, the edge
    among them, find the layer by their environment.

    executor: the server's own listening socket. model_socket: listens where the 302 points. Raises
    ConfigError.
    """
    if executor.family != socket.AF_INET:
        raise ConfigError("--legacy-layer needs a --host with an IPv4 address.")
    host, port = executor.getsockname()[:2]
    if not port or model_socket.family != socket.AF_INET:
        raise ValueError("both sockets listen before the layer starts")
    with own_broker() as (broker_port, password):
        address = Address(
            broker_port=broker_port,
            broker_password=password,
            executor_host="127.0.0.1" if host == "0.0.0.0" else host,  # noqa: S104 - a comparison
            executor_port=port,
            model_port=model_socket.getsockname()[1],
            model_socket=model_socket.fileno(),
            certificate=settings.edge.tls_certificate,
            key=settings.edge.tls_key,
        )
        os.environ[ADDRESS_VARIABLE] = msgspec.json.encode(address).decode()
        children: list[subprocess.Popen[bytes]] = []
        ending = threading.Event()
        try:
            environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
            for module in PROCESSES:
                command = [sys.executable, "-m", module]
                child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    pass_fds=(model_socket.fileno(),),
                    process_group=0,
                    stdin=subprocess.DEVNULL,
                    env=environment,
                )
                children.append(child)
                threading.Thread(target=_watch, args=(module, child, ending), daemon=True).start()
            yield
        finally:
            ending.set()
            del os.environ[ADDRESS_VARIABLE]
            for child in children:
                child.terminate()
            for child in children:
                try:
                    child.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
