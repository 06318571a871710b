"""Checks the results of single programs against float64, for each floating-point type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from tvm.relax import op

from distir_ext.annotate.patterns import annotate
from distir_ext.compile.entry import build
from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine, relative_error
from distir_ext.gpu_check.programs import module_of
from distir_ext.mesh.mesh import Mesh
from distir_ext.session.session import Session

# Of the norm. Small floats are rounded once, to as many bits as they have; float32 sums thousands.
_LIMITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 1e-5}
_ROUNDED_ONCE_OR_TWICE = 2.0


def check_numbers(machine: Machine) -> Iterator[Finding]:
    """Products of many terms, and softmax, which add in float32 whatever the type is."""
    mesh = Mesh((1,), ("tp",))
    terms = machine.pick(8192, 256)
    rng = np.random.default_rng(0)
    for dtype, limit in _LIMITS.items():
        numpy_dtype = getattr(ml_dtypes, dtype, dtype)
        x = rng.standard_normal((64, terms)).astype(numpy_dtype)
        w = rng.standard_normal((terms, 64)).astype(numpy_dtype)
        wide = [each.astype("float64") for each in (x, w)]
        exponentials = np.exp(wide[0] - wide[0].max(-1, keepdims=True))
        cases: dict[str, tuple[Any, list[Any], Any]] = {
            f"product of {terms} terms": (op.matmul, [x, w], wide[0] @ wide[1]),
            f"product of a row, {terms} terms": (op.matmul, [x[:1], w], wide[0][:1] @ wide[1]),
            f"softmax over {terms}": (
                op.nn.softmax,
                [x],
                exponentials / exponentials.sum(-1, keepdims=True),
            ),
        }
        for what, (make, values, expected) in cases.items():
            shapes = {f"x{i}": each.shape for i, each in enumerate(values)}
            mod = annotate(module_of(make, shapes, dtype), mesh, {"x0": (None, None)})
            with machine.programs(), Session(mesh, ccl="nccl") as session:
                actual = session.load(build(mod, target=machine.target))["main"](*values).numpy()
            error = relative_error(actual, expected)
            most = limit * _ROUNDED_ONCE_OR_TWICE
            yield Finding(
                f"{what} in {dtype}", f"error {error:.2g}", f"at most {most:.2g}", error <= most
            )
