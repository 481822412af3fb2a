"""Runs a Supervisor with the stub edge and a scripted engine; events as JSON lines on stdout.

usage: run_supervisor.py SCRIPT_JSON|MODEL.gguf [stay] [watchdog=SECONDS] [gpu=FILE]
           [workers=COUNT]
"""

import contextlib
import sys
import time
from pathlib import Path

import msgspec

from simulated_gpu import GpuFile
from sublimate.cli.json_lines import JsonReporter
from sublimate.cli.output import run_guarded
from sublimate.config import EdgeSettings, EngineSettings, ServerSettings, Settings
from sublimate.guard.engine_watch import EngineWatch
from sublimate.model.source import stamp
from sublimate.supervisor.launch import Launch
from sublimate.supervisor.listen import Listeners, WorkerSockets, bind_each
from sublimate.supervisor.supervise import Supervisor


def main() -> int:
    is_model = sys.argv[1].endswith(".gguf")
    given = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    watchdog_seconds = float(given.get("watchdog", ServerSettings().watchdog_seconds))
    sensors = GpuFile(Path(given["gpu"])) if "gpu" in given else None
    settings = Settings(
        server=ServerSettings(port=0, stay="stay" in sys.argv, watchdog_seconds=watchdog_seconds),
        engine=EngineSettings(script="" if is_model else sys.argv[1], kv_memory=4 << 20),
        edge=EdgeSettings(drain_seconds=1.0),
    )
    reporter = JsonReporter(settings, "script", time.monotonic())
    launch = Launch(
        settings=settings,
        model_path=sys.argv[1] if is_model else "/nonexistent.gguf",
        model_name="script",
        edge_module="stub_edge",
        make_watch=lambda: EngineWatch(watchdog_seconds, open_gpu=lambda _: sensors),
    )
    with contextlib.ExitStack() as stack:
        socks = bind_each("127.0.0.1", 0, int(given.get("workers", "1")))
        each = tuple(WorkerSockets(stack.enter_context(sock)) for sock in socks)

        def relaunch() -> Launch:
            """Another script counts as another model."""
            return msgspec.structs.replace(launch, model_stamp=stamp(sys.argv[1]))

        return Supervisor(relaunch(), Listeners(each), reporter, relaunch).run()


if __name__ == "__main__":
    sys.exit(run_guarded(main))
