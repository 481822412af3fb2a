"""What one engine has packed, the next one maps: with real processes and a small model."""

import os
import signal
from pathlib import Path

import gguf
import numpy as np
from servers import Server
from test_engine_process import EngineChild

from sublimate import _core
from sublimate.control import channel
from sublimate.supervisor.shared_weights import SharedWeights

HIDDEN, VOCABULARY = 64, 100
MEASURED = ("few_rows", "many_rows", "step_cost")


def write_model(path: Path) -> None:
    """Of random weights, with nothing to tell text by."""
    draw = np.random.default_rng(4)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    rows = {"token_embd": VOCABULARY}
    rows |= {f"blk.0.attn_{name}": HIDDEN for name in ("q", "k", "v", "output")}
    rows |= {f"blk.0.ffn_{name}": HIDDEN for name in ("gate", "up", "down")}
    for name, count in rows.items():
        values = draw.standard_normal((count, HIDDEN), dtype=np.float32)
        writer.add_tensor(f"{name}.weight", values)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_an_engine_after_a_crash_takes_weights_and_measurements_of_the_one_before(
    tmp_path: Path,
) -> None:
    """Three lives; then another file, which is packed and measured anew and takes the old one's
    place."""
    model = tmp_path / "model.gguf"
    write_model(model)
    command = [str(Path(__file__).parent / "run_supervisor.py"), str(model)]
    with Server(command) as server:
        first = server.ready()["engine"]
        assert not first["weights_reused"]
        assert not first["measured_before"]
        # Where this machine has no huge pages to share, the engines pack their own.
        shares = first["weights_shared"]
        last = dict(first)
        assert shares == first["weights_huge_pages"]

        def after_a_crash(*, of_another_file: bool = False) -> bool:
            os.kill(server.children()["sublimate.engine"], signal.SIGKILL)
            info = server.ready()["engine"]
            assert info["weights_shared"] == shares
            # What was measured of a file holds for that one alone.
            assert info["measured_before"] != of_another_file
            if not of_another_file:
                assert all(info[name] == last[name] for name in MEASURED)
            last.update(info)
            assert server.get("/run")["ids"]
            return info["weights_reused"]

        assert after_a_crash() == after_a_crash() == shares
        write_model(model)
        assert not after_a_crash(of_another_file=True)
        assert after_a_crash() == shares
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_an_engine_hands_over_what_it_has_packed_before_it_is_warm(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_model(model)
    child = EngineChild("", str(model))
    try:
        message = child.next()
        while isinstance(message, channel.Progress):
            message = child.next()
        if isinstance(message, channel.Weights):
            message = child.next()
        assert isinstance(message, channel.Ready)
        assert child.weights is not None
        assert bool(child.weights.fds) == message.info["weights_shared"]
        if child.weights is None or not child.weights.fds:
            return  # this machine has no huge pages to share
        again = _core.Model.load(
            str(model), kv_bytes=4 << 20, shared_weights_fd=child.weights.fds[0]
        )
        assert again.info["weights_reused"] and again.weights_fd >= 0
        own = _core.Model.load(str(model), kv_bytes=4 << 20)
        assert own.weights_fd == -1 and not own.info["weights_reused"]
        ids = list(range(VOCABULARY))
        assert np.array_equal(again.logits(ids), own.logits(ids))
    finally:
        child.end()
        if child.weights is not None:
            child.weights.close()


def test_one_descriptor_is_kept_and_the_old_one_is_closed() -> None:
    kept: SharedWeights[int] = SharedWeights()
    assert kept.fds == ()
    for content in (b"one", b"two"):
        fd = os.memfd_create("test")
        os.write(fd, content)
        kept.take((fd,))
        os.close(fd)
        assert os.pread(kept.fds[0], 9, 0) == content
    (fd,) = kept.fds
    kept.take(())
    kept.close()
    assert kept.fds == () and not Path(f"/proc/self/fd/{fd}").exists()


def test_one_engine_packs_and_the_others_wait_for_it() -> None:
    weights: SharedWeights[str] = SharedWeights()
    assert weights.may_load("a") and not weights.may_load("b") and not weights.may_load("c")
    assert not weights.may_load("b") and weights.settled("b") == []
    # It died, or this machine does not share: the next one packs.
    assert weights.settled("a") == ["b", "c"]
    assert weights.may_load("b") and not weights.may_load("c") and weights.may_load("b")
    fd = os.memfd_create("test")
    weights.take((fd,))
    os.close(fd)
    assert weights.settled("b") == ["c"] and weights.may_load("c") and weights.may_load("d")
    assert weights.settled("b") == weights.settled("c") == []
    weights.close()


def test_two_engines_share_the_machine_and_what_one_of_them_packs(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_model(model)
    command = [str(Path(__file__).parent / "run_supervisor.py"), str(model), "workers=2"]
    with Server(command) as server:
        info = server.ready()["engine"]
        assert info["weights_shared"]
        engines = [path for path in Path("/proc").glob("[0-9]*/maps") if mine(path, server)]
        assert len(engines) == 2
        assert all("memfd:sublimate-weights" in path.read_text() for path in engines)
        cpus = [os.sched_getaffinity(int(path.parent.name)) for path in engines]
        allowed = os.sched_getaffinity(0)
        assert info["cpus"] in [sorted(each) for each in cpus]
        if len(allowed) > 1:
            assert not cpus[0] & cpus[1] and cpus[0] | cpus[1] == allowed
            assert info["threads"] == len(info["cpus"])


def mine(path: Path, server: Server) -> bool:
    """Of an engine of that server."""
    fields = (path.parent / "stat").read_text().rpartition(")")[2].split()
    command = (path.parent / "cmdline").read_bytes()
    return int(fields[1]) == server.process.pid and b"sublimate.engine" in command
