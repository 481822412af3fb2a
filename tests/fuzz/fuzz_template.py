"""Fuzzes template and tokenizer: any conversation, any template, any control token typed by a user.

    python tests/fuzz/fuzz_template.py --seconds 60     # or `make fuzz`; tests run it for a moment

Properties: every conversation renders or exceeds a limit; content never yields a control id; every
text is in the prompt; nothing of the interpreter is reached; a template is an error at load or
works.

defines: conversation, one_conversation, one_template, run
"""

import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("", "api", "unit")]

from fuzz.seeds import main  # noqa: E402
from sublimate.errors import ModelError  # noqa: E402
from sublimate.model.template import ChatTemplate, TemplateLimitError  # noqa: E402
from sublimate.model.tokenizer import Tokenizer  # noqa: E402
from sublimate.model.turns import Role, Turn, said  # noqa: E402
from tiny_model import CONTROL, TINY_TEMPLATE, tiny_model  # noqa: E402

SLOW_SECONDS = 15.0
TOKENIZER: Tokenizer = tiny_model().tokenizer
ROLES: tuple[Role, ...] = ("system", "user", "assistant")
PIECES = (
    *CONTROL,
    *("<", "|", ">", "<|", "|>", "<|im_", "im_end", "end|>", "start|>", "\n", " ", "\t", "é", "😸"),
    *("\ufdd0", "\ufdd1", "\ue000", "{{", "}}", "{%", "%}", "{# #}", "a", "system", "QQ", "\x00"),
)
SOURCES = (
    "{% for m in messages %}{{ m.role }}{{ m['content'] }}{% endfor %}",
    "{{ messages[0].content | trim | upper }}",
    "{{ messages | tojson }}",
    "{% set n = namespace(x=1) %}{% for i in range(9) %}{% set n.x = n.x * 9 %}{% endfor %}",
    "{% if messages[-1].role == 'user' %}{{ raise_exception('x') }}{% endif %}",
    "{{ ''.__class__ }}{{ strftime_now('%Y') }}{{ bos_token }}{{ undefined.x.y }}",
    "{{ 'a' * 99999999 }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
)
BITS = (
    "{%",
    "%}",
    "{{",
    "}}",
    "for",
    "endfor",
    "if",
    "messages",
    "[0]",
    ".role",
    "|",
    "'",
    "(",
    ")",
)


def conversation(draw: random.Random) -> list[Turn]:
    """Turns whose neighbours have different roles."""
    turns: list[Turn] = []
    for _ in range(draw.randint(1, 6)):
        role = draw.choice([role for role in ROLES if not turns or turns[-1].role != role])
        text = "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 12)))
        turns.append(said(role, text))
    return turns


def control_ids(template: ChatTemplate, turns: list[Turn]) -> list[int]:
    rendered = template.render(turns)
    encoded = TOKENIZER.encode_rendered(rendered.text, rendered.marker)
    return [token for token in encoded if token < len(CONTROL)]


def one_conversation(draw: random.Random, template: ChatTemplate) -> None:
    turns = conversation(draw)
    neutral = [said(turn.role, "x") for turn in turns]
    if control_ids(template, turns) != control_ids(template, neutral):
        raise AssertionError(f"content wrote control tokens: {turns!r}")
    plain = template.render(turns).plain
    if not all(turn.text in plain for turn in turns):
        raise AssertionError(f"a text is missing: {turns!r}")


def one_template(draw: random.Random) -> str:
    """Outcome of a mutated template."""
    source = draw.choice((*SOURCES, TINY_TEMPLATE))
    for _ in range(draw.randint(0, 4)):
        at = draw.randint(0, len(source))
        source = source[:at] + draw.choice((*BITS, "")) + source[at + draw.randint(0, 3) :]
    try:
        template = ChatTemplate(source, CONTROL)
    except ModelError:
        return "refused at load"
    try:
        rendered = template.render(conversation(draw))
    except TemplateLimitError:
        return "limit"
    if "<class" in rendered.plain or "object at 0x" in rendered.plain:
        raise AssertionError(f"the interpreter shows: {source!r}")
    return "fallback" if template.fallbacks else "rendered"


def run(seconds: float, seed: int, count_max: int = sys.maxsize) -> dict[str, int]:
    """How often each outcome came."""
    outcomes: dict[str, int] = {}
    template = ChatTemplate(TINY_TEMPLATE, CONTROL)
    end = time.monotonic() + seconds
    number = 0
    while number < count_max and time.monotonic() < end:
        draw = random.Random(seed + number)
        begun = time.thread_time()  # of work: the neighbours do not count
        try:
            one_conversation(draw, template)
            outcome = one_template(draw)
        except BaseException:
            sys.stderr.write(f"failing seed: {seed + number}\n")
            raise
        if time.thread_time() - begun > SLOW_SECONDS:
            raise AssertionError(f"seed {seed + number} took too long")
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        number += 1
    return outcomes


if __name__ == "__main__":
    main(run, __doc__)
