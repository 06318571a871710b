"""Sizes that match_cast defines, on shards."""

import numpy as np
import tvm
from tests.lower.verified import lowered
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def test_match_cast_defines_local_sizes():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")):
            n = T.int64()
            m = T.int64()
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = R.match_cast(x0, R.Tensor((m, 8), "float32"))
            z = R.reshape(y, R.shape([m * 8]))
            return z

    result = lowered(Before)
    cast = result["main"].body.blocks[0].bindings[0]
    assert isinstance(cast, relax.MatchCast)
    m = cast.ty.shape[0]
    reshaped = result["main"].body.blocks[0].bindings[1]
    tvm.ir.assert_structural_equal(reshaped.var.ty.shape[0], m * 8)
    x = np.arange(48, dtype="float32").reshape(6, 8)
    with dx.Session(2) as session:
        z = session.load(dx.build(Before))["main"](x)
    np.testing.assert_array_equal(z.numpy(), x.reshape(-1))
