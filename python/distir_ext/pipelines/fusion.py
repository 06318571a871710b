"""Passes that replace matches of a pattern of :mod:`tvm.relax.dpl`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import dpl

from distir_ext.pipelines.registry import Matches, failure_of, register_pass
from distir_ext.structure.replaced_calls import (
    Contents,
    Writer,
    key,
    rebuilt,
    variables_in,
    without_unused,
)
from distir_ext.text.errors.tracebacks import short_tracebacks

# Parts of a pattern whose values a match computes; others match what it is given.
_COMPUTED = (dpl.CallPattern, dpl.TuplePattern, dpl.UnorderedTuplePattern, dpl.TupleGetItemPattern)

_READ_ELSEWHERE = "a value within the match is read elsewhere, too"


@dataclass(frozen=True)
class Skip:
    """Result of a fusion for a match that is to stay unchanged."""

    why: str
    """As the report of the pass has it."""


Rewrite = Callable[..., "relax.Expr | Skip"]


@short_tracebacks
def register_fusion(
    name: str,
    pattern: dpl.DFPattern,
    *,
    phase: str,
    enabled: bool = True,
    extra_uses: bool = False,
    replace: bool = False,
) -> Callable[[Rewrite], Rewrite]:
    """Registers a pass that replaces every match of a pattern.

    A value within a match may be read elsewhere, too: an all-reduce by a norm that is matched, and
    by a residual that is not. Replacing the norm does not replace the all-reduce then, so the
    program would do more than before. Such matches stay as they are and are counted as skipped,
    unless ``extra_uses`` is set.

    Args:
        name: Name of the pass in configurations.
        pattern: The calls that are matched, from the last one back through variables.
        phase: Of the module that it is given, as for :func:`register_pass`.
        enabled: Whether it runs where a configuration does not say so.
        extra_uses: Whether to match, too, where values within the match are read elsewhere.
        replace: Whether it takes the place of a pass of this name, as for :func:`register_pass`.

    Returns:
        A decorator. The function is given the call that matched, and what the parts of the pattern
        matched; it returns what stands in the call's place, of the same type, or :class:`Skip` with
        a reason. What it returns may not match again. With ``extra_uses`` it is given a third
        argument: by part of the pattern that the match computes, how many readers it has outside
        of the match. Its keyword-only parameters are options, as for :func:`register_pass`.
        Matches and reasons are counted in the report of the pass.

    Raises:
        TypeError: The pattern is none; or as :func:`register_pass`. When the pass runs: the
            function returns no expression, or one of another type.
        ValueError: As :func:`register_pass`. When the pass runs: what the function returns matches
            again, or reads a variable that is not of the function that is rewritten.
        RuntimeError: When the pass runs, and the function fails; names the pass and the call that
            matched, and has the exception as its cause. A ValueError or TypeError stays one.

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
    if not isinstance(pattern, dpl.DFPattern):
        raise TypeError(
            f"the pattern of the fusion {name!r} is a {type(pattern).__name__}, not a pattern of "
            "tvm.relax.dpl"
        )

    def register(rewrite: Rewrite) -> Rewrite:
        def run(mod: tvm.IRModule, matches: Matches, **options: Any) -> tvm.IRModule:
            fusion = _Fusion(name, functools.partial(rewrite, **options), matches, extra_uses)
            return fusion.applied(pattern, mod)

        functools.update_wrapper(run, rewrite)
        register_pass(name, phase=phase, enabled=enabled, replace=replace)(run)
        return rewrite

    return register


@dataclass(frozen=True)
class _Fusion:
    name: str
    rewrite: Rewrite
    matches: Matches
    extra_uses: bool

    def applied(self, pattern: dpl.DFPattern, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with all matches replaced."""
        changed = mod.clone()
        for gv, function in mod.functions_items():
            if isinstance(function, relax.Function):
                made = self._function(pattern, gv.name_hint, function)
                if not made.same_as(function):
                    changed.update_func(gv, made)
        return changed

    def _function(self, pattern: dpl.DFPattern, of: str, given: relax.Function) -> relax.Function:
        """Replaces matches until there are none."""
        function, left = given, -1
        while True:
            known = Contents(function)
            left = known.num_calls if left < 0 else left
            found = _Round(self, pattern, of, known)
            body = found.body(function.body)
            if not found.replaced:
                for skip in found.skipped:
                    self.matches.skip(skip.why)
                return function
            left -= len(found.replaced)
            if left < 0:
                raise ValueError(f"the fusion {self.name!r} makes what its pattern matches again")
            self.matches.add(count=len(found.replaced))
            function = relax.Function(
                function.params,
                without_unused(body, found.dropped),
                function.ret_ty,
                function.is_pure,
                function.attrs,
                function.span,
            )


class _Round:
    """Replaces the matches of a function that have nothing in common.

    Attributes:
        replaced: The keys of calls that were.
        dropped: The keys of what they were computed of.
        skipped: Why others were not.
    """

    def __init__(self, fusion: _Fusion, pattern: dpl.DFPattern, of: str, known: Contents) -> None:
        self._fusion, self._pattern, self._of, self._known = fusion, pattern, of, known
        self.replaced: set[Any] = set()
        self.dropped: set[Any] = set()
        self.skipped: list[Skip] = []

    def body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """A sequence with its matches replaced."""
        return rebuilt(body, self._bindings)

    def _bindings(self, binding: relax.Binding) -> list[relax.Binding]:
        value = binding.value
        if not isinstance(binding, relax.VarBinding) or not isinstance(value, relax.Call):
            return [binding]
        matched = self._pattern.extract_matched_expr(value, self._known.values)
        if matched is None:
            return [binding]
        computed = {
            part: key(each)
            for part, each in matched.items()
            if isinstance(part, _COMPUTED) and not each.same_as(value)
        }
        if not self.replaced.isdisjoint(computed.values()):
            return [binding]  # it matches again, or not, when that is written
        made = self._made(binding, matched, computed)
        if isinstance(made, Skip):
            self.skipped.append(made)
            return [binding]
        self.replaced.add(key(value))
        self.dropped.update(computed.values())
        return made

    def _made(
        self, binding: relax.VarBinding, matched: Any, computed: Mapping[dpl.DFPattern, Any]
    ) -> list[relax.Binding] | Skip:
        call, fusion = binding.value, self._fusion
        where = f"the fusion {fusion.name!r}, at `{binding.var.name}` in `{self._of}`"
        inside = {key(call), *computed.values()}
        readers = {
            part: sum(reader not in inside for reader in self._known.readers.get(each, ()))
            for part, each in computed.items()
        }
        if any(readers.values()) and not fusion.extra_uses:
            return Skip(_READ_ELSEWHERE)
        try:
            made = fusion.rewrite(call, matched, *([readers] if fusion.extra_uses else []))
        except Exception as error:
            raise failure_of(where, error) from error
        if isinstance(made, Skip):
            return made
        if not isinstance(made, relax.Expr):
            raise TypeError(f"{where}, returns an expression or Skip, not a {type(made).__name__}")
        if made.same_as(call):
            return Skip("the call itself was returned")
        for var in variables_in(made):
            if key(var) not in self._known.defined:
                raise ValueError(
                    f"{where}, returns an expression of `{var.name}`, which `{self._of}` does not "
                    "define"
                )
        writer = Writer(self._known, binding)
        try:
            value = writer.flat(made)
        except Exception as error:
            raise failure_of(f"{where}, returns what has no type", error) from error
        if not _may_stand_for(value.ty, call.ty):
            raise TypeError(f"{where}, replaces a value of the type {call.ty} by one of {value.ty}")
        return [*writer.bindings, relax.VarBinding(binding.var, value)]


def _may_stand_for(made: tvm.ir.Type, wanted: tvm.ir.Type) -> bool:
    """Returns whether a value of one type can replace one of another type."""
    if tvm_ffi.structural_equal(made, wanted):
        return True
    found = relax.analysis.type_base_check(wanted, made)
    return bool(found == relax.analysis.analysis.BaseCheckResult.PASS)
