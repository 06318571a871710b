"""Legalises operators to kernels that compute what NumPy, JAX and torch do, for all targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.compile import integer_division
from distir_ext.compile.kernels.legalizations import (
    accumulation,
    attention,
    conversions,
    division,
    dtypes,
    norms,
    not_a_number,
    positions,
    refused_dtypes,
    unknown_sizes,
)
from distir_ext.compile.kernels.legalizations.ordering import order_by_keys

__all__ = ["OUTLINE", "legalize_operators", "prepare_operators"]

OUTLINE = "OutlineOperators"
"""Name of the pass before LegalizeOps, which writes a function for each kind of call."""

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def prepare_operators() -> list[tvm.transform.Pass]:
    """Returns the passes to run before TVM's passes choose kernels for sorts and scans."""
    sizes = [unknown_sizes.unique_of_vectors(), unknown_sizes.name_sizes()]
    return [*sizes, accumulation.widen_scans(), order_by_keys()]


def legalize_operators(
    own: Mapping[str, Legalization] | None = None,
    in_front: Callable[[Mapping[str, Legalization]], dict[str, Legalization]] = dict,
) -> list[tvm.transform.Pass]:
    """``relax.transform.LegalizeOps`` without what TVM computes otherwise than others do.

    Equal calls are legalised once, in a function that each of them calls meanwhile: the passes
    before and behind write and inline these.

    Args:
        own: Legalisations of a target by operator.
        in_front: Adds kernels of a target that compute what others do already.
    """
    made = accumulation.legalizations(own)
    for each in (
        positions.legalizations,
        attention.repeat_shared_heads,
        conversions.legalizations,
        division.legalizations,
        integer_division.legalizations,
        not_a_number.legalizations,
        norms.legalizations,
        dtypes.legalizations,
        refused_dtypes.legalizations,
        in_front,
    ):
        made = each(made)
    outline, inline = (
        tvm_ffi.get_global_func(f"distir.analysis.{name}")()
        for name in (OUTLINE, "InlineOperators")
    )
    return [outline, relax.transform.LegalizeOps(made), inline]
