"""Many annotated calls as functions of one module: partitioned, run on workers, compared."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax.distributed import DTensorType
from tvm.relax.op.distributed import annotate_sharding

import distir_ext as dx
from distir_ext.compile.kernel_values import tir_pipeline
from distir_ext.compile.kernels.legalizations.legalize import legalize_operators, prepare_operators

from .case import Case
from .legalizations import LEGALIZATIONS
from .placement import Dims, Expectation, MeshShape, device_mesh, num_shards, to_placement

# Relative RMSE. Sharding changes the order of sums, and the vector width of loops, so results may
# differ by a few units in the last place of the type: 2^-24 = 6e-8 for float32, 2^-53 = 1.1e-16
# for float64, 2^-11 = 4.9e-4 for float16, 2^-8 = 3.9e-3 for bfloat16, whose sums are rounded at
# every step.
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}
# TVM approximates some functions (tanh, erf, exp) to a few 1e-6 in float32.
NUMPY_TOLERANCE = {"float32": 2e-5, "float64": 2e-5, "float16": 2e-3}


@dataclass(frozen=True)
class Partitioned:
    """A case with placements: of operands, of results, or of both; None places nothing."""

    case: Case
    mesh: MeshShape
    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    expectation: Expectation

    def __str__(self) -> str:
        def text(dims: Dims | None) -> str:
            return "-" if dims is None else f'"{to_placement(dims)}"'

        operands = ", ".join(map(text, self.operands))
        results = ", ".join(map(text, self.results))
        return f"{self.case} on {self.mesh}: [{operands}] -> [{results}]"


def call_of(case: Case, mesh: MeshShape | None = None, placed: Any = None) -> relax.Function:
    """The case as a function, with annotations if placements of operands and results are given."""
    operands, results = placed or ((None,) * len(case.operands), (None,) * len(case.results))
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType(operand.shape, operand.dtype))
        for i, operand in enumerate(case.operands)
    ]

    def annotated(value: relax.Expr, dims: Dims | None) -> relax.Expr:
        if dims is None:
            return value
        return builder.emit(annotate_sharding(value, device_mesh(mesh), to_placement(dims)))

    with builder.function("call", params):
        with builder.dataflow():
            args = [annotated(*pair) for pair in zip(params, operands, strict=True)]
            value = builder.emit(case.apply(*args))
            if isinstance(value.ty, relax.TupleType):
                fields = [builder.emit(value[i]) for i in range(len(value.ty.fields))]
                fields = [annotated(*pair) for pair in zip(fields, results, strict=True)]
                value = builder.emit_output(relax.Tuple(fields))
            else:
                value = builder.emit_output(annotated(value, results[0]))
        builder.emit_func_output(value)
    return builder.get()["call"]


@functools.cache
def result_shapes(case: Case) -> tuple[tuple[int, ...], ...]:
    """Shapes of the results."""
    returned = call_of(case).ret_ty
    fields = returned.fields if isinstance(returned, relax.TupleType) else [returned]
    return tuple(tuple(int(size) for size in field.shape) for field in fields)


def module_of(functions: dict[str, relax.Function], mesh: MeshShape | None) -> tvm.IRModule:
    mod = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in functions.items()})
    if mesh is not None:
        mod.update_global_info("mesh", [device_mesh(mesh)])
    return mod


def legalized(mod: tvm.IRModule) -> tvm.IRModule:
    passes = [*prepare_operators(), *legalize_operators(LEGALIZATIONS)]
    return tvm.transform.Sequential(passes)(mod)


def unsharded(cases: Sequence[Case]) -> list[list[np.ndarray]]:
    """Results of each case on one device."""
    functions = {f"case{i}": call_of(case) for i, case in enumerate(cases)}
    machine = relax.VirtualMachine(
        tvm.compile(
            legalized(module_of(functions, None)), QUICK, tir_pipeline=tir_pipeline(for_cpu=True)
        ),
        tvm.cpu(),
    )
    return [
        to_arrays(machine[f"case{i}"](*(tvm.runtime.tensor(x) for x in case.arrays())))
        for i, case in enumerate(cases)
    ]


def to_arrays(result: Any) -> list[np.ndarray]:
    """The tensors of a result in order."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [array for each in result for array in to_arrays(each)]


@dataclass(frozen=True)
class Stages:
    """One module after each stage."""

    propagated: tvm.IRModule
    lowered: tvm.IRModule

    @staticmethod
    def of(programs: Sequence[Partitioned]) -> Stages:
        functions = {
            f"program{i}": call_of(p.case, p.mesh, (p.operands, p.results))
            for i, p in enumerate(programs)
        }
        mod = module_of(functions, programs[0].mesh)
        propagated = dx.transform.PropagateSharding()(mod)
        legal = dx.transform.LegalizeRedistribute()(propagated)
        return Stages(propagated, dx.transform.LowerDistIR()(legal))


def check(
    programs: Sequence[Partitioned],
    session: dx.Session,
    sabotage: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
) -> None:
    """Runs programs, all on one mesh, and compares each with its case on one device.

    Args:
        programs: What to check.
        session: Workers for the mesh.
        sabotage: Changes the lowered module before it is built, to see that it is noticed.

    Raises:
        AssertionError: names every program that failed, and how.
    """
    try:
        stages = Stages.of(programs)
        lowered = sabotage(stages.lowered) if sabotage else stages.lowered
        model = session.load(dx.build(legalized(dx.transform.LowerCCL()(lowered)), QUICK))
    except Exception as error:
        raise AssertionError(_culprits(programs, error)) from error
    cases = list(dict.fromkeys(program.case for program in programs))
    wanted = dict(zip(cases, unsharded(cases), strict=True))
    collectives = Counter(
        (each.function, each.kind) for each in dx.analysis.collectives(stages.lowered)
    )
    failures = []
    for i, program in enumerate(programs):
        name = f"program{i}"
        kinds = {kind for function, kind in collectives if function == name}
        try:
            got = to_arrays(model[name](*program.case.arrays()))
            compare(program.case, got, wanted[program.case])
            check_sharding(program, stages.propagated[name], kinds)
        except AssertionError as error:
            failures.append(f"{program}\n    {error}")
    assert not failures, f"{len(failures)} of {len(programs)} failed:\n" + "\n".join(failures[:8])


def _culprits(programs: Sequence[Partitioned], error: Exception) -> str:
    """Names the programs that do not build, one by one."""
    lines = []
    for program in programs:
        try:
            dx.build(Stages.of([program]).lowered)
        except Exception as own:
            lines.append(f"{program}\n    {type(own).__name__}: {str(own)[-600:]}")
        if len(lines) == 4:
            break
    return "\n".join(lines) or f"only together: {error}"


def compare(case: Case, got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Compares a sharded result with the unsharded one, and that with NumPy's."""
    assert len(got) == len(wanted), f"{len(got)} results, not {len(wanted)}"
    for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
        close(left, right, TOLERANCE, case.exact, f"result {index}")
    if case.numpy is not None:
        expected = case.numpy(*case.arrays())
        fields = expected if isinstance(expected, list | tuple) else [expected]
        for left, right in zip(wanted, fields, strict=True):
            right = np.asarray(right).astype(left.dtype)
            close(left, right, NUMPY_TOLERANCE, case.exact, "unsharded against NumPy")


def close(
    got: np.ndarray, wanted: np.ndarray, tolerance: dict[str, float], exact: bool, what: str
) -> None:
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    assert got.dtype == wanted.dtype, f"{what}: dtype {got.dtype}, not {wanted.dtype}"
    if exact or wanted.dtype.kind in "biu":
        assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f"), (
            f"{what} differs:\n{got}\n{wanted}"
        )
        return
    error = relative_rmse(got, wanted)
    limit = tolerance[wanted.dtype.name]
    assert error <= limit, f"{what}: relative RMSE {error:.2e} exceeds {limit:.0e}"


def relative_rmse(got: np.ndarray, wanted: np.ndarray) -> float:
    """Of the finite elements; infinite if others differ."""
    left, right = got.astype("float64"), wanted.astype("float64")
    finite = np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(left[finite]).all():
        return float("inf")
    norm = np.sqrt(np.sum(right[finite] ** 2))
    return float(np.sqrt(np.sum((left[finite] - right[finite]) ** 2)) / max(norm, 1e-30))


SENDS_WHAT_LACKS = frozenset({"segment_exchange"})
"""Left out where no shard lacks anything, as where the windows of shards end with them."""


def check_sharding(program: Partitioned, function: relax.Function, kinds: set[str]) -> None:
    """That the program is distributed as it says: nothing passes by replicating everything."""
    expectation = program.expectation
    if expectation.runs_sharded:
        calls = list(_calls(function, program.case.op))
        assert not calls or any(map(_is_sharded, calls)), f"runs on copies:\n{function}"
    returned = _leaves(function.ret_ty)
    for index, wanted in enumerate(expectation.result_shards or ()):
        found = _shards(returned[index])
        extends = all(n % least == 0 for n, least in zip(found, wanted, strict=True))
        assert found == wanted or (expectation.has_unused and extends), (
            f"result {index} has shards {found}, not {wanted}:\n{function}"
        )
    if expectation.collectives is not None:
        wanted = expectation.collectives
        assert kinds in (wanted, wanted - SENDS_WHAT_LACKS), (
            f"communicates by {sorted(kinds)}, not {sorted(expectation.collectives)}:\n{function}"
        )
    for index, dims in enumerate(program.results):
        if dims is not None:
            rank = len(returned[index].tensor_ty.shape)
            wanted = num_shards(program.mesh, dims, rank)
            assert _shards(returned[index]) == wanted, f"result {index} is not placed as annotated"


def _calls(function: relax.Function, op: str) -> list[relax.Call]:
    return [
        binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and isinstance(binding.value.op, tvm.ir.Op)
        and binding.value.op.name == op
    ]


def _is_sharded(call: relax.Call) -> bool:
    types = [call.ty, *(arg.ty for arg in call.args)]
    tensors = [leaf for each in types for leaf in _leaves(each)]
    return any(max(_shards(each), default=1) > 1 for each in tensors)


def _leaves(type_: Any) -> list[DTensorType]:
    if isinstance(type_, relax.TupleType):
        return [leaf for each in type_.fields for leaf in _leaves(each)]
    return [type_] if isinstance(type_, DTensorType) else []


def _shards(type_: DTensorType) -> tuple[int, ...]:
    mesh = tuple(int(size) for size in type_.device_mesh.shape)
    dims = tuple(int(spec.axis) for spec in type_.placement.dim_specs)
    return num_shards(mesh, dims, len(type_.tensor_ty.shape))
