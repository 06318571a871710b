"""Registers sharding rules that users state for operators, packed functions and kernels."""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi

from distir_ext.text.errors.tracebacks import short_tracebacks

KERNEL_ATTRIBUTE = "distir.rule"
"""The attribute of a PrimFunc that states its rule as :func:`register_rule` takes it."""


@short_tracebacks
def register_rule(
    name: str,
    rule: str,
    reduce: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    replace: bool = False,
) -> None:
    """Registers the sharding rule of an operator or a packed function.

    The rule holds in this process for every pass that runs afterwards, and goes before the table's
    rule of an operator. Stating the same rule again changes nothing. Every worker calls the
    operator or function on its shards of the operands, and must get its shards of the results.

    >>> register_rule("my.projection", "b s h, h o -> b s o", reduce={"h": "sum"})
    >>> registered_rules()["my.projection"]
    'b s h, h o -> b s o; sum h'
    >>> register_rule("my.split_heads", "b (h d) -> b h d", sizes={"d": 64})
    >>> unregister_rule("my.projection"), unregister_rule("my.split_heads")
    (True, True)

    Args:
        name: ``relax.<operator>``, or the name of the packed function.
        rule: The dimensions of the tensor operands, tuples flattened, and of the results. A name in
            both is sharded freely. One of operands only needs replication unless ``reduce`` says
            otherwise; so does ``_``. ``(a b)`` is one dimension made of two, major first; ``()`` is
            a tensor without dimensions. Clauses may follow: ``; sum h; d=64`` is the same as
            ``reduce={"h": "sum"}, sizes={"d": 64}``.
        reduce: Names that only operands have, whose shards give partial results, with how these
            combine: sum, max, min, prod or mean; one kind per rule.
        sizes: Sizes of names that no shape tells.
        replace: Whether it takes the place of another rule that was registered for this name, as
            when a notebook's cell runs again.

    Raises:
        ValueError: The name is empty, or, without ``replace``, has another rule; the rule is
            malformed or contradicts itself. One that contradicts the shapes of a call is refused by
            the pass that meets the call.
        TypeError: The name or the rule is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r} of a rule is a {type(name).__name__}, not a string")
    if not isinstance(rule, str):
        raise TypeError(f"the rule of {name} is a {type(rule).__name__}, not a string")
    if not name:
        raise ValueError("a rule needs the name of an operator or a packed function")
    clauses = [f"{kind} {reduced}" for reduced, kind in (reduce or {}).items()]
    clauses += [f"{sized}={size}" for sized, size in (sizes or {}).items()]
    text = "; ".join([rule, *clauses])
    for each in (name, text):
        if not each.isprintable() and any("\ud800" <= sign <= "\udfff" for sign in each):
            raise ValueError(f"rule {text!a} of {name!a}: half of a surrogate pair is no text")
    known = registered_rules().get(name)
    tvm_ffi.get_global_func("distir.rules.Register")(name, text)
    stated = registered_rules()[name]
    if known not in (None, stated) and not replace:
        tvm_ffi.get_global_func("distir.rules.Register")(name, known)
        raise ValueError(
            f"there is a rule of {name} already, {known!r}; replace=True replaces it, and "
            f"unregister_rule({name!r}) forgets it"
        )


@short_tracebacks
def unregister_rule(name: str) -> bool:
    """Forgets a registered rule; an operator then has the table's rule again.

    Args:
        name: As it was registered.

    Returns:
        Whether there was one.
    """
    return bool(tvm_ffi.get_global_func("distir.rules.Unregister")(name))


@short_tracebacks
def registered_rules() -> dict[str, str]:
    """The rules registered in this process, by name, as text that registers them again."""
    rules = tvm_ffi.get_global_func("distir.rules.Registered")()
    return {str(name): str(rules[name]) for name in sorted(rules)}
