"""The engine process: no sockets but the control channel; the loop on one thread.

The main thread loads the model, then follows the supervisor's messages: attach and detach edges,
stop. A fault of the model file is a Failed message; a bug ends the process and is restarted.

defines: main, EngineProcess, LoopThread
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
from pathlib import Path

from .. import _core
from ..control import channel
from ..control.child import enter_child, first_message
from ..control.faults import FaultFolder, open_faults
from ..control.stamps import stamp, stamps
from ..errors import EngineError, HardwareError, SublimateError
from .loader import Share, load_engine
from .mapped import MappedFile

LOOP_ENDED_EXIT_CODE = 70
FILE_CHANGED_EXIT_CODE = 71
PROGRESS_STEP = 0.01
BEGIN_SECONDS = 10.0


def _stay_on(cpus: tuple[int, ...]) -> None:
    """Before there is any other thread: all that come inherit it. Raises EngineError."""
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        names = ",".join(str(cpu) for cpu in cpus)
        raise EngineError(f"The engine cannot run on cores {names}: {error.strerror}.") from None


def main() -> None:
    """Entry of `python -m sublimate.engine`."""
    EngineProcess(enter_child(channel.ToEngine)).run()


class EngineProcess:
    """Follows one control channel until Stop or until the supervisor is gone."""

    def __init__(self, control: channel.Channel[channel.ToEngine]) -> None:
        self._control = control
        self._last_fraction = -1.0
        # Supervisor's number of an edge -> (loop's number, region).
        self._edges: dict[int, tuple[int, _core.Region]] = {}

    def run(self) -> None:
        """Returns when told to stop, or when loading failed."""
        first = first_message(self._control)
        if first is None or not isinstance(first.message, channel.Load):
            return
        stamp("told")
        engine = self._load(first.message, first.fds)
        for fd in first.fds:
            os.close(fd)
        if engine is None:
            return
        loop = LoopThread(engine)
        try:
            self._follow(engine)
        finally:
            engine.stop()
            loop.join()

    def _load(self, load: channel.Load, fds: tuple[int, ...]) -> _core.LoopEngine | None:
        share = Share(
            prefix_secret=load.prefix_secret,
            weights="auto" if load.engines == 1 else "always",
            weights_fd=fds[0] if fds else -1,
            engines=load.engines,
            kv_parts=load.kv_parts,
            packed=self._hand_over,
            measured=load.measured,
            remembers=Path(load.remembers) if load.remembers else None,
        )
        try:
            _stay_on(load.cpus)
            faults = open_faults()
            file = MappedFile(load.model_path)
            engine, info, measured = load_engine(
                load.model_path, load.settings, self._progress, share
            )
            if faults is not None:
                _inject(engine, faults)
        except SublimateError as error:
            reason = "load_failed"
            if isinstance(error, HardwareError):
                reason = "hardware_not_supported"
            self._control.send(channel.Failed(message=str(error), reason=reason))
            return None
        except MemoryError:
            message = f"There is too little memory to load {load.model_path}."
            self._control.send(channel.Failed(message=message))
            return None
        stamp("loaded")
        more = {"cpus": sorted(os.sched_getaffinity(0)), "stamps": stamps()}
        ready = channel.Ready(info={**info, **more}, measured=measured)
        self._control.send(ready, (engine.prefix_fd,))
        if info.get("weights_mapped"):
            file.watch(self._end_changed)
        return engine

    def _end_changed(self, message: str) -> None:
        """At once: the next step would compute with what was written. On another thread."""
        with contextlib.suppress(OSError):
            self._control.send(channel.Failed(message=message))
        os._exit(FILE_CHANGED_EXIT_CODE)

    def _hand_over(self, model: _core.Model) -> None:
        if not model.info["weights_reused"]:
            fds = (model.weights_fd,) if model.weights_fd >= 0 else ()
            self._control.send(channel.Weights(), fds)

    def _progress(self, fraction: float) -> None:
        if fraction - self._last_fraction >= PROGRESS_STEP:
            self._last_fraction = fraction
            try:
                self._control.send(channel.Progress(fraction=fraction))
            except OSError:
                return  # a missing step of a progress bar; that nobody listens is seen elsewhere

    def _follow(self, engine: _core.LoopEngine) -> None:
        while (received := self._control.receive()) is not None:
            match received.message:
                case channel.Attach(edge=edge):
                    region = _core.Region.attach(*received.fds)
                    for fd in received.fds:
                        os.close(fd)
                    self._edges[edge] = (engine.attach(region), region)
                    self._control.send(channel.Attached(edge=edge))
                case channel.Detach(edge=edge):
                    if edge in self._edges:
                        engine.detach(self._edges[edge][0])
                        del self._edges[edge]
                case channel.Stop():
                    return
                case channel.Load():
                    raise ValueError("a second load")


class LoopThread:
    """The loop on a thread of its own, until the engine is stopped. Raises RuntimeError or
    EngineError if it cannot begin: threading.Thread would wait for such a thread for ever."""

    def __init__(self, engine: _core.LoopEngine) -> None:
        self._begun, self._ended = threading.Lock(), threading.Lock()
        for lock in (self._begun, self._ended):
            lock.acquire()
        _thread.start_new_thread(self._run, (engine,))
        if not self._begun.acquire(timeout=BEGIN_SECONDS):
            raise EngineError("The loop's thread did not begin.")

    def _run(self, engine: _core.LoopEngine) -> None:
        try:
            self._begun.release()
            # For who looks from outside how long it had to wait for a core.
            with contextlib.suppress(OSError):
                Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(
                    channel.LOOP_THREAD
                )
            engine.run()
            self._ended.release()
        except BaseException as error:
            # The loop never raises on client data; whatever this is, a restart is the answer.
            try:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                os._exit(LOOP_ENDED_EXIT_CODE)

    def join(self) -> None:
        """Waits until the loop has returned."""
        self._ended.acquire()


def _inject(engine: _core.LoopEngine, faults: FaultFolder) -> None:
    sys.stderr.write(f"sublimate: faults are injected from {faults.path}: this is a test\n")
    if faults.take("engine.load"):
        raise EngineError("An injected fault.")
    engine.inject_faults(str(faults.path))
