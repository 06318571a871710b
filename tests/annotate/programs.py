"""Programs that tests annotate."""

from __future__ import annotations

from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Packed:
    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        weights: R.Tuple(
            R.Tensor((8, 8), "float32"),
            R.Tuple(R.Tensor((8,), "float32"), R.Tensor((8, 8), "float32")),
        ),
        n: R.Shape(["m"]),
    ) -> R.Tensor((4, 8), "float32"):
        with R.dataflow():
            a = weights[0]
            rest = weights[1]
            b = rest[0]
            c = rest[1]
            h = R.matmul(x, a)
            g = R.add(h, b)
            y = R.matmul(g, c)
            R.output(y)
        return y
