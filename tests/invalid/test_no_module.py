"""Objects that are not an IRModule raise before the native library reads them."""

import pytest
import tvm
from tvm import relax

import distir_ext as dx

MESH = dx.Mesh(tp=2)
TAKES_MODULE = {
    "annotate": lambda mod: dx.annotate(mod, MESH, {}),
    "lower": dx.lower,
    "build": dx.build,
    "phase": dx.phase,
    "explain": lambda mod: dx.explain(mod, "x"),
    "script": dx.script,
    "meshes": dx.meshes,
    "summary": dx.summary,
    "dims": lambda mod: dx.dims(mod, relax.Var("x", relax.TensorType((4,), "float32"))),
    "optimizations": dx.analysis.optimizations,
    "verify": lambda mod: dx.testing.verify(mod, "propagated"),
    "a mutator": dx.ShardingMutator(),
}


def function():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    return builder.get()["main"]


@pytest.mark.parametrize("name", TAKES_MODULE)
def test_one_error_says_what_is_expected(name):
    for given, kind in ((function(), "Function"), (None, "NoneType"), ("main", "str")):
        with pytest.raises(TypeError, match=rf"^expected a tvm\.IRModule, got {kind}"):
            TAKES_MODULE[name](given)


def test_a_function_can_be_made_a_module():
    with pytest.raises(TypeError, match=r"of a function, tvm\.IRModule.* makes one"):
        dx.lower(function())
    assert dx.phase(tvm.IRModule({"main": function()})) is None
