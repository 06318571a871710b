"""Programs whose values return to an earlier mesh, as in interleaved pipelines."""

from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.signature.signature_attr import read_signature
from distir_ext.testing.phases import verify


def lowered(mod):
    result = dx.lower(mod)
    verify(result, "lowered")
    assert relax.analysis.check_well_formed(result)
    return result


def programs(mod, function="main"):
    signature = read_signature(mod)
    spec = signature["functions"][function]
    names = [param["name"] for param in spec["params"]]
    return [
        (each["name"], each["virtual_stage"], [names[i] for i in each["params"]], each["results"])
        for each in spec["programs"]
    ]


@I.ir_module
class There:
    """Back and forth, with a value that the first mesh uses again and a weight of both stages."""

    I.module_global_infos(meshes((2,), (1,)))

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
    ):
        R.func_attr({"num_input": 1, "distir.interleaved": [0, 2]})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        h = R.matmul(x0, v)
        vt = R.permute_dims(v)
        h1 = R.dist.annotate_sharding(h, "mesh[1]", "R")
        g1 = R.tanh(h1)
        w1 = R.dist.annotate_sharding(w, "mesh[1]", "R")
        k1 = R.matmul(g1, w1)
        g0 = R.dist.annotate_sharding(k1, "mesh[0]", "S[0]")
        s = R.add(g0, h)
        y = R.matmul(s, vt)
        return (y, h)
