"""Decisions that equal calls share, and differences that keep calls apart."""

import numpy as np
import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.relax import op
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

FLOAT = "float32"


def propagated_types(calls, dims):
    """The types of the results of calls of x and y, (8, 8, 8) each, x sharded as `dims` says."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((8, 8, 8), FLOAT)) for name in "xy")
    with builder.function("main", [x, y]):
        results = [builder.emit(call(x, y), f"r{i}") for i, call in enumerate(calls)]
        builder.emit_func_output(builder.emit(relax.Tuple(results)))
    mod = dx.annotate(
        builder.get(), dx.Mesh((2, 2), ("a", "b")), {"x": dims, "y": (None, None, None)}
    )
    main = dx.transform.PropagateSharding()(mod)["main"]
    found = {
        binding.var.name: str(binding.var.ty)
        for block in main.body.blocks
        for binding in block.bindings
    }
    return [found[f"r{i}"] for i in range(len(calls))]


DIFFERENT = {
    "an axis": [lambda x, _, a=axis: op.nn.softmax(x, axis=a) for axis in (0, 1, 2)],
    "a list of axes": [
        lambda x, _, a=axes: op.sum(x, axis=a, keepdims=True) for axes in ([0], [1], [0, 1], None)
    ],
    "a flag": [lambda x, _, k=keep: op.sum(x, axis=[0], keepdims=k) for keep in (True, False)],
    "an order": [
        lambda x, _, a=axes: op.permute_dims(x, a) for axes in ([1, 0, 2], [2, 1, 0], None)
    ],
    "a shape": [
        lambda x, _, s=shape: op.reshape(x, s) for shape in ((64, 8), (8, 64), (4, 16, 8), (512,))
    ],
    "a text": [
        lambda x, y, s=text: op.einsum((x, y), s)
        for text in ("abc,abd->cd", "abc,abd->acd", "abc,dbc->ad")
    ],
    "integers of a tuple": [
        lambda x, _, a=axes: op.strided_slice(x, axes=a, begin=[0], end=[8]) for axes in ([0], [1])
    ],
    "constants": [
        lambda x, _, v=values: op.dynamic_strided_slice(
            x, *(relax.const(np.array(value, "int64"), "int64") for value in v)
        )
        for values in (([0, 0, 0], [8, 4, 8], [1, 1, 1]), ([0, 0, 0], [4, 8, 8], [1, 1, 1]))
    ],
    "an operand's shape": [
        lambda x, y: op.add(x, y),
        lambda x, y: op.add(x, op.sum(y, axis=[0], keepdims=True)),
    ],
    "which operand": [lambda x, y: op.matmul(x, y), lambda x, y: op.matmul(y, x)],
    "how an operand lies": [
        lambda x, y: op.exp(x),
        lambda x, y: op.exp(op.zeros((8, 8, 8), FLOAT)),
    ],
}


@pytest.mark.parametrize("dims", [("a", None, None), (None, "b", "a"), (("b", "a"), None, None)])
@pytest.mark.parametrize("what", DIFFERENT)
def test_calls_that_differ_are_each_computed_as_they_are_alone(what, dims):
    calls = DIFFERENT[what]
    alone = [propagated_types([call], dims)[0] for call in calls]
    assert propagated_types(calls, dims) == alone
    assert propagated_types(calls[::-1], dims) == alone[::-1]


def test_passes_keep_the_objects_of_what_they_leave_as_it_is():
    @I.ir_module
    class Mod:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
            with R.dataflow():
                x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
                w0 = R.dist.annotate_sharding(w, "mesh[0]", "S[0]")
                a = R.exp(x0)
                b = R.matmul(a, w0)
                c = R.exp(b)
                R.output(c)
            return c

    def bindings(mod):
        return {
            binding.var.name: binding
            for block in mod["main"].body.blocks
            for binding in block.bindings
        }

    for before, after in (
        (dx.transform.PropagateSharding(), dx.transform.LegalizeRedistribute()),
        (dx.transform.LowerDistIR(), dx.transform.LowerCCL()),
    ):
        Mod = before(Mod)
        given, made = bindings(Mod), bindings(after(Mod))
        assert given["a"].same_as(made["a"])  # before the reduction
        assert not given["b"].same_as(made["b"])
        Mod = after(Mod)
        tvm.relax.analysis.well_formed(Mod)
