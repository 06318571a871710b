"""Tests of operators' estimated work."""

import pytest
from tests.native.library import call
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T


@I.ir_module
class Operators:
    @R.function(private=True)
    def twice(x: R.Tensor((8, 32), "float32")):
        y = R.add(x, x)
        z = R.add(y, y)
        return z

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w: R.Tensor((16, 32), "float32"),
        image: R.Tensor((2, 3, 8, 8), "float32"),
        kernel: R.Tensor((4, 3, 3, 3), "float32"),
        table: R.Tensor((1000, 32), "float32"),
        ids: R.Tensor((8,), "int64"),
        rows: R.Tensor(("n", 2), "float16"),
        flag: R.Tensor((), "bool"),
    ):
        n = T.int64()
        cls = Operators
        product = R.matmul(x, w)
        image1 = R.nn.conv2d(image, kernel, padding=1)
        found = R.take(table, ids, axis=0)
        total = R.sum(product, axis=1)
        again = cls.twice(product)
        half = R.multiply(rows, rows)
        if flag:
            chosen = R.add(again, found)
        else:
            kept = R.add(again, found)
            chosen = R.add(kept, found)
        return (chosen, image1, total, half)


def seconds(operations, memory_bandwidth):
    return list(call("Work", Operators, Operators["main"], operations, memory_bandwidth))[:7]


def test_operations():
    assert seconds(1.0, 1e30) == pytest.approx(
        [
            2 * 8 * 32 * 16,
            2 * (2 * 4 * 8 * 8) * (3 * 3 * 3),
            8 * 32,  # a lookup does not read the whole table
            2 * 8 * 32,
            2 * 8 * 32,
            1024 * 2,  # a symbolic dimension counts as 1024
            2 * 8 * 32,  # the longer branch
        ]
    )


def test_bytes():
    assert seconds(1e30, 1.0) == pytest.approx(
        [
            4 * (8 * 16 + 16 * 32 + 8 * 32),
            4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 64),
            4 * (2 * 8 * 32) + 8 * 8,
            4 * (8 * 32 + 8),
            2 * 4 * 3 * 8 * 32,
            2 * 3 * 2048,
            2 * 4 * 3 * 8 * 32,
        ]
    )


def test_attention_counts_both_products_over_all_keys():
    @I.ir_module
    class Attention:
        @R.function
        def main(
            q: R.Tensor((2, 5, 4, 8), "float32"),
            k: R.Tensor((2, 7, 4, 8), "float32"),
            v: R.Tensor((2, 7, 4, 6), "float32"),
        ):
            return R.nn.attention(q, k, v)

    (operations,) = call("Work", Attention, Attention["main"], 1.0, 1e30)
    assert operations == pytest.approx(2 * (2 * 4 * 5 * 7) * (8 + 6))
