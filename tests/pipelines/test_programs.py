"""Whole programs through dx.build on CPU workers, against the unpartitioned program run by TVM."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Branching:
    """Calls in calls, branches with several operators, tuples in tuples, a constant."""

    @R.function(private=True)
    def block(
        x: R.Tensor((4, 8, 16), "float32"),
        up: R.Tensor((16, 64), "float32"),
        down: R.Tensor((64, 16), "float32"),
    ) -> R.Tensor((4, 8, 16), "float32"):
        with R.dataflow():
            hidden = R.nn.gelu(R.matmul(x, up))
            y = R.add(x, R.matmul(hidden, down))
            R.output(y)
        return y

    @R.function(private=True)
    def two_blocks(
        x: R.Tensor((4, 8, 16), "float32"),
        up: R.Tensor((16, 64), "float32"),
        down: R.Tensor((64, 16), "float32"),
    ) -> R.Tensor((4, 8, 16), "float32"):
        cls = Branching
        with R.dataflow():
            a = cls.block(x, up, down)
            b = cls.block(a, up, down)
            R.output(b)
        return b

    @R.function
    def main(
        x: R.Tensor((4, 8, 16), "float32"),
        up: R.Tensor((16, 64), "float32"),
        down: R.Tensor((64, 16), "float32"),
        flag: R.Tensor((), "bool"),
    ):
        cls = Branching
        a = cls.two_blocks(x, up, down)
        if flag:
            y = cls.block(a, up, down)
            r = R.multiply(y, R.const(2.0, "float32"))
        else:
            z = R.nn.relu(a)
            r = R.permute_dims(R.reshape(z, (4, 16, 8)), (0, 2, 1))
        s = R.split(r, 2, axis=2)
        t = R.concat([s[1], s[0]], axis=2)
        return (t, (R.mean(t, axis=[0, 1]), R.max(t)))


MESHES = {
    "2": dx.Mesh((2,), ("a",)),
    "16": dx.Mesh((16,), ("a",)),
    "2x2": dx.Mesh((2, 2), ("a", "b")),
    "4x2": dx.Mesh((4, 2), ("a", "b"), device_ids=[7, 3, 5, 1, 6, 2, 4, 0]),
    "2x2x2x2": dx.Mesh((2, 2, 2, 2), ("a", "b", "c", "d")),
}
PLANS = [
    ("2", {"x": ("a", None, None)}),
    ("16", {"x": (None, None, "a")}),
    ("16", {"up": (None, "a")}),
    ("2x2", {"x": ("a", None, None), "up": (None, "b"), "down": ("b", None)}),
    ("4x2", {"x": (None, ("a", "b"), None), "up": ("b", "a")}),
    ("2x2x2x2", {"x": ("a", "b", None), "up": (None, ("c", "d")), "down": (("c", "d"), None)}),
    ("2x2x2x2", {"x": ("d", ("b", "c"), "a"), "down": ("a", "b")}),
    ("2x2x2x2", {"up": (("a", "b"), ("c", "d"))}),
]


@pytest.fixture(scope="module")
def arguments():
    rng = np.random.default_rng(0)
    shapes = ((4, 8, 16), (16, 64), (64, 16))
    return [rng.standard_normal(shape, "float32") / 4 for shape in shapes]


@pytest.fixture(scope="module")
def expected(arguments):
    # Without TVM's static memory plan, which crashes on branches with several operators.
    with tvm.transform.PassContext(opt_level=2, disabled_pass=["StaticPlanBlockMemory"]):
        machine = relax.VirtualMachine(tvm.compile(Branching, "llvm"), tvm.cpu())
    return {
        flag: _flat(machine["main"](*map(tvm.runtime.tensor, [*arguments, np.array(flag)])))
        for flag in (False, True)
    }


def _flat(value):
    if hasattr(value, "numpy"):
        return [value.numpy()]
    return [leaf for field in value for leaf in _flat(field)]


@pytest.mark.parametrize(("mesh", "plan"), PLANS)
def test_branching_program(mesh, plan, arguments, expected):
    mod = dx.annotate(Branching, MESHES[mesh], plan)
    sequence = tvm.transform.Sequential(
        [
            dx.transform.PropagateSharding(),
            dx.transform.LegalizeRedistribute(),
            dx.transform.LowerDistIR(),
            dx.transform.LowerCCL(),
        ]
    )
    executable = dx.build(sequence(mod))
    with dx.Session(MESHES[mesh]) as session:
        model = session.load(executable)
        for flag in (False, True):
            actual = _flat(model["main"](*arguments, np.array(flag)))
            for a, e in zip(actual, expected[flag], strict=True):
                np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def test_dropping_a_collective_is_noticed(arguments, expected):
    """The comparison above can fail: without its reductions the program is wrong."""
    mesh = MESHES["2x2"]
    mod = dx.annotate(Branching, mesh, {"up": (None, "b"), "down": ("b", None)})
    lowered = dx.lower(mod)

    @relax.expr_functor.mutator
    class DropReductions(relax.PyExprMutator):
        def visit_call_(self, call):
            if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.ccl.all_reduce":
                return self.visit_expr(call.args[0])
            return super().visit_call_(call)

    for gv, function in lowered.functions.items():
        if isinstance(function, relax.Function):
            lowered[gv] = DropReductions(lowered).visit_expr(function)
    with dx.Session(mesh) as session:
        actual = _flat(session.load(dx.build(lowered))["main"](*arguments, np.array(True)))
    assert not np.allclose(actual[0], expected[True][0], rtol=1e-2, atol=1e-2)
