"""Programs whose values move between meshes."""

from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import verify


def lowered(mod):
    result = mod
    for stage, transform in [
        ("propagated", dx.transform.PropagateSharding()),
        ("legalized", dx.transform.LegalizeRedistribute()),
        ("lowered", dx.transform.LowerDistIR()),
    ]:
        result = transform(result)
        verify(result, stage)
        assert relax.analysis.check_well_formed(result)
    return result


@I.ir_module
class Disjoint:
    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        w0: R.Tensor((16, 16), "float32"),
        w1: R.Tensor((16, 16), "float32"),
    ):
        R.func_attr({"num_input": 1})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.matmul(x0, w0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.matmul(a1, w1)
        return b


@I.ir_module
class Overlapping:
    """Mesh 0 has four devices, mesh 1 two of them; there and back again."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2,), I.Range(2, 4))]}
    )

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
        a = R.nn.relu(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        b = R.matmul(a1, w1)
        b0 = R.dist.annotate_sharding(b, "mesh[0]", "R, S[0]")
        c = R.add(b0, x0)
        return (c, b)


@I.ir_module
class SymbolicStages:
    """No parameter of the second stage has the batch size."""

    I.module_global_infos(meshes((2,), (2,)))

    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w0: R.Tensor((16, 16), "float32"),
        w1: R.Tensor((16, 16), "float32"),
    ):
        R.func_attr({"num_input": 1})
        n = T.int64()
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.matmul(x0, w0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "S[0]")
        b = R.matmul(a1, w1)
        c = R.reshape(b, R.shape([n, 4, 4]))
        return c
