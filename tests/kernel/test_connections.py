"""The kernel's memory of connections: who touches it, what it tells, whom it forgets."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from sublimate import _core
from sublimate.config import ServerSettings
from sublimate.kernel.cgroup import own_cgroup
from sublimate.kernel.connections import (
    BLOCK_TOKENS,
    BLOCKS,
    COUNTERS,
    CROWD_CONNECTIONS,
    ENTRIES,
    Connections,
)
from sublimate.kernel.keys import KEY_BYTES, NO_KEY, described, packed_address, quic_key, tcp_key
from sublimate.kernel.metrics import connection_families

SECRET = b"of one server, and of no other.."
OWNER, OTHER = b"one key", b"another key"
CONNECTIONS = 70_000
Load = Callable[..., Connections]


@pytest.fixture
def load() -> Iterator[Load]:
    """Loads one; skips where that is not possible."""
    with ExitStack() as opened:

        def loaded(**options: Any) -> Connections:
            memory = Connections.load(SECRET, **{"entries": 256, **options})
            if not memory.loaded:
                pytest.skip(f"the memory of connections is not loaded here: {memory.reason}")
            opened.callback(memory.close)
            return memory

        yield loaded


def prompt(tokens: int, start: int = 0) -> "np.ndarray[Any, np.dtype[np.int32]]":
    return np.arange(start, start + tokens, dtype=np.int32)


def ask(memory: Connections, key: bytes, ids: Any, *, owner: bytes = OWNER, found: int = 0) -> int:
    """One request; the tokens that were expected."""
    use = memory.begin(key, owner, ids)
    assert use is not None
    memory.end(use, found)
    return use.expected


def key(number: int) -> bytes:
    return tcp_key(("10.0.0.1", 8000), (f"10.1.{number >> 16}.1", number & 0xFFFF))


def last_use_ns(memory: Connections, key: bytes) -> int:
    value = memory._uses.lookup(key)
    assert value is not None
    return int.from_bytes(value, "little")


# ---- who touches it ------------------------------------------------------------------------------
def connected(opened: ExitStack, host: str) -> tuple[socket.socket, socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = opened.enter_context(socket.create_server((host, 0), family=family))
    except OSError:
        pytest.skip(f"{host} is not an address here")
    client = opened.enter_context(socket.create_connection(listener.getsockname()[:2]))
    return client, opened.enter_context(listener.accept()[0])


def check_touches(memory: Connections, opened: ExitStack, host: str, into: str, out: str) -> None:
    client, server = connected(opened, host)
    ask(memory, (known := tcp_key(server.getsockname(), server.getpeername())), prompt(64))
    before = memory.touches()
    first_ns = last_use_ns(memory, known)
    client.sendall(b"a request")
    assert server.recv(64)
    received_ns = last_use_ns(memory, known)
    server.sendall(b"an answer")
    assert client.recv(64)
    assert first_ns < received_ns < last_use_ns(memory, known) <= time.monotonic_ns()
    after = memory.touches()
    assert after[into] > before[into] and after[out] > before[out]
    client2, server2 = connected(opened, host)
    client2.sendall(b"of nobody that is known")
    assert server2.recv(64) and memory.touches() == after


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_socket_call_is_a_use(load: Load, host: str) -> None:
    memory = load()
    assert memory.hook == "tracepoints"
    with ExitStack() as opened:
        check_touches(memory, opened, host, "receive", "send")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_without_the_tracepoints_a_packet_is_a_use(
    load: Load, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    def refused(program: int) -> int:
        raise OSError(1, "not permitted")

    monkeypatch.setattr(_core, "attach_tracepoint", refused)
    memory = load()
    assert memory.hook == "packets" and memory.sees_quic
    with ExitStack() as opened:
        check_touches(memory, opened, host, "ingress", "egress")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_datagram_of_a_known_connection_id_is_a_use(load: Load, host: str) -> None:
    memory = load()
    if not memory.sees_quic:
        pytest.skip("no packet program may be attached here")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    known, other = b"12345678", b"87654321"
    ask(memory, quic_key(known + b"more"), prompt(64))
    first_ns = last_use_ns(memory, quic_key(known))
    with (
        socket.socket(family, socket.SOCK_DGRAM) as server,
        socket.socket(family, socket.SOCK_DGRAM) as client,
    ):
        server.bind((host, 0))
        client.connect(server.getsockname())
        for packet in (b"\x40" + other + b"sealed", b"\xc0" + known, b"\x40"):
            client.send(packet)
            assert server.recv(64) == packet
        assert last_use_ns(memory, quic_key(known)) == first_ns
        client.send(b"\x40" + known + b"sealed")
        assert server.recv(64)
    assert last_use_ns(memory, quic_key(known)) > first_ns


# ---- what it tells -------------------------------------------------------------------------------
def test_a_prompt_that_goes_on_is_expected(load: Load) -> None:
    memory, tokens = load(), 20 * BLOCK_TOKENS
    assert ask(memory, key(1), prompt(tokens + 5)) == 0
    assert ask(memory, key(1), prompt(tokens + 100), found=tokens - BLOCK_TOKENS) == tokens
    counters = memory.counters()
    assert counters["lookups"] == 2 and counters["hits"] == counters["inserts"] == 1
    assert counters["expected_tokens"] == tokens
    assert counters["found_tokens"] == tokens - BLOCK_TOKENS


def test_as_far_as_it_is_the_same(load: Load) -> None:
    memory, blocks = load(), 2 * BLOCKS
    whole = prompt(blocks * BLOCK_TOKENS)
    ask(memory, key(1), whole)
    for same in (blocks - 1, blocks - BLOCKS + 1):
        changed = whole.copy()
        changed[same * BLOCK_TOKENS] = -1
        use = memory.begin(key(1), OWNER, changed)
        assert use is not None and use.expected == same * BLOCK_TOKENS
    changed = whole.copy()
    changed[0] = -1  # a block's keys and values depend on all before it
    for ids, owner in ((changed, OWNER), (whole[: BLOCKS * BLOCK_TOKENS], OWNER), (whole, OTHER)):
        use = memory.begin(key(1), owner, ids)
        assert use is not None and use.expected == 0
    assert (use := memory.begin(key(2), OWNER, whole)) is not None and use.expected == 0
    assert ask(memory, key(1), prompt(BLOCK_TOKENS - 1)) == 0
    assert ask(memory, key(1), whole) == 0, "it was short, so nothing is remembered"


def test_digests_tell_nothing_without_the_secret(load: Load) -> None:
    memory = load()
    ids = prompt(40 * BLOCK_TOKENS)
    use = memory.begin(key(1), OWNER, ids)
    assert use is not None and ids.tobytes()[:64] not in use.value
    named = dict(memory.named)
    copies = {name: os.dup(fd) for name, fd in named.items()}
    other = Connections.from_fds(copies, SECRET[::-1], row=1, hook="", sees_quic=False)
    theirs = other.begin(key(1), OWNER, ids)
    assert theirs is not None and len(theirs.value) == len(use.value)
    mine, others = (
        {each.value[8:][at : at + 32] for at in range(0, 320, 32)} for each in (use, theirs)
    )
    assert len(mine) == BLOCKS and not mine & others
    memory.end(use, 0)
    assert ask(other, key(1), ids) == 0
    assert memory.counters() == other.counters(), "each sees the counters of all"
    other.close()


def test_a_closed_connection_is_forgotten(load: Load) -> None:
    memory = load()
    ask(memory, key(1), prompt(64))
    memory.forget(key(1))
    memory.forget(key(1))
    memory.forget(key(2))
    assert memory._uses.lookup(key(1)) is memory._digests.lookup(key(1)) is None
    assert memory.counters()["removes"] == 1
    assert ask(memory, key(1), prompt(64)) == 0


def test_an_answer_that_ends_after_its_connection_brings_nothing_back(load: Load) -> None:
    """As where a client leaves in the middle of it."""
    memory = load()
    first, second = (memory.begin(key(1), OWNER, prompt(64)) for _ in range(2))
    assert first is not None and second is not None
    memory.end(first, 0)
    memory.forget(key(1))
    memory.end(second, 0)
    assert memory._digests.read() == (b"", b"") and entries(memory) == 0
    assert not memory._known and not memory._begun and not memory._left
    refused = memory.begin(key(1), OWNER, prompt(64))
    assert refused is not None
    memory.end(refused, None)
    assert entries(memory) == 0, "the engine never had it"
    assert ask(memory, key(1), prompt(64)) == 0 and entries(memory) == 1, "another connection"


# ---- whom it forgets -----------------------------------------------------------------------------
def test_of_seventy_thousand_the_newest_stay(load: Load) -> None:
    memory = load(entries=ENTRIES)
    now = time.monotonic_ns().to_bytes(8, "little")
    with ExitStack() as opened:
        client, server = connected(opened, "127.0.0.1")
        used = tcp_key(server.getsockname(), server.getpeername())
        memory._uses.update(used, now)
        keys = [key(number) for number in range(CONNECTIONS)]
        for number, each in enumerate(keys):
            memory._uses.update(each, now)
            if number % 1000 == 0:
                client.sendall(b"x")
                server.recv(1)
        kept, values = memory._uses.read()
        there = {kept[at : at + KEY_BYTES] for at in range(0, len(kept), KEY_BYTES)}
        assert len(values) == 8 * len(there) and len(there) <= ENTRIES
        assert used in there, "the oldest of all, and always in use"
    newest = keys[-ENTRIES:]
    assert sum(each in there for each in newest) / ENTRIES > 0.98
    oldest = keys[: CONNECTIONS - ENTRIES]
    assert sum(each in there for each in oldest) < len(oldest) / 2
    assert memory._uses.clear() == len(there) and memory._uses.read() == (b"", b"")


def test_what_is_forgotten_is_counted(load: Load) -> None:
    memory, asked = load(entries=128), 500
    ids = prompt(2 * BLOCK_TOKENS)
    for number in range(asked):
        ask(memory, key(number), ids)
    there = [number for number in range(asked) if memory._digests.lookup(key(number)) is not None]
    assert 0 < len(there) <= 128 and max(there) == asked - 1
    for number in range(asked):
        use = memory.begin(key(number), OWNER, ids)
        assert use is not None and (use.expected > 0) == (number in there)
    counters = memory.counters()
    assert counters["evictions"] == asked - len(there) and counters["hits"] == len(there)
    for number in range(asked):
        memory.forget(key(number))
    assert memory.counters()["removes"] == len(there)


def test_an_edge_that_was_killed_leaves_no_connection_counted(load: Load) -> None:
    memory, edges = load(), list[Connections]()
    for _ in range(2):
        copies = {name: os.dup(fd) for name, fd in memory.named.items()}
        edges.append(Connections.from_fds(copies, SECRET, row=3, hook="", sees_quic=False))
        assert entries(memory) == 0
        for number in range(5):
            ask(edges[-1], key(number + 10 * len(edges)), prompt(64))
        edges[-1].forget(key(10 * len(edges)))
        assert entries(memory) == 4, "and it ends without a word"
    told = memory.counters()
    assert (told["inserts"], told["lookups"], told["evictions"]) == (10, 10, 0)
    for edge in edges:
        edge.close()


def entries(memory: Connections) -> float:
    """As /metrics tells."""
    families = connection_families(memory, {})
    (family,) = (each for each in families if each.name == "sublimate_kernel_cache_entries")
    return family.samples[0].value


def test_of_several_edges_one_tells_what_is_the_servers(load: Load) -> None:
    memory = load()
    names = [
        {family.name for family in connection_families(memory, labels)}
        for labels in ({}, {"worker": "0"}, {"worker": "1"})
    ]
    assert names[0] == names[1] > {"sublimate_kernel_cache_lookups", "sublimate_kernel_touches"}
    assert names[2] == {"sublimate_kernel_state"}, "how it is with each, each tells"


# ---- wrong use, and none -------------------------------------------------------------------------
def test_nothing_is_remembered_where_nothing_is_loaded(load: Load) -> None:
    memory = Connections("lockdown")
    assert memory.begin(key(1), OWNER, prompt(64)) is None
    memory.forget(key(1))
    assert memory.counters() == dict.fromkeys(COUNTERS, 0)
    assert memory.touches() == memory.cost() == {}
    assert load().begin(NO_KEY, OWNER, prompt(64)) is None


def test_a_map_that_is_refused_is_done_without(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels before 5.19 refuse a process without rights."""
    memory = load()

    class Refuses:
        def lookup(self, key: bytes) -> bytes:
            raise OSError(1, "not permitted")

    monkeypatch.setattr(memory, "_digests", Refuses())
    assert memory.begin(key(1), OWNER, prompt(64)) is not None
    assert memory.reason == "refused" and memory.begin(key(1), OWNER, prompt(64)) is None


def test_wrong_use_is_told(load: Load) -> None:
    memory = load()
    with pytest.raises(ValueError, match="secret"):
        Connections.from_fds(memory.named, b"short", row=0, hook="", sees_quic=False)
    with pytest.raises(ValueError, match="row"):
        Connections.from_fds(memory.named, SECRET, row=64, hook="", sees_quic=False)
    for call in (memory._uses.lookup, memory._uses.remove):
        with pytest.raises(ValueError, match="key_bytes"):
            call(b"short")
    with pytest.raises(ValueError, match="value_bytes"):
        memory._uses.update(key(1), b"short")
    with pytest.raises(ValueError, match="entries"):
        _core.load_connections(0, packets=False)
    with pytest.raises(OSError, match="Bad file"):
        _core.KernelMap(1 << 20, 4, 4).lookup(b"1234")


def test_keys_tell_connections_apart() -> None:
    ends = ("1.2.3.4", 80), ("5.6.7.8", 90)
    keys = {
        tcp_key(*ends), tcp_key(*reversed(ends)), tcp_key(("1.2.3.4", 81), ends[1]),
        tcp_key(("::1", 80, 0, 0), ("::1", 90, 0, 0)), quic_key(b"12345678"), quic_key(b"12345679"),
    }  # fmt: skip
    assert len(keys) == 6 and {len(each) for each in keys} == {KEY_BYTES}
    assert tcp_key(*ends) == tcp_key(("::ffff:1.2.3.4", 80, 0, 0), ("::ffff:5.6.7.8", 90, 0, 0))
    assert tcp_key("", "") == tcp_key(None, ends[1]) == NO_KEY
    assert described(tcp_key(*ends)) == "tcp 5.6.7.8:90 to 1.2.3.4:80"
    assert described(tcp_key(("::1", 1), ("::2", 2))) == "tcp [::2]:2 to [::1]:1"
    assert described(quic_key(b"12345678")) == "quic 3132333435363738"


def test_keys_are_whole() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        quic_key(b"short")
    with pytest.raises(ValueError, match="40 bytes"):
        described(b"short")


def test_settings_have_the_bounds_of_the_maps() -> None:
    assert ServerSettings().kernel_entries == ENTRIES


def test_a_nested_cgroup_is_found(tmp_path: Any) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "unified"
    (mount / "mine").mkdir(parents=True)
    proc.mkdir()
    (proc / "mountinfo").write_text(
        f"30 25 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
        f"31 25 0:27 / {mount} rw - cgroup2 cgroup2 rw\n"
    )
    (proc / "cgroup").write_text("3:cpu:/elsewhere\n0::/mine\n")
    assert own_cgroup(proc) == mount / "mine"
    (proc / "cgroup").write_text("0::/gone\n")
    assert own_cgroup(proc) is None
    # A disk whose name is not UTF-8, and a container that has a part of the tree, at "my place".
    place = tmp_path / "my place"
    place.mkdir()
    (proc / "mountinfo").write_bytes(
        b"29 25 0:9 / /media/caf\xe9 rw - vfat /dev/sdb1 rw\n"
        b"30 25 0:27 /other %s rw - cgroup2 cgroup2 rw\n"
        b"31 25 0:27 /docker/a1 %s rw - cgroup2 cgroup2 rw\n"
        % (bytes(mount), bytes(place).replace(b" ", rb"\040"))
    )
    (proc / "cgroup").write_text("0::/docker/a1\n")
    assert own_cgroup(proc) == place
    assert own_cgroup(tmp_path / "nothing") is None


# ---- of several workers --------------------------------------------------------------------------
class Remembers:
    """Stands where the steering is."""

    loaded = True

    def __init__(self) -> None:
        self.addresses: dict[bytes, int] = {}
        self.labels: dict[bytes, int] = {}

    def remember_packed(self, address: bytes, index: int) -> None:
        self.addresses[address] = index

    def forget_packed(self, address: bytes) -> None:
        self.addresses.pop(address, None)

    def remember_connection_id(self, label: bytes, index: int) -> None:
        self.labels[label] = index

    def forget_connection_id(self, label: bytes) -> None:
        del self.labels[label]

    def close(self) -> None:
        """Nothing is open."""


def test_a_client_is_steered_to_its_engine_and_a_crowd_is_not(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, steering = load(), Remembers()
    monkeypatch.setattr(memory, "steering", steering)
    proxy = packed_address("10.0.0.9")
    keys = [tcp_key(("10.0.0.1", 80), ("10.0.0.9", number)) for number in range(20)]
    for number, each in enumerate(keys):
        use = memory.begin(each, OWNER, prompt(64), worker=number % 3)
        assert use is not None
        memory.end(use, 0)
        if number < CROWD_CONNECTIONS:
            assert steering.addresses == {proxy: number % 3}
    assert steering.addresses == {}, "a proxy's connections all go where the hash says"
    for each in keys[1:]:
        memory.forget(each)
    memory.begin(keys[0], OWNER, prompt(64), worker=2)
    assert steering.addresses == {proxy: 2} and memory._of_address == {proxy: 1}
    memory.begin(quic_key(b"12345678"), OWNER, prompt(64), worker=1)
    memory.begin(NO_KEY, OWNER, prompt(64), worker=1)
    assert steering.addresses == {proxy: 2}, "these name no address"
    memory.forget(keys[0])
    assert not memory._of_address and not memory._asking
    memory.worker = 5
    memory.label_given(b"12345678")
    assert steering.labels == {b"12345678": 5}
    memory.label_retired(b"12345678")
    assert not steering.labels


def test_a_crowd_is_one_also_where_nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, steering = Connections("lockdown"), Remembers()
    monkeypatch.setattr(memory, "steering", steering)
    keys = [tcp_key(("10.0.0.1", 80), ("10.0.0.9", number)) for number in range(20)]
    for each in keys:
        assert memory.begin(each, OWNER, prompt(64), worker=1) is None
    assert steering.addresses == {}
    for each in keys:
        memory.forget(each)
    assert memory.begin(keys[0], OWNER, prompt(64), worker=1) is None
    assert steering.addresses == {packed_address("10.0.0.9"): 1}
