"""Any module that jaxlib reads is imported, or refused with an error that says where and why.

``operations.mlir`` has small modules, which are changed at random. jaxlib's parser refuses most
that are no StableHLO; one context serves many texts, as making one takes longer than importing.
"""

import random
import re
import time
from pathlib import Path

import pytest

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from jaxlib.mlir import ir  # noqa: E402

from_stablehlo = dx.interop.jax.from_stablehlo

TEXTS = (Path(__file__).parent / "operations.mlir").read_text("utf-8").split("// -----\n")
OPERATIONS = sorted({each for text in TEXTS for each in re.findall(r"stablehlo\.\w+", text)})
ELEMENTWISE = "add divide maximum minimum power remainder shift_left or atan2 cbrt popcnt tanh not"
NUMBERS = ["0", "1", "2", "3", "5", "-1", "100", str(2**40), "9" * 30]
SHARDINGS = ["{?}", '{"tp", ?}', '{"no"}', "{}", '{"dp"}p1', '{"tp":(1)2}', '{"dp", "tp"}']
MESHES = ['["dp"=2, "tp"=4], device_ids=[3, 1, 0, 2, 7, 6, 5, 4]', '["dp"=8]', "[]", '["tp"=0]']
MESHES += ['["tp"=4, "dp"=2]', '["dp"=1, "tp"=4]', '["dp"=3, "tp"=4]', "[], device_ids=[0]"]
DTYPES = ["bf16", "f64", "i32", "ui8", "i1", "f8E5M2", "complex<f32>"]
SECONDS = 2  # of one text, on a machine that others use, too


def _one(text, pattern, dice, new=None):
    """Another one in the place of one that matches; by default another that matches."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    old = dice.choice(found)
    return text[: old.start()] + (new or dice.choice(found)[0]) + text[old.end() :]


def _all(text, pattern, dice, new):
    """All that are as one that matches, as types have to agree."""
    found = re.findall(pattern, text)
    return text.replace(dice.choice(found), new) if found else text


CHANGES = [
    lambda text, dice: _one(
        text, r"(?<=stablehlo\.)(add|maximum|negate|sine)\b", dice, dice.choice(ELEMENTWISE.split())
    ),
    lambda text, dice: _one(text, r"stablehlo\.\w+", dice, dice.choice(OPERATIONS)),
    lambda text, dice: _one(text, r"(?<![%\w<])-?\d+(?![\w>])", dice, dice.choice(NUMBERS)),
    lambda text, dice: _all(text, r"\b[248](?=x)", dice, dice.choice([*"12468", "?"])),
    lambda text, dice: _all(text, r"\bf32\b", dice, dice.choice(DTYPES)),
    lambda text, dice: _one(text, r"tensor<[^>]*>", dice),
    lambda text, dice: _one(text, r"[%@]\w+", dice),
    lambda text, dice: _one(text, r'\{("\w+"[^{}]*|\?)?\}', dice, dice.choice(SHARDINGS)),
    lambda text, dice: _one(text, r"\[[^][]*\]", dice),
    lambda text, dice: _one(text, r"(?<=mesh = <).*(?=>)", dice, dice.choice(MESHES)),
    lambda text, dice: _one(text, r"[<>{}()\[\],=:%]", dice, dice.choice("<>{}()[],=:% ")),
]


def changed(text, dice):
    """A text with one or two changes."""
    new, count = text, dice.choice([1, 1, 2])
    while new == text or count > 0:
        new, count = dice.choice(CHANGES)(new, dice), count - 1
    return new


def outcome(text, context):
    """Imports a text; returns "no StableHLO", "refused" or "imported"."""
    try:
        module = ir.Module.parse(text, context)
    except (ir.MLIRError, ValueError):
        return "no StableHLO"
    begin = time.process_time()
    try:
        from_stablehlo(module)
        found = "imported"
    except ValueError as error:
        found = "refused"
        if not says_where(str(error)):
            raise AssertionError(f"this says not where: {error}") from error
    assert time.process_time() - begin < SECONDS
    return found


def says_where(message):
    message.encode()  # can be printed
    return re.search(r"line \d+|column \d+|@\w+|\bmain\b|parameter|mesh|jaxlib reads", message)


def test_changed_texts_are_imported_or_refused(sample):
    context = jax.interpreters.mlir.make_ir_context()
    for text in TEXTS:
        assert outcome(text, context) == "imported", text
    dice = random.Random(0)
    found = dict.fromkeys(["no StableHLO", "refused", "imported"], 0)
    for number in range(sample(2_000, 10_000, 100_000, 100_000)):
        if number % 5_000 == 0:  # a context keeps all types and attributes that it has seen
            context = jax.interpreters.mlir.make_ir_context()
        text = changed(dice.choice(TEXTS), dice)
        try:
            found[outcome(text, context)] += 1
        except Exception as error:
            raise AssertionError(text) from error
    assert min(found.values()) > sum(found.values()) / 100, found


def test_texts_that_jaxlib_does_not_read_are_one_error(sample):
    """With a context for each, as users have it."""
    dice = random.Random(1)
    refused = 0
    for _ in range(sample(20, 100, 500, 1_000)):
        text = changed(dice.choice(TEXTS), dice)
        try:
            from_stablehlo(text)
        except ValueError as error:
            refused += 1
            if not says_where(str(error)):
                raise AssertionError(text) from error
    assert refused
