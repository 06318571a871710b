"""Legalises operators whose extents depend on data, and names their sizes for other kernels.

A kernel has sizes, as numbers or names. ``R.nonzero`` and what a non-maximum suppression keeps have
types without any, so that each is bound to names first:

    lv = R.nonzero(x)                            # R.Tensor(dtype="int64", ndim=2)
    lv1 = R.match_cast(lv, R.Tensor((lv_0, lv_1), "int64"))
"""

from __future__ import annotations

import functools
import operator

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from distir_ext.compile.kernels.legalizations.rewrite_calls import rewrite_calls

__all__ = ["name_sizes", "unique_of_vectors"]

_ARGUMENTS_WITHOUT_AXIS = 5


def unique_of_vectors() -> tvm.transform.Pass:
    """Rewrites unique elements of a tensor as those of a vector.

    NumPy 2, which computes them, gives positions among them in the shape of the tensor; their type
    has one dimension.
    """

    def rewrite(call: relax.Call) -> relax.Expr:
        x, *options = call.args
        if not isinstance(x.ty.shape, relax.ShapeExpr) or len(x.ty.shape) <= 1:
            return call
        count = functools.reduce(operator.mul, x.ty.shape)
        return relax.Call(call.op, [relax.op.reshape(x, (count,)), *options], call.attrs)

    return rewrite_calls({"relax.unique": _ARGUMENTS_WITHOUT_AXIS}, rewrite, "UniqueOfVectors")


def name_sizes() -> tvm.transform.Pass:
    """Returns the pass; functions whose values all have sizes stay as they are."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        unknown = [
            variable
            for variable, function in mod.functions_items()
            if isinstance(function, relax.Function) and _reads_unknown(function)
        ]
        if not unknown:
            return mod
        plain = relax.transform.ToNonDataflow()(mod)
        for variable in unknown:
            plain.update_func(variable, _NameSizes(plain).visit_expr(plain[variable]))
        return plain

    return tvm.transform.module_pass(apply, opt_level=0, name="NameSizes")


def _has_no_sizes(var: relax.Expr) -> bool:
    type_ = var.ty
    is_tensor = isinstance(type_, relax.TensorType) and type_.ndim > 0
    return is_tensor and type_.shape is None and bool(str(type_.dtype))


def _reads_unknown(function: relax.Function) -> bool:
    """Returns whether an operator with a kernel reads a value without sizes."""
    found = False

    def see(node: relax.Expr) -> None:
        nonlocal found
        if isinstance(node, relax.Call) and isinstance(node.op, tvm.ir.Op):
            is_legalised = node.op.has_attr("FLegalize")
            found = found or (is_legalised and any(map(_has_no_sizes, node.args)))

    relax.analysis.post_order_visit(function, see)
    return found


@mutator
class _NameSizes(PyExprMutator):
    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        super().visit_var_binding_(binding)
        var = self.visit_expr(binding.var)
        if _has_no_sizes(var):
            sizes = [tirx.Var(f"{var.name}_{place}", "int64") for place in range(var.ty.ndim)]
            sized = self.builder_.match_cast(var, relax.TensorType(sizes, str(var.ty.dtype)))
            self.set_var_remap(binding.var, sized)
