"""Ctrl-C and sys.exit in the middle of a build, which go through TVM's C++."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

import distir_ext as dx


def program():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.negative(x)))
    return dx.annotate(builder.get(), dx.Mesh(tp=2), {"x": ("tp",)})


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_ends_stay_what_they_are(end):
    @tvm.transform.module_pass(opt_level=0, name="Ends")
    def ends(mod, context):
        raise end

    with pytest.raises(end):
        tvm.transform.Sequential([dx.transform.PropagateSharding(), ends])(program())
    with pytest.raises(end):
        dx.build(program(), relax_pipeline=ends)
