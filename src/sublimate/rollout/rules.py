"""What a move away from the old layer breaks in other people's sources: the one table.

A rule's pattern is matched against texts: string literals and names of a Python program, lines of
anything else. Where only a call or an import tells (sources.py), a rule has no pattern.

defines: Rule, RULES, METRIC_RULE, BREAKS, LOOK
"""

from __future__ import annotations

import re

import msgspec

BREAKS, LOOK = "breaks", "look"
"""It will fail; or a person has to look at it."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of finding."""

    what: str
    do: str
    severity: str = BREAKS
    pattern: str = ""
    only_beside: bool = False
    """Counts in files alone that have a finding of another rule: by itself it is innocent."""

    def __post_init__(self) -> None:
        if not self.what or not self.do:
            raise ValueError("a rule says what it found, and what to do")
        if self.severity not in (BREAKS, LOOK):
            raise ValueError(f"{self.severity!r} is no severity")

    def matches(self, text: str) -> bool:
        return bool(self.pattern) and re.search(self.pattern, text) is not None


METRIC_RULE = "metric-name"

RULES: dict[str, Rule] = {
    "negotiate-endpoint": Rule(
        what="the negotiate endpoint of the old layer",
        do="send the request to /v1/messages at once; there is nothing to ask before it",
        pattern=r"/v1/layer/negotiate\b|\blayer/negotiate\b",
    ),
    "lease": Rule(
        what="a lease in a query, as the old layer's addresses have it",
        do="use the server's own base URL, which needs no lease and stays the same",
        pattern=r"/v1/messages\?lease=|[?&]lease=",
    ),
    "broker-key": Rule(
        what="a key of the old layer's broker",
        do="remove it: there is no broker. Who waits is sublimate_num_requests_waiting in /metrics",
        pattern=r"\blayer:(questions|gateway|model)\b",
    ),
    "legacy-flag": Rule(
        what="the flag or setting that switches the old layer on",
        do="remove it before the version that has no such layer, where it is a wrong setting",
        pattern=r"--(no-)?legacy-(layer|port)\b|\bSUBLIMATE_LEGACY_\w+|^\s*legacy_(layer|port)\b",
    ),
    "legacy-import": Rule(
        what="an import of the old layer's modules",
        do="remove it: the package sublimate.legacy goes with the layer",
        pattern=r"^\s*(from|import)\s+sublimate\.legacy\b",
    ),
    "layer-module": Rule(
        what="an import of a layer inside the SDK",
        do="remove it: the plain SDK talks to this server, and has no layer",
        pattern=r"^\s*(from|import)\s+anthropic\.layer\b|(?:require|from)\s*\(?\s*"
        r"[\"']@anthropic-ai/(?:sdk/)?layer\b",
    ),
    "layer-header": Rule(
        what="a header of the old layer's protocol",
        do="remove it: nothing is negotiated; see x-layer and x-layer-config of the answers",
        pattern=r"(?i)\bx-anthropic-layer(-\w+)*\b",
    ),
    "layer-service": Rule(
        what="a request to a service of the old layer",
        do="read /.well-known/sublimate and /v1/layer/policy of the server instead",
        pattern=r"(?i)https?://[\w.-]*\blayer-(service|gateway|broker|scheduler|config)\b"
        r"|\blayer-(service|gateway|broker|scheduler|config)(:\d+)?/",
    ),
    "old-sdk": Rule(
        what="a version of the anthropic SDK older than those that are tested",
        do="take anthropic 0.125 or newer, or try that version against this server first",
        severity=LOOK,
        pattern=r"\banthropic(?:\[[\w,-]*\])?[\"']?\s*(?:[=~<]=|@|:)\s*[\"'^~]*"
        r"0\.(?:\d{1,2}|1[01]\d|12[0-4])\."
        r"|[\"']@anthropic-ai/sdk[\"']\s*:\s*[\"'^~=]*0\.(?:\d{1,2}|1[01]\d|12[0-4])\.",
    ),
    "deprecation-header": Rule(
        what="a header that only the old layer's answers have",
        do="remove it, or take its absence for the end of the move",
        severity=LOOK,
        pattern=r"(?i)^[\"'`]?(sunset|deprecation)[\"'`]?$",
    ),
    "redirect": Rule(
        what="handling of a redirect, beside the old layer's address",
        do="remove it: this server never answers with a redirect",
        severity=LOOK,
        pattern=r"\b(allow_redirects|follow_redirects|maxRedirects)\b|redirect:\s*[\"']manual[\"']"
        r"|(?i:headers?(\.get\(|\[)\s*[\"']location[\"'])"
        r"|\bstatus(_code|Code)?\s*={2,3}\s*30[27]\b",
        only_beside=True,
    ),
    "doubled-prefix": Rule(
        what="an Anthropic client whose base URL ends in /v1",
        do="remove /v1 from it: the client adds its own, and /v1/v1 is a 404",
        pattern=r"ANTHROPIC_BASE_URL\S*\s*[=:]\s*[\"']?\S+/v1/?[\"']?\s*$",
    ),
    "text-completions": Rule(
        what="Anthropic's text completions",
        do="use messages.create: /v1/complete is not served",
        pattern=r"\b(HUMAN_PROMPT|AI_PROMPT)\b|/v1/complete\b(?!/|s)",
    ),
    METRIC_RULE: Rule(
        what="a metric of another server",
        do="see `sublimate rollout metrics`",
        severity=LOOK,
    ),
    "unreadable": Rule(
        what="a file that cannot be read as what it is",
        do="look at it by hand: the scan could not",
        severity=LOOK,
    ),
}
