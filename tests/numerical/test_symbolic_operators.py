"""Every operator with a symbolic leading dimension that its shards do not divide."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx
from distir_ext.compile.kernel_values import tir_pipeline

from .case import Case, draw
from .operators import CASES
from .partitioned import TOLERANCE, close, legalized, to_arrays

NO_OPERANDS = {
    "relax.arange",
    "relax.full",
    "relax.hamming_window",
    "relax.ones",
    "relax.zeros",
}
STATIC_ONLY = {
    "relax.eye",  # of numbers
    "relax.nn.attention_var_len",  # sequences packed in a static number of rows
    "relax.nn.pixel_shuffle",  # TVM computes its result of numbers
    "relax.shape_of",  # gives no tensor
}


@dataclass(frozen=True)
class Program:
    """A case whose dimensions of one factor have n elements; they are sharded."""

    case: Case
    letter: str

    def shapes(self, size: Any) -> list[tuple[Any, ...]]:
        return [
            tuple(
                size if letters == self.letter else extent
                for extent, letters in zip(operand.shape, operand.dims, strict=True)
            )
            for operand in self.case.operands
        ]

    def function(self, mesh: dx.Mesh | None) -> relax.Function:
        builder = relax.BlockBuilder()
        operands = self.case.operands
        params = [
            relax.Var(f"x{i}", relax.TensorType(shape, operand.dtype))
            for i, (shape, operand) in enumerate(
                zip(self.shapes(tvm.tirx.Var("n", "int64")), operands, strict=True)
            )
        ]
        with builder.function("call", params):
            with builder.dataflow():
                args = list(params)
                for i, operand in enumerate(operands):
                    if mesh is None or self.letter not in operand.dims:
                        continue
                    dims = ["d" if each == self.letter else None for each in operand.dims]
                    args[i] = builder.emit(
                        relax.op.distributed.annotate_sharding(
                            params[i], mesh.device_mesh, mesh.placement(*dims)
                        )
                    )
                value = builder.emit_output(self.case.apply(*args))
            builder.emit_func_output(value)
        return builder.get()["call"]

    def arrays(self, size: int) -> list[np.ndarray]:
        rng = np.random.default_rng(zlib.crc32(str(self.case).encode()))
        return [
            draw(rng, replace(operand, shape=shape))
            for operand, shape in zip(self.case.operands, self.shapes(size), strict=True)
        ]


def program_of(case: Case) -> Program | None:
    """The case with the leading dimension of an operand symbolic, if TVM takes that."""
    sizes = case.factor_sizes()
    letters = [
        operand.dims[0]
        for operand in case.operands
        if operand.dims and sizes.get(operand.dims[0]) == operand.shape[0]
    ]
    if not letters:
        return None
    program = Program(case, letters[0])
    try:
        function = program.function(None)
        legalized(tvm.IRModule({"call": function}))
    except Exception:
        return None  # an attribute of the case states the size
    leaves = getattr(function.ret_ty, "fields", [function.ret_ty])
    return program if all(getattr(each, "shape", None) is not None for each in leaves) else None


@functools.cache
def programs(most: int) -> list[Program]:
    """Up to so many of each operator."""

    def of(cases: list[Case]) -> Iterator[Program]:
        found = 0
        for case in cases[: 8 * most]:
            if found < most and (program := program_of(case)) is not None:
                found += 1
                yield program

    return [program for cases in CASES.values() for program in of(cases)]


def module_of(each: list[Program], mesh: dx.Mesh | None) -> tvm.IRModule:
    functions = {f"p{i}": program.function(mesh) for i, program in enumerate(each)}
    mod = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in functions.items()})
    if mesh is not None:
        mod.update_global_info("mesh", [mesh.device_mesh])
    return mod


def test_every_operator(sample, session_of):
    """Numbers are those of one device, or the operator is in the list of docs/rules.md."""
    found = programs(sample(1, 2, 100))
    tested = {program.case.op for program in found}
    assert set(CASES) - tested == NO_OPERANDS | STATIC_ONLY
    machine = relax.VirtualMachine(
        tvm.compile(
            legalized(module_of(found, None)), QUICK, tir_pipeline=tir_pipeline(for_cpu=True)
        ),
        tvm.cpu(),
    )
    refused, failures = set(), []
    for devices in sample((2,), (2, 3), (2, 3)):
        legal = dx.transform.PropagateSharding()(module_of(found, dx.Mesh(d=devices)))
        lowered = dx.transform.LowerDistIR()(dx.transform.LegalizeRedistribute()(legal))
        executable = dx.build(legalized(dx.transform.LowerCCL()(lowered)), QUICK)
        model = session_of((devices,)).load(executable)
        for i, program in enumerate(found):
            size = program.case.factor_sizes()[program.letter] + 1
            inputs = program.arrays(size + (size % devices == 0))
            try:
                got = to_arrays(model[f"p{i}"](*inputs))
                wanted = to_arrays(machine[f"p{i}"](*map(tvm.runtime.tensor, inputs)))
                for left, right in zip(got, wanted, strict=True):
                    close(left, right, TOLERANCE, program.case.exact, "sharded")
            except ValueError as error:
                if "cannot be padded along" not in str(error):
                    raise
                refused.add(program.case.op)
            except AssertionError as error:
                failures.append(f"{program.case}: {error}")
    assert not failures, "\n".join(failures)
    page = Path(__file__).parents[2] / "docs" / "rules.md"
    listed = page.read_text(encoding="utf-8").split("## Sizes that have to divide")[1]
    names = {f"relax.{name}" for name in re.findall(r"^\| `R\.([\w.]+)`", listed, re.M)}
    assert refused == names & set(CASES)
