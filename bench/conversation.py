"""What the next turn of a long conversation costs before the engine: render and tokenise, anew and
incrementally.

    .venv/bin/python bench/conversation.py MODEL.gguf [--turns 100]
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from itertools import count

from sublimate.edge.textmodel import load_text_model
from sublimate.model.conversation import ConversationTokenizer
from sublimate.model.turns import Turn, said

ROUNDS = 30
QUESTION_WORDS, ANSWER_WORDS = 30, 80
WORDS = (
    "the loop of a server takes, admits and publishes; it's never late, isn't it? 32 streams "
    "(or 128!) share pages \u2013 na\u00efve caf\u00e9s don't. for i in range(10): print(i)\n\n"
).split(" ")


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(words))


def median_us(action: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=100)
    arguments = parser.parse_args()
    model = load_text_model(arguments.model)
    draw = random.Random(1)
    turns = [said("system", text(draw, ANSWER_WORDS))]
    for _ in range(arguments.turns):
        turns.append(said("user", text(draw, QUESTION_WORDS)))
        turns.append(said("assistant", text(draw, ANSWER_WORDS)))
    numbers = count()

    def next_turn() -> list[Turn]:
        return [*turns, said("user", f"{next(numbers)} {text(draw, QUESTION_WORDS)}")]

    rendered = model.template.render(next_turn())
    whole = model.tokenizer.encode_rendered(rendered.text, rendered.marker)
    conversations = ConversationTokenizer(model.tokenizer)
    if conversations.encode(rendered).tolist() != whole:
        raise SystemExit("the incremental ids are not those of the whole conversation")
    waiting = [model.template.render(next_turn()) for _ in range(ROUNDS)]
    figures = {
        "render": lambda: model.template.render(turns),
        "whole conversation": lambda: model.tokenizer.encode_rendered(
            rendered.text, rendered.marker
        ),
        "whole, words known": lambda: ConversationTokenizer(model.tokenizer).encode(rendered),
        "next turn": lambda: conversations.encode(waiting.pop()),
    }
    print(f"{arguments.turns} turns, {len(rendered.text)} characters, {len(whole)} tokens")
    for name, action in figures.items():
        print(f"{name:20} {median_us(action):10.0f} us")


if __name__ == "__main__":
    main()
