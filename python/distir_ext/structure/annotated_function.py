"""Finds the values of a function that can be annotated, and annotates them.

An annotated value keeps its variable, so the rest of the body does not change:

    lv3 = R.matmul(x, w)                    lv3_computed = R.matmul(x, w)
                                            lv3 = R.dist.annotate_sharding(lv3_computed, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import tvm
from tvm import relax

from distir_ext.text.printable import shown

Path: TypeAlias = tuple[int, ...]
"""Indices of fields, of a tuple, of a tuple in it, and so on."""

Bind: TypeAlias = Callable[[str, relax.Expr], relax.Var]

PARAMETER, VARIABLE, RESULT = "parameter", "variable", "result"


class Annotation(Protocol):
    """An annotation of a value."""

    def on(self, value: relax.Expr) -> relax.Call:
        """The annotated value."""


@dataclass(frozen=True)
class Site:
    """A value, or a field of a tuple, that is not itself a tuple.

    Attributes:
        kind: "parameter", "variable" or "result".
        name: Of the parameter or variable; "return" for the result.
        path: To the field; empty for the value itself.
    """

    kind: str
    name: str
    path: Path

    @cached_property
    def label(self) -> str:
        """The name that plans use: ``w``, ``weights.0``, ``return``."""
        return ".".join([self.name, *map(str, self.path)])

    def __str__(self) -> str:
        name = shown(self.label)
        if self.kind == RESULT:
            return f"result {name.partition('.')[2]}".rstrip()
        return f"{self.kind} {name}"


def parameter_sites(function: relax.Function) -> dict[Site, Any]:
    """The parameters, with their types."""
    sites: dict[Site, Any] = {}
    for param in function.params:
        sites.update(_fields(PARAMETER, param.name, (), param.ty))
    return sites


def result_sites(function: relax.Function) -> dict[Site, Any]:
    """The result, with its type; it is called "return"."""
    return dict(_fields(RESULT, "return", (), function.body.body.ty))


def variable_sites(function: relax.Function) -> dict[str, list[tuple[Site, Any]]]:
    """Bound variables by what plans call them; several if they have one name."""
    sites: dict[str, list[tuple[Site, Any]]] = {}
    for binding in bindings_of(function.body):
        for site, type_ in _fields(VARIABLE, binding.var.name, (), binding.var.ty):
            sites.setdefault(site.label, []).append((site, type_))
    return sites


def variable_names(function: relax.Function) -> Iterator[str]:
    """The names of parameters and bound variables."""
    yield from (str(param.name) for param in function.params)
    yield from (str(binding.var.name) for binding in bindings_of(function.body))


def annotated_already(function: relax.Function) -> dict[Site, relax.Call]:
    """The annotations of a function: of a parameter anywhere, of others where they are made."""
    annotate_op = tvm.ir.Op.get("relax.dist.annotate_sharding")
    params = {param.__chandle__(): Site(PARAMETER, param.name, ()) for param in function.params}
    annotated: dict[Any, relax.Call] = {}
    found: dict[Site, relax.Call] = {}

    def note(kind: str, name: str, value: relax.Expr) -> None:
        for path, leaf in _leaves((), value):
            if leaf.__chandle__() in annotated:
                found[Site(kind, name, path)] = annotated[leaf.__chandle__()]

    for binding in bindings_of(function.body):
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem):
            whole = params.get(value.tuple_value.__chandle__())
            if whole is not None:
                path = (*whole.path, int(value.index))
                params[var.__chandle__()] = Site(PARAMETER, whole.name, path)
        elif isinstance(value, relax.Tuple):
            note(VARIABLE, var.name, value)
        elif isinstance(value, tvm.ir.Call) and value.op.same_as(annotate_op):
            annotated[var.__chandle__()] = value
            note(VARIABLE, var.name, var)
            if value.args[0].__chandle__() in params:
                found[params[value.args[0].__chandle__()]] = value
    note(RESULT, "return", function.body.body)
    return found


def shards_of(annotation: relax.Call) -> dict[int, int]:
    """Returns the number of shards by dimension that an annotation shards.

    An axis of one device makes one shard, so that a plan does the same on meshes of all sizes.
    """
    attrs = annotation.attrs
    is_dict = isinstance(attrs, tvm.ir.DictAttrs)
    mesh = attrs["device_mesh"] if is_dict else attrs.device_mesh
    placement = attrs["placement"] if is_dict else attrs.placement
    found: dict[int, int] = {}
    for size, spec in zip(mesh.shape, placement.dim_specs, strict=True):
        if int(spec.axis) >= 0:
            found[int(spec.axis)] = found.get(int(spec.axis), 1) * int(size)
    return found


def without_annotations(function: relax.Function, sites: Collection[Site]) -> relax.Function:
    """The function without what it says of these values, which it names as they are."""
    there = annotated_already(function)
    dropped = {there[site].__chandle__() for site in sites if site in there}
    if not dropped:
        return function
    return relax.Function(
        function.params,
        _unmarked(function.body, dropped),
        function.ret_ty,
        function.is_pure,
        function.attrs,
        function.span,
    )


def _unmarked(body: relax.SeqExpr, dropped: Collection[Any]) -> relax.SeqExpr:
    blocks = []
    for block in body.blocks:
        bindings = [_unmarked_binding(binding, dropped) for binding in block.bindings]
        if all(new is old for new, old in zip(bindings, block.bindings, strict=True)):
            blocks.append(block)
        else:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            blocks.append((relax.DataflowBlock if is_dataflow else relax.BindingBlock)(bindings))
    rebuilt = relax.SeqExpr(blocks, body.body)
    relax.expr._update_type(rebuilt, body.ty)
    return rebuilt


def _unmarked_binding(binding: relax.Binding, dropped: Collection[Any]) -> relax.Binding:
    value = binding.value
    if isinstance(binding, relax.MatchCast):
        return binding
    if isinstance(value, tvm.ir.Call) and value.__chandle__() in dropped:
        return relax.VarBinding(binding.var, value.args[0])
    if isinstance(value, relax.If):
        sides = [_unmarked(side, dropped) for side in (value.true_branch, value.false_branch)]
        choice = relax.If(value.cond, *sides)
        relax.expr._update_type(choice, value.ty)
        return relax.VarBinding(binding.var, choice)
    return binding


def with_annotations(function: relax.Function, marks: Mapping[Site, Annotation]) -> relax.Function:
    """The function with annotations.

    Args:
        function: It is not changed.
        marks: By site. Variables that are annotated have a name of their own.
    """
    by_value: dict[tuple[str, str], dict[Path, Annotation]] = {}
    for site, mark in marks.items():
        by_value.setdefault((site.kind, site.name), {})[site.path] = mark
    return _Inserter(by_value).function(function)


class _Inserter:
    def __init__(self, marks: Mapping[tuple[str, str], Mapping[Path, Annotation]]) -> None:
        self._marks = marks
        self._has_variables = any(kind == VARIABLE for kind, _ in marks)
        self._builder = relax.BlockBuilder()

    def function(self, function: relax.Function) -> relax.Function:
        params: list[relax.Var] = []
        first: list[relax.Binding] = []
        for param in function.params:
            marks = self._marks.get((PARAMETER, param.name))
            if marks is None:
                params.append(param)
                continue
            params.append(relax.Var(param.name, param.ty))
            self._bind_annotated(first, param, params[-1], param.name, marks)
        body = self._body(function.body)
        last, result = self._result(body.body)
        blocks = _joined([relax.BindingBlock(first), *body.blocks, relax.BindingBlock(last)])
        return relax.Function(
            params,
            self._builder.normalize(relax.SeqExpr(blocks, result)),
            function.ret_ty,
            function.is_pure,
            function.attrs,
            function.span,
        )

    def _result(self, value: relax.Expr) -> tuple[list[relax.Binding], relax.Expr]:
        bindings: list[relax.Binding] = []
        marks = self._marks.get((RESULT, "return"))
        if marks is None:
            return bindings, value
        bind = self._binder(bindings, relax.Var)
        result = self._annotated(value, "result", (), marks, bind)
        return bindings, result if isinstance(result, relax.Tuple) else bind("result", result)

    def _body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        if not self._has_variables:
            return body
        blocks = [self._block(block) for block in body.blocks]
        if all(new.same_as(old) for new, old in zip(blocks, body.blocks, strict=True)):
            return body
        return relax.SeqExpr(blocks, body.body)

    def _block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        kind = relax.DataflowVar if is_dataflow else relax.Var
        bindings: list[relax.Binding] = []
        changed = False
        for old in block.bindings:
            binding = self._with_branches(old)
            marks = self._marks.get((VARIABLE, binding.var.name))
            if marks is not None:
                computed = kind(f"{binding.var.name}_computed", binding.var.ty)
                bindings.append(_bound_to(computed, binding))
                self._bind_annotated(bindings, binding.var, computed, binding.var.name, marks, kind)
            else:
                bindings.append(binding)
            changed = changed or marks is not None or binding is not old
        if not changed:
            return block
        return relax.DataflowBlock(bindings) if is_dataflow else relax.BindingBlock(bindings)

    def _with_branches(self, binding: relax.Binding) -> relax.Binding:
        value = binding.value
        if not isinstance(value, relax.If):
            return binding
        branches = [value.true_branch, value.false_branch]
        rebuilt = [self._body(branch) for branch in branches]
        if all(new.same_as(old) for new, old in zip(rebuilt, branches, strict=True)):
            return binding
        choice = relax.If(value.cond, *rebuilt)
        relax.expr._update_type(choice, value.ty)
        return relax.VarBinding(binding.var, choice)

    def _bind_annotated(
        self,
        bindings: list[relax.Binding],
        var: relax.Var,
        value: relax.Var,
        name: str,
        marks: Mapping[Path, Annotation],
        kind: type[relax.Var] = relax.Var,
    ) -> None:
        """Binds a variable to an annotated value."""
        annotated = self._annotated(value, name, (), marks, self._binder(bindings, kind))
        bindings.append(relax.VarBinding(var, self._builder.normalize(annotated)))

    def _annotated(
        self,
        value: relax.Expr,
        name: str,
        path: Path,
        marks: Mapping[Path, Annotation],
        bind: Bind,
    ) -> relax.Expr:
        """A value with annotations; of a tuple, a tuple of annotated fields."""
        if path in marks:
            return marks[path].on(value)
        if not any(marked[: len(path)] == path for marked in marks):
            return value
        fields = []
        for index in range(len(value.ty.fields)):
            field_name = f"{name}_{index}"
            field = (
                value.fields[index]
                if isinstance(value, relax.Tuple)
                else bind(field_name, relax.TupleGetItem(value, index))
            )
            annotated = self._annotated(field, field_name, (*path, index), marks, bind)
            fields.append(field if annotated is field else bind(field_name, annotated))
        return relax.Tuple(fields)

    def _binder(self, bindings: list[relax.Binding], kind: type[relax.Var]) -> Bind:
        def bind(name: str, value: relax.Expr) -> relax.Var:
            value = self._builder.normalize(value)
            var = kind(name, value.ty)
            bindings.append(relax.VarBinding(var, value))
            return var

        return bind


def _bound_to(var: relax.Var, binding: relax.Binding) -> relax.Binding:
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, binding.value, binding.ty)
    return relax.VarBinding(var, binding.value)


def _joined(blocks: Sequence[relax.BindingBlock]) -> list[relax.BindingBlock]:
    """Blocks without empty ones, adjacent plain ones as one.

    These print as one, so that the text would not parse back to the same module.
    """
    joined: list[relax.BindingBlock] = []
    for block in blocks:
        if not block.bindings:
            continue
        plain = not isinstance(block, relax.DataflowBlock)
        if plain and joined and not isinstance(joined[-1], relax.DataflowBlock):
            block = relax.BindingBlock([*joined.pop().bindings, *block.bindings])
        joined.append(block)
    return joined


def _fields(kind: str, name: str, path: Path, type_: Any) -> Iterator[tuple[Site, Any]]:
    if isinstance(type_, relax.TupleType):
        for index, field in enumerate(type_.fields):
            yield from _fields(kind, name, (*path, index), field)
    else:
        yield Site(kind, name, path), type_


def _leaves(path: Path, value: relax.Expr) -> Iterator[tuple[Path, relax.Expr]]:
    if isinstance(value, relax.Tuple):
        for index, field in enumerate(value.fields):
            yield from _leaves((*path, index), field)
    else:
        yield path, value


def bindings_of(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    """All bindings, those of branches behind the ones that hold them."""
    for block in body.blocks:
        for binding in block.bindings:
            yield binding
            value = binding.value
            if isinstance(value, relax.If):
                yield from bindings_of(value.true_branch)
                yield from bindings_of(value.false_branch)
