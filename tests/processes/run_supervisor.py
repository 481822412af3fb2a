"""Runs a Supervisor with the stub edge and a scripted engine; events as JSON lines on stdout.

usage: run_supervisor.py SCRIPT_JSON [stay] [watchdog=SECONDS]
"""

import sys
import time

from sublimate.cli.output import run_guarded
from sublimate.cli.screen import JsonReporter
from sublimate.config import EdgeSettings, EngineSettings, ServerSettings, Settings
from sublimate.supervisor.listen import bind
from sublimate.supervisor.supervise import Supervisor


def main() -> int:
    given = [word.removeprefix("watchdog=") for word in sys.argv if word.startswith("watchdog=")]
    watchdog_seconds = float(given[0]) if given else ServerSettings().watchdog_seconds
    settings = Settings(
        server=ServerSettings(port=0, stay="stay" in sys.argv, watchdog_seconds=watchdog_seconds),
        engine=EngineSettings(script=sys.argv[1]),
        edge=EdgeSettings(drain_seconds=1.0),
    )
    reporter = JsonReporter(settings, "script", time.monotonic())
    with bind("127.0.0.1", 0) as listen:
        return Supervisor(
            settings,
            model_path="/nonexistent.gguf",
            model_name="script",
            listen=listen,
            reporter=reporter,
            edge_module="stub_edge",
        ).run()


if __name__ == "__main__":
    sys.exit(run_guarded(main))
