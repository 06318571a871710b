"""Inputs for parsers: those of a corpus, changed at random as people and damage change them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

# What has broken parsers before.
TOKENS = [
    *(
        str(number).encode()
        for number in (0, -1, 2**31, 2**32, 2**58 + 16, 2**63 - 1, 2**63, 2**64)
    ),
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b"[" * 300,
    b'{"a":' * 300,
    b"\x1b[2J",
    b"\xff",
    b"\xe2\x82",
    b"\x00",
    b"\xff" * 8,
    b"\x00" * 8,
    b"../",
    b'"',
    b",",
    b"->",
    b"float32",
    b"int4",
    b"O",
]

# An input never gets longer than this: inputs have to be cheap.
_LONGEST = 20_000


# Values of JSON, the inner ones of what is nested, and words.
_VALUE = re.compile(rb'-?\d+|"[^"]{0,60}"|\[[^\[\]]{0,60}\]|\{[^{}]{0,99}\}|\w+|[^\w\s]')


def _change_a_value(data: bytearray, dice: random.Random) -> None:
    """Puts another value in the place of one, which mostly leaves the text well formed."""
    begin = max(0, dice.randrange(len(data) + 1) - 500)
    found = list(_VALUE.finditer(data, begin, begin + 1000))
    if not found:
        return
    place = dice.choice(found)
    other = dice.choice(found)
    data[place.start() : place.end()] = dice.choice([*TOKENS, other[0], other[0] + b"," + other[0]])


def mutate(data: bytes, corpus: Sequence[bytes], dice: random.Random) -> bytes:
    """An input with one to four changes."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 4])):
        begin = dice.randrange(len(changed) + 1)
        end = min(len(changed), begin + dice.choice([0, 1, 1, 2, 8, 32, 1000]))
        kind = dice.randrange(8)
        if kind == 0:
            changed[begin:end] = dice.choice(TOKENS)
        elif kind == 1:
            changed[begin:end] = dice.randbytes(end - begin)
        elif kind == 2:
            del changed[begin:end]
        elif kind == 3:
            changed[begin:begin] = changed[begin:end] * dice.choice([1, 1, 2, 20])
        elif kind > 4:
            _change_a_value(changed, dice)
        else:
            other = dice.choice(corpus)
            at = dice.randrange(len(other) + 1)
            changed[begin:end] = other[at : at + dice.choice([1, 8, 100])]
    return bytes(changed[:_LONGEST])


def inputs(corpus: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """The corpus, then changed inputs; a changed one may be changed again."""
    dice = random.Random(seed)
    yield from corpus
    pool = list(corpus)
    for _ in range(count - len(corpus)):
        data = mutate(dice.choice(pool), corpus, dice)
        if dice.random() < 0.02:
            pool.append(data)
        yield data
