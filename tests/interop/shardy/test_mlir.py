"""Texts against MLIR's own parser and printer, where JAX is installed."""

from __future__ import annotations

import random

import pytest

from distir_ext.interop import shardy

from .golden import GOLDEN, printed_again

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
ir = pytest.importorskip("jaxlib.mlir.ir")
make_context = pytest.importorskip("jax._src.interpreters.mlir").make_ir_context


@pytest.fixture(scope="module")
def context():
    with make_context() as made:
        yield made


@pytest.mark.parametrize(("text", "printed"), GOLDEN)
def test_golden_texts_are_what_mlir_prints(context, text, printed):
    assert str(ir.Attribute.parse(text, context)) == printed


def some_sharding(dice):
    names = ["x", "y", "z:(1)2", 'a "b"', "ä", "w\n\\"]

    def axes(least):
        return tuple(
            shardy.AxisRef(name)
            if dice.random() < 0.7
            else shardy.AxisRef(name, dice.choice([1, 2]), dice.choice([2, 4]))
            for name in dice.sample(names, dice.randint(least, 3))
        )

    def dim():
        return shardy.DimSharding(axes(0), dice.random() < 0.5, dice.choice([None, 0, 3]))

    mesh = shardy.LogicalMesh(tuple((name, 4) for name in names[:2]), tuple(range(15, -1, -1)))
    return shardy.Sharding(
        dice.choice(["mesh", "my mesh", "m.1$", mesh]),
        tuple(dim() for _ in range(dice.randrange(4))),
        replicated=dice.choice([(), axes(1)]),
        unreduced=dice.choice([(), axes(1)]),
    )


def test_mlir_reads_and_prints_what_is_printed(context, sample):
    dice = random.Random(3)
    for _ in range(sample(300, 1_000, 5_000, 5_000)):
        sharding = some_sharding(dice)
        printed = str(ir.Attribute.parse(str(sharding), context))
        assert printed == str(sharding)
        assert shardy.parse(printed) == sharding


CHANGES = ["", "<", ">", "[", "]", "{", "}", ",", "?", "p1", '"x"', ":(1)2", "=", "@m", " ", "1"]


def test_both_parsers_take_the_same_texts(context, sample):
    """Changes of texts that are right; what one of them refuses, the other does, too."""
    dice = random.Random(4)
    taken = 0
    for _ in range(sample(500, 2_000, 10_000, 10_000)):
        text, _ = dice.choice(GOLDEN)
        at = dice.randrange(text.index("<") + 1, len(text) + 1)
        changed = text[:at] + dice.choice(CHANGES) + text[at + dice.choice([0, 0, 1]) :]
        try:
            theirs = str(ir.Attribute.parse(changed, context))
        except ir.MLIRError:
            with pytest.raises(shardy.FormatError):
                print(printed_again(changed))
        else:
            assert printed_again(changed) == theirs
            taken += 1
    assert taken > 10
