"""Programs of which variables and results are annotated."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 3), ("dp", "tp"))


@I.ir_module
class Branches:
    @R.function
    def main(
        x: R.Tensor((6, 8), "float32"),
        w: R.Tensor((8, 12), "float32"),
        c: R.Tensor((), "bool"),
    ) -> R.Tuple(R.Tensor((6, 12), "float32"), R.Tensor((6, 12), "float32")):
        with R.dataflow():
            h = R.matmul(x, w)
            g = R.nn.relu(h)
            R.output(g)
        if c:
            t = R.add(g, g)
            r = t
        else:
            k = R.negative(g)
            r = k
        with R.dataflow():
            y = R.add(r, g)
            R.output(y)
        return (y, g)


@I.ir_module
class Pair:
    @R.function
    def main(x: R.Tensor((6, 12), "float32")) -> R.Tensor((6, 6), "float32"):
        with R.dataflow():
            halves = R.split(x, 2, axis=1)
            a = halves[0]
            b = halves[1]
            y = R.add(a, b)
            R.output(y)
        return y


def bound(mod, func="main"):
    """By name of a variable the mesh and placement of what is bound to it."""
    text = mod[func].script()
    found = {}
    for line in text.splitlines():
        if "annotate_sharding(" in line:
            name = line.strip().partition(":")[0]
            found[name] = line.rpartition("placement=")[2].strip(' ")')
    return found


def check(mod):
    assert relax.analysis.check_well_formed(mod)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
