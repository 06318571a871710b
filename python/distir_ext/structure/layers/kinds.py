"""Finds the kind of layer that a group of products is, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.layers.adapters import adapters_of
from distir_ext.structure.layers.groups import Group
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.traces import trace
from distir_ext.structure.program import operator_of, sizes_of


@dataclass(frozen=True)
class Kind:
    """A layer type and the reason for it."""

    layer_type: str
    why: str


def kind_of(group: Group) -> Kind:
    """The type of a layer by its structure."""
    for test in (_mixture, _attention, _recurrence, _mlp):
        found = test(group)
        if found is not None:
            return found
    return Kind("unknown", _unknown(group))


def _mixture(group: Group) -> Kind | None:
    if not group.experts:
        return None
    first = group.experts[0]
    count = _size(first.param, first.view.looked_up)
    routed = {*group.experts, *group.routers}
    shared = [p for p in group.closing if p not in routed and not routed & {*group.sources(p)}]
    beside = f", beside {_names(shared)} of a shared one" if shared else ""
    return Kind("moe", f"{_names(group.routers)} chooses among {count} experts{beside}")


def _attention(group: Group) -> Kind | None:
    names = [name for name in group.operators if name.startswith("nn.attention")]
    if names:
        return _headed(group, f"relax.{names[0]}")
    program = group.program
    softmax = [v for v in group.values if operator_of(program.made[v]) == "nn.softmax"]
    if not softmax:
        return None
    for var in group.activation_products():
        if program.ancestors([var], group.values) & set(softmax):
            return _headed(group, "a softmax between two products of activations")
    return None


def _headed(group: Group, why: str) -> Kind:
    latent = latents(group)
    if latent:
        return Kind("mla", f"{why}; {_names(latent)} project to latents that others read")
    return Kind("mha", why)


def latents(group: Group) -> list[Product]:
    """The products whose results other products than the closing ones read, without adapters."""
    aside = {*group.closing, *(each.down for each in adapters_of(group))}
    inner = [product for product in group.products if product not in aside]
    return [p for p in inner if any(p in group.sources(other) for other in inner)]


def _recurrence(group: Group) -> Kind | None:
    convolved = list(_convolutions(group))
    if not convolved:
        return None
    names = _names([var for var, _ in convolved])
    if _has_delta_rule(group, convolved):
        return Kind("delta", f"{names} convolves along the sequence, and keys meet themselves")
    if "exp" in group.operators:
        return Kind("ssm", f"{names} convolves along the sequence, and states decay")
    return None


def _convolutions(group: Group) -> Iterator[tuple[relax.Var, int]]:
    """Convolutions of every channel by itself, with the dimension of their channels."""
    program = group.program
    for var in group.values:
        call = program.made[var]
        if operator_of(call) == "nn.conv1d" and int(call.attrs.groups) > 1:
            rule = program.rule(var)
            assert rule is not None
            channel = rule.operands[1][0][0]
            yield from ((var, at) for at, dim in enumerate(rule.results[0]) if channel in dim[:1])


def _has_delta_rule(group: Group, convolved: list[tuple[relax.Var, int]]) -> bool:
    """Returns whether a product has the same convolved columns in both operands.

    A delta rule multiplies keys by scaled keys.
    """
    program = group.program
    parts: dict[relax.Var, frozenset[tuple[relax.Var, int, int]]] = {}
    for var, dim in convolved:
        for part, (begin, end) in trace(program, var, dim, group.values).parts.items():
            parts[part] = frozenset([(var, begin, end)])
    nothing: frozenset[tuple[relax.Var, int, int]] = frozenset()
    for binding in program.bindings:
        if binding.var in group.values and binding.var not in parts:
            reads = program.reads(binding.value)
            parts[binding.var] = nothing.union(*(parts.get(read, nothing) for read in reads))
    for var in group.activation_products():
        call = program.made[var]
        left, right = (parts.get(each, nothing) for each in program.operands(call)[:2])
        if left & right:
            return True
    return False


def _mlp(group: Group) -> Kind | None:
    adapters = adapters_of(group)
    aside = {product for each in adapters for product in (each.down, each.up)}
    products = [product for product in group.products if product not in aside]
    opening = [product for product in products if group.is_opening(product)]
    closing = [product for product in group.closing if product not in aside]
    if len(closing) != 1 or not 1 <= len(opening) <= 2:
        return None
    if len(products) != len(opening) + 1 or closing[0] in opening:
        return None
    if any(True for _ in group.activation_products()):
        return None
    first, last = _names(opening), _names(closing)
    is_gated = len(opening) == 2 or any(
        len(trace(group.program, p.var, p.result_dim, group.values).blocks) == 2 for p in opening
    )
    beside = f", with adapters beside {_names(a.beside for a in adapters)}" if adapters else ""
    return Kind("mlp", f"{first}, {'gated' if is_gated else 'activated'}, then {last}{beside}")


def _unknown(group: Group) -> str:
    if len(group.products) == 1:
        return f"{_names(group.products)} stands alone: no second product adds its columns up"
    count = len(group.products)
    return f"{count} products without attention, choice of experts, convolution or one hidden layer"


def _size(param: relax.Var, dim: int | None) -> int:
    sizes = sizes_of(param) or ()
    return sizes[dim] if dim is not None else 0


def _names(values: Iterable[relax.Var | Product]) -> str:
    found = []
    for each in values:
        var = each if isinstance(each, relax.Var) else each.param
        found.append(str(var.name))
    return ", ".join(dict.fromkeys(found)) or "nothing"
