"""Sets of names are stated once for all layers, and nothing of them is lost."""

import random

import pytest
from tests.native.library import call


def folded(*names):
    return call("FoldNames", list(names))


def unfolded(*entries):
    return sorted(call("UnfoldNames", [list(entry) for entry in entries]))


def layers(count, *patterns):
    return [pattern.format(i) for i in range(count) for pattern in patterns]


@pytest.mark.parametrize(
    ("names", "entries"),
    [
        (layers(32, "l.{}.up", "l.{}.down"), (("0..31", "l.{}.up", "l.{}.down"),)),
        (
            [f"lv{10 * i + k}" for i in range(3) for k in (3, 4, 9)],
            (("(3..4, 9) + 10 * 0..2", "lv{}"),),
        ),
        ([f"lv{10 * i + 3}_1" for i in range(4)], (("3:1 + 10:0 * 0..3", "lv{}_{}"),)),
        ([f"l.3.w{i}" for i in range(3)], (("3:0 + 0:1 * 0..2", "l.{}.w{}"),)),
        (["x", "lv7", "x2", "lv8"], (("x",), ("7..8", "lv{}"), ("x2",))),
        (["lv1", "lv5"], (("1, 5", "lv{}"),)),
        (["lv01", "lv1234567890", "a{}", "a1"], (("a{}",), ("lv01",), ("lv1234567890",), ("a1",))),
        ([], ()),
    ],
)
def test_text(names, entries):
    assert folded(*names) == entries
    assert unfolded(*entries) == sorted(names)


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_its_length_does_not_grow_with_layers(count):
    within = random.Random(count).sample(range(100), 40)
    names = ["x", "lv", *(f"lv{7 + 100 * i + k}" for i in range(count) for k in within)]
    random.Random(0).shuffle(names)
    entries = folded(*names)
    assert unfolded(*entries) == sorted(names)
    assert len(str(entries)) < 400


def test_nothing_is_lost_of_names_at_random():
    generator = random.Random(1)
    for _ in range(200):
        names = [
            "".join(generator.choices(["lv", "_", ".", "0", "1", "12", "{", "{}", " ", "-"], k=4))
            for _ in range(generator.randrange(60))
        ]
        assert unfolded(*folded(*names)) == sorted(names)


@pytest.mark.parametrize(
    "numbers",
    [
        *("", "..", "1..", "3..1", "1..x", "1 + 2", "1 + 2 * 0..", "(1", "1:2..5"),
        *("1:2 + 1 * 0..3", "1,2", "-", "1..999999999", "(1..999999) + 1 * 0..9"),
        "(" * 100 + "1" + ")" * 100,
    ],
)
def test_what_is_malformed_or_endless_is_left_out(numbers):
    assert unfolded([numbers, "lv{}"]) == []


def test_patterns_with_other_many_braces_than_numbers_are_left_out():
    assert unfolded(["1:2", "lv{}"], ["1", "lv"], ["1", "lv{}_{}"]) == []
