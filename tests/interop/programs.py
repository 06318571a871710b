"""Programs that the tests of formats annotate."""

from __future__ import annotations

from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Products:
    @R.function
    def main(
        x: R.Tensor((8, 64), "float32"),
        up: R.Tensor((64, 32), "float32"),
        down: R.Tensor((32, 64), "float32"),
    ) -> R.Tensor((8, 64), "float32"):
        hidden = R.matmul(x, up)
        result = R.matmul(hidden, down)
        return result


@I.ir_module
class Tuples:
    @R.function
    def main(
        x: R.Tensor((8, 64), "float32"),
        weights: R.Tuple(R.Tensor((64, 32), "float32"), R.Tuple(R.Tensor((32, 64), "float32"))),
    ) -> R.Tuple(R.Tensor((8, 32), "float32"), R.Tensor((8, 64), "float32")):
        up = weights[0]
        rest = weights[1]
        down = rest[0]
        hidden = R.matmul(x, up)
        result = R.matmul(hidden, down)
        return (hidden, result)
