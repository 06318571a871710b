"""Runs programs with uneven shards on CPU workers and on one device."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

import distir_ext as dx

TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-14}
"""Relative RMSE: some units in the last place, as sums are added in another order."""


def whole(program: tvm.IRModule, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs a program on one device with TVM alone."""
    with tvm.transform.PassContext(disabled_pass=["StaticPlanBlockMemory"]):
        executable = tvm.compile(program, QUICK)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return arrays(machine["main"](*map(tvm.runtime.tensor, inputs)))


def arrays(result: Any) -> list[np.ndarray]:
    """The tensors of a result in order."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for each in result for array in arrays(each)]


def assert_same_numbers(
    program: tvm.IRModule,
    mesh: dx.Mesh,
    plan: dict[str, Any],
    inputs: Sequence[np.ndarray],
    session: dx.Session,
    change: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod,
) -> None:
    """Runs an annotated program on workers and compares it with the program on one device.

    Args:
        program: An undistributed module with a function ``main``.
        mesh: The mesh of the plan.
        plan: As for `dx.annotate`.
        inputs: The arguments of ``main``; weights last.
        session: Workers for the mesh.
        change: Applied to the lowered module.
    """
    lowered = change(dx.lower(dx.annotate(program, mesh, plan)))
    num_input = int((program["main"].attrs or {}).get("num_input", len(inputs)))
    model = session.load(dx.build(lowered, QUICK), params=list(inputs[num_input:]))
    got = arrays(model["main"](*inputs[:num_input]))
    wanted = whole(program, inputs)
    assert len(got) == len(wanted)
    for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
        assert left.shape == right.shape, f"result {index}: {left.shape}, not {right.shape}"
        if right.dtype.name not in TOLERANCE:
            np.testing.assert_array_equal(left, right)
            continue
        error = np.linalg.norm(left.astype("float64") - right.astype("float64"))
        error /= max(np.linalg.norm(right.astype("float64")), 1e-30)
        assert error <= TOLERANCE[right.dtype.name], f"result {index}: relative RMSE {error:.1e}"


@mutator
class WithoutMasks(PyExprMutator):
    """Every masked value as it was before."""

    count = 0

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not call.op.same_as(tvm.ir.Op.get("relax.where")):
            return call
        self.count += 1
        return call.args[1]


def without_masks(mod: tvm.IRModule) -> tvm.IRModule:
    """Sabotage: a lowered module that reduces what stands in tails."""
    change = WithoutMasks(mod)
    functions = {
        var: change.visit_expr(f) if isinstance(f, relax.Function) else f
        for var, f in mod.functions.items()
    }
    assert change.count > 0
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
