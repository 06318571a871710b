"""Programs that optimisations change, for tests of what they write and of its numbers."""

from collections import Counter

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Everything:
    I.module_global_infos(meshes((2, 2)))

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1], S[0]"),
        y: R.DTensor((4, 4, 6), "float32", "mesh[0]", "S[1], R"),
        z: R.DTensor((6, 8), "float32", "mesh[0]", "S[1], R"),
    ):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            a = R.sum(x, axis=[1])
            b = R.dist.all_reduce(a, "mesh[0]", "R, S[0]", reduce_axes=[0], reduction="sum")
            c = R.sum(y, axis=[1])
            d = R.dist.all_reduce(c, "mesh[0]", "R, R", reduce_axes=[0], reduction="sum")
            e = R.dist.all_gather(x, "mesh[0]", "R, S[0]")
            f = R.dist.all_gather(y, "mesh[0]", "R, R")
            g = R.dist.all_gather(z, "mesh[0]", "R, R")
            h = R.sum(y, axis=[1])
            i = R.dist.reduce_scatter(h, "mesh[0]", "S[1], R", reduce_axes=[0], reduction="sum")
            j = R.sum(z, axis=[1])
            k = R.dist.reduce_scatter(j, "mesh[0]", "S[0], R", reduce_axes=[0], reduction="sum")
            R.output(b, d, e, f, g, i, k)
        return (b, d, e, f, g, i, k)


@I.ir_module
class NormOfReduced:
    I.module_global_infos(meshes((4,)))

    @R.function
    def main(
        r: R.DTensor((8, 16), "float32", "mesh[0]", "R"),
        g: R.DTensor((16,), "float32", "mesh[0]", "R"),
        x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
        w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
    ):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            c = R.add(r, b)
            d = R.nn.rms_norm(c, g, axes=[1], epsilon=0.0078125)
            R.output(c, d)
        return (c, d)


@I.ir_module
class Shared:
    I.module_global_infos(meshes((4,)))

    @R.function(private=True)
    def layer(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            v = R.dist.all_gather(w, "mesh[0]", "R")
            y = R.matmul(x, v)
            R.output(y)
        return y

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        weight: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
        R.func_attr({"distir.explicit_reductions": True})
        cls = Shared
        with R.dataflow():
            a = cls.layer(x, weight)
            b = cls.layer(a, weight)
            R.output(b)
        return b


@I.ir_module
class Weights:
    I.module_global_infos(meshes((4,)))

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        y: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w1: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w2: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
    ):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            a = R.dist.all_gather(w1, "mesh[0]", "R")
            b = R.matmul(x, a)
            c = R.nn.relu(y)
            d = R.dist.all_gather(w2, "mesh[0]", "R")
            e = R.matmul(c, d)
            f = R.add(b, e)
            R.output(f)
        return f


def counts(mod):
    found = Counter()
    for each in dx.analysis.collectives(dx.lower(mod)):
        found[each.kind] += each.count
    return dict(found)


def legal(mod):
    return dx.transform.LegalizeRedistribute()(dx.transform.PropagateSharding()(mod))


def sent(mod):
    return sum(c.count * c.bytes_per_device for c in dx.analysis.collectives(dx.lower(mod)))
