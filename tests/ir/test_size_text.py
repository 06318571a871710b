"""Sizes as text: plain Python, whatever the names, with the value that TVM computes."""

from __future__ import annotations

import random

import pytest
import tvm
from tests.native.library import call
from tvm import tirx

from distir_ext.signature import signature_form
from distir_ext.signature.sizes import names_in, size_of
from distir_ext.text.size_text import size_text

N = tirx.Var("n", "int64")
ODD = tirx.Var('2 * b, [c]: "d"', "int64")
CLASS = tirx.Var("rows.0", "int64")


def test_texts():
    for size, text in (
        (8, "8"),
        (N, "n"),
        ((N + 7) // 8, "(n + 7) // 8"),
        ((N + 7) // 8 * 8, "(n + 7) // 8 * 8"),
        (N - (N - 2), "n - (n - 2)"),
        (N * (N * 2), "n * (n * 2)"),
        (N % 3 * -2, "n % 3 * (-2)"),
        (tirx.min(N, 4) + tirx.truncdiv(N, N), "min(n, 4) + truncdiv(n, n)"),
        (ODD, '2 * b, [c]: "d"'),
        (CLASS + 1, '"rows.0" + 1'),
    ):
        assert size_text(size) == text


def test_texts_have_the_value_of_the_size():
    choose = random.Random(0)
    operations = (
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: a // (b * b + 1),
        lambda a, b: a % (b * b + 1),
        tirx.min,
        tirx.max,
        lambda a, b: tirx.truncdiv(a, b * b + 1),
        lambda a, b: tirx.truncmod(a, b * b + 1),
    )
    values = {N: 5, ODD: 7, CLASS: 3}
    analyzer = tvm.sym.Analyzer()
    for var, value in values.items():
        analyzer.bind(var, tirx.IntImm("int64", value))
    for _ in range(200):
        size = choose.choice([N, ODD, CLASS])
        for _ in range(choose.randint(1, 6)):
            other = choose.choice([N, ODD, CLASS, tirx.IntImm("int64", choose.randint(-3, 9))])
            pair = (size, other) if choose.random() < 0.5 else (other, size)
            size = choose.choice(operations)(*pair)
        wanted = analyzer.simplify(size)
        text = call("SizeText", size)
        named = {str(var.name): value for var, value in values.items()}
        assert size_of(signature_form._size(text), named) == int(wanted), text
        assert set(names_in(text)) <= named.keys()


@pytest.mark.parametrize("name", [ODD.name, CLASS.name, "n"])
def test_sizes_that_have_to_divide_have_their_own_names(name):
    written = call("SizeText", tirx.Var(name, "int64"))
    function = {"params": [], "result": "value", "dividing": {written: "why"}, "programs": []}
    read = signature_form.read({"meshes": [], "functions": {"f": function}})
    assert read.signature["functions"]["f"]["dividing"] == {name: "why"}
