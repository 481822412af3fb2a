"""Settings that all tests share: the property tests' effort and the report of recorded figures."""

import os

import pytest
from hypothesis import HealthCheck, settings

# On shared machines a deadline per example measures the neighbours; the time limit per test stays.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests recorded as properties, such as the checks per 1000 lines."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} = {value}")
