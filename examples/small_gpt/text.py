"""Text that is made here: sums in words, as tokens of one character each."""

from __future__ import annotations

import numpy as np

LETTERS = "\n abcdefghijklmnopqrstuvwxyz.+="
_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)


def line(rng: np.random.Generator) -> str:
    """One sum, such as "two plus three is five."."""
    left, right = (int(each) for each in rng.integers(0, 7, 2))
    return f"{_WORDS[left]} plus {_WORDS[right]} is {_WORDS[left + right]}.\n"


def batch(step: int, size: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the next tokens of a step, (size, length) int64 each.

    The step alone decides them, so that a run that goes on reads what comes next. A session cuts
    them, each worker gets its rows.
    """
    rng = np.random.default_rng([seed, step])
    rows = []
    for _ in range(size):
        text = ""
        while len(text) <= length:
            text += line(rng)
        rows.append([LETTERS.index(letter) for letter in text[: length + 1]])
    tokens = np.asarray(rows, "int64")
    return tokens[:, :-1], tokens[:, 1:]
