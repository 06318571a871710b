"""A program with something to do for every pass: uneven sizes, a softmax along shards, a sum."""

from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("dp", "tp"))


@I.ir_module
class Plain:
    @R.function
    def main(
        x: R.Tensor((7, 12), "float32"),
        up: R.Tensor((12, 16), "float32"),
        down: R.Tensor((16, 12), "float32"),
    ) -> R.Tensor((7, 12), "float32"):
        with R.dataflow():
            scores = R.nn.softmax(R.matmul(x, up))
            y = R.matmul(scores, down)
            R.output(y)
        return y


def annotated():
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    return dx.annotate(Plain, MESH, plan)
