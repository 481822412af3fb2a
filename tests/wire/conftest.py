"""Servers of HTTP/3 that tests share.

defines: pair, no_client_stays, served
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Served, serve
from http3_client import Client
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge.limits import HttpLimits


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    yield
    while Client.alive:
        Client.alive.pop().close()


@pytest.fixture(scope="module")
def tls_settings(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> EdgeSettings:
    return EdgeSettings(
        tls_certificate=str(pair[0]),
        tls_key=str(pair[1]),
        data_dir=str(tmp_path_factory.mktemp("data")),
    )


@pytest.fixture(scope="module")
def served(tls_settings: EdgeSettings) -> Iterator[Served]:
    limits = HttpLimits(header_seconds=2.0, body_seconds=3.0)
    with serve(settings=tls_settings, http3=True, limits=limits) as running:
        yield running
