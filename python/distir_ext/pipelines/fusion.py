"""Passes that replace what a pattern matches, as :mod:`tvm.relax.dpl` has patterns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax import dpl

from distir_ext.pipelines.registry import Matches, register_pass


@dataclass(frozen=True)
class Skip:
    """What a fusion returns for a match that is to stay as it is."""

    why: str
    """As the report of the pass has it."""


Rewrite = Callable[[relax.Call, Mapping[dpl.DFPattern, relax.Expr]], "relax.Expr | Skip"]


def register_fusion(
    name: str, pattern: dpl.DFPattern, *, phase: str, enabled: bool = True
) -> Callable[[Rewrite], Rewrite]:
    """Registers a pass that replaces every match of a pattern.

    Args:
        name: What configurations call the pass.
        pattern: The calls that are matched, from the last one back through variables.
        phase: Of the module that it is given, as for :func:`register_pass`.
        enabled: Whether it runs where a configuration does not say so.

    Returns:
        A decorator. The function is given the call that matched, and what the parts of the pattern
        matched; it returns what stands in the call's place, of the same type, or :class:`Skip` with
        a reason. What it returns may not match again. Matches and reasons are counted in the
        report of the pass.

    Raises:
        ValueError: As :func:`register_pass`.

    Example:
        >>> from tvm.relax.dpl import is_op, wildcard
        >>> from distir_ext.pipelines import unregister_pass
        >>> x = wildcard()
        >>> @register_fusion("relu_once", is_op("relax.nn.relu")(is_op("relax.nn.relu")(x)),
        ...                  phase="annotated")
        ... def relu_once(call, matched):
        ...     \"\"\"The second relu of two changes nothing.\"\"\"
        ...     return relax.op.nn.relu(matched[x])
        >>> unregister_pass("relu_once")
        True
    """

    def register(rewrite: Rewrite) -> Rewrite:
        def run(mod: tvm.IRModule, matches: Matches) -> tvm.IRModule:
            return _rewritten(mod, name, pattern, rewrite, matches)

        run.__doc__, run.__module__ = rewrite.__doc__, rewrite.__module__
        register_pass(name, phase=phase, enabled=enabled)(run)
        return rewrite

    return register


def _rewritten(
    mod: tvm.IRModule, name: str, pattern: dpl.DFPattern, rewrite: Rewrite, matches: Matches
) -> tvm.IRModule:
    changed = mod.clone()
    for gv, function in mod.functions_items():
        if isinstance(function, relax.Function):
            known = _Contents(function)
            replace = _Replacement(name, rewrite, matches, known.num_calls)
            made = dpl.rewrite_call(pattern, replace, function)
            if not made.same_as(function):
                changed.update_func(gv, _NewNames(known).visit_expr(made))
    return changed


class _Replacement:
    """What dpl calls for each match in a function."""

    def __init__(self, name: str, rewrite: Rewrite, matches: Matches, most: int) -> None:
        self._name, self._rewrite, self._matches, self._left = name, rewrite, matches, most
        self._skipped: set[relax.Call] = set()

    def __call__(self, call: Any, matched: Any) -> Any:
        if not isinstance(call, relax.Call):
            return call  # a variable, whose call has been seen
        if call in self._skipped:  # where it is returned
            return call
        made = self._rewrite(call, matched)
        if isinstance(made, Skip):
            self._matches.skip(made.why)
            self._skipped.add(call)
            return call
        if not isinstance(made, relax.Expr):
            raise TypeError(
                f"the fusion {self._name!r} returns an expression or Skip, not a "
                f"{type(made).__name__}"
            )
        # dpl rewrites until nothing matches.
        if self._left == 0:
            raise ValueError(f"the fusion {self._name!r} makes what its pattern matches again")
        self._left -= 1
        self._matches.add()
        return made


class _Contents:
    """What a function has."""

    def __init__(self, function: relax.Function) -> None:
        self.num_calls = 0
        self.variables: dict[str, relax.Var] = {}
        relax.analysis.post_order_visit(function, self._visit)

    def _visit(self, each: relax.Expr) -> None:
        self.num_calls += isinstance(each, relax.Call)
        if isinstance(each, relax.Var):
            self.variables[each.name] = each


@relax.expr_functor.mutator
class _NewNames(relax.PyExprMutator):
    """New variables get names that the function had not: what is noted of old ones is not theirs.

    dpl makes variables that may have the names of those that they do not stand for.
    """

    def __init__(self, old: _Contents) -> None:
        super().__init__()
        self._old = old
        self._taken = set(old.variables)

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._renamed(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._renamed(var, relax.DataflowVar)

    def _renamed(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        old = self._old.variables.get(var.name)
        if old is None or old.same_as(var):
            return var
        names = (f"{var.name}_{number}" for number in itertools.count(1))
        name = next(each for each in names if each not in self._taken)
        self._taken.add(name)
        renamed = kind(name, var.ty)
        self.set_var_remap(var, renamed)
        return renamed
