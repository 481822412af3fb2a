"""Each name that deploy/ and the documents for operators use is real: metrics with their labels,
commands with their options, paths, settings, sections."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from command_line import all_options, commands, refusal
from exposition import Told

from house import ROOT
from sublimate.api.routes import TABLE
from sublimate.config import FIELDS
from sublimate.edge.observe.metrics import LOOP_COUNTERS
from sublimate.rollout.metrics import MIGRATIONS, NEW_HERE

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOK = ROOT / "docs" / "runbook.md"
DOCUMENTS = [RUNBOOK, ROOT / "docs" / "deploy.md", ROOT / "docs" / "metrics-migration.md"]
SERIES = re.compile(r"(?<![\w.])(sublimate_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
SCRAPED = {"instance", "job"}
VARIABLES = {"$__rate_interval": "5m", "$model": ".*", "$instance": ".*"}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of the dashboard and the alerts."""
    for panel in msgspec.json.decode(DASHBOARD.read_bytes())["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def unknown_names(expression: str, told: Told) -> list[str]:
    """Series and labels of an expression that the server does not tell."""
    wrong: list[str] = []
    labels = set(SCRAPED)
    for name, selectors in SERIES.findall(expression):
        known = told.labels.get(name)
        if known is None:
            wrong.append(name)
            continue
        labels |= known | ({"le"} if name.endswith("_bucket") else set())
        used = re.findall(r"(\w+)\s*[=!]", selectors)
        wrong += [f"{name}{{{label}}}" for label in used if label not in known | SCRAPED]
    for group in GROUPING.findall(expression):
        names = [name.strip() for name in group.split(",")]
        wrong += [name for name in names if name not in labels]
    return wrong


def test_dashboard_and_alerts_ask_for_what_the_server_tells(told: Told) -> None:
    asked = list(expressions())
    assert len(asked) > 60
    wrong = [(where, names) for where, text in asked if (names := unknown_names(text, told))]
    assert not wrong
    sample = "sum by (le, wrong) (rate(sublimate_steps_total{nope='1'}[1m])) / sublimate_nothing"
    assert unknown_names(sample, told) == [
        "sublimate_steps_total{nope}",
        "sublimate_nothing",
        "le",
        "wrong",
    ]


def test_the_dashboard_shows_every_counter_of_trouble_in_the_loop() -> None:
    """What grows when something is wrong has a place on it."""
    shown = {name for _, text in expressions() for name, _ in SERIES.findall(text)}
    trouble = re.compile(r"cancelled|refused|failed|waits|evictions")
    counters = {name for name, _ in LOOP_COUNTERS.values() if trouble.search(name)}
    assert len(counters) >= 7
    assert {f"sublimate_{name}_total" for name in counters} <= shown


def test_panels_have_a_place_and_say_what_they_show() -> None:
    dashboard = msgspec.json.decode(DASHBOARD.read_bytes())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken and max(columns) < 24, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"]["uid"] == "${datasource}"
    named = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", " ".join(text for _, text in expressions())))
    assert used - {"__rate_interval", "labels", "value"} <= named


@pytest.mark.deploy
def test_prometheus_takes_the_rules_and_each_alert_fires_when_it_should(
    tool: Callable[[str], str], tmp_path: Path
) -> None:
    promtool = tool("promtool")
    for command in (
        ["check", "config", "prometheus.yml"],
        ["check", "rules", "--lint-fatal", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
    ):
        done = subprocess.run(
            [promtool, *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rules = []
    for index, (_, text) in enumerate(expressions()):
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        rules.append({"record": f"panel:{index}", "expr": text})
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_and_a_section_of_the_runbook() -> None:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    cases = yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for one in cases
        for case in one["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == set(alerts)
    anchors = {anchor(title) for title in re.findall(r"(?m)^#+ (.+)$", RUNBOOK.read_text())}
    for name, rule in alerts.items():
        path, _, section = rule["annotations"]["runbook"].partition("#")
        assert path == "docs/runbook.md" and section in anchors, name


def anchor(title: str) -> str:
    """As a page's headings are linked to."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


# ---- documents -----------------------------------------------------------------------------------
def test_what_the_command_line_refuses_is_seen() -> None:
    assert refusal("sublimate ps --json") == refusal("sublimate keys add NAME") == ""
    assert "No such command" in refusal("sublimate nothing")
    assert "No such option" in refusal("sublimate serve --nothing")
    assert refusal("sublimate keys add NAME --concurrency many")
    assert refusal("sublimate debug --seconds")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_documents_name_commands_metrics_and_paths_that_exist(path: Path, told: Told) -> None:
    text = path.read_text()
    found = list(commands(text))
    assert found
    assert not [(one, why) for one in found if (why := refusal(one))]
    names = set(re.findall(r"\b(sublimate_[a-z_0-9]+)", text))
    assert names <= told.families | told.labels.keys(), names - told.families - told.labels.keys()
    paths = set(re.findall(r"http://127\.0\.0\.1:8000(/[\w./-]+)", text))
    paths |= set(re.findall(r"`(?:GET |POST )?(/(?:v1|livez|readyz|metrics)[\w/]*)`", text))
    assert paths <= TABLE.keys(), paths - TABLE.keys()
    options = set(re.findall(r"`--([\w-]+)", text))
    flags = {field.flag for field in FIELDS.values()} | set(all_options())
    ours = {f"--{name}" for name in options}
    assert path.stem == "deploy" or ours <= flags, ours - flags
    files = set(re.findall(r"`((?:deploy|src|tests)/[\w./-]+)`", text))
    assert all((ROOT / one).exists() for one in files), files
    for link in re.findall(r"\]\(([\w-]+\.md)(#[\w-]+)?\)", text):
        assert (ROOT / "docs" / link[0]).exists(), link


def test_each_section_of_the_runbook_goes_from_a_cause_to_a_remedy() -> None:
    sections = re.split(r"(?m)^## ", RUNBOOK.read_text())[1:]
    assert len(sections) >= 10
    for section in sections:
        title = section.splitlines()[0]
        rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
        assert rows or "```sh" in section, title
        for row in rows:
            cause, command, remedy = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
            assert cause and remedy and re.search(r"`sublimate \w", command), row


def test_the_table_of_old_metrics_is_that_of_the_program() -> None:
    text = (ROOT / "docs" / "metrics-migration.md").read_text()
    rows = [
        tuple(cell.strip().strip("`") for cell in line.split("|")[1:-1])
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    old = [(one.source, one.old, one.new, one.note) for one in MIGRATIONS]
    new = [(f"sublimate_{name}", what) for name, what in NEW_HERE.items()]
    assert rows == [("from", "old", "new", "note"), *old, ("new", "what it is"), *new]
