"""Lists replicated weights that no hint names, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import relax_function
from distir_ext.compile.entry import lower
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.program import Program, operator_of


def replicated_weights(
    mod: tvm.IRModule,
    annotated: tvm.IRModule,
    func: str,
    named: Iterable[str],
    blocks: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """The reason of each weight that is replicated after propagation.

    Args:
        mod: The module before hints were applied.
        annotated: The function with annotations.
        func: The name of the function.
        named: The weights that hints name, which have a reason of their own.
        blocks: The parameters that weights are cut into.

    Raises:
        ValueError: The annotated module cannot be propagated.
    """
    function = relax_function(lower(annotated, until="propagated"), func)
    sharded = {str(each.name) for each in function.params if _is_sharded(each.ty)}
    reasons = _Reasons(relax_function(mod, func))
    others = set(named)
    found = {}
    for weight in reasons.program.weights:
        name = str(weight.name)
        if name not in others and not sharded & {*blocks.get(name, (name,))}:
            found[name] = reasons.of(weight)
    return found


def _is_sharded(type_: object) -> bool:
    if not isinstance(type_, DTensorType):
        return False
    sizes = map(int, type_.device_mesh.shape)
    specs = type_.placement.dim_specs
    return any(int(each.axis) >= 0 and n > 1 for each, n in zip(specs, sizes, strict=True))


class _Reasons:
    def __init__(self, function: relax.Function) -> None:
        self.program = Program(function)
        self._stream = Stream(self.program)

    def of(self, weight: relax.Var) -> str:
        """Explains what reads a weight, and why it needs all of it."""
        readers = self._readers(weight)
        if not readers:
            return "nothing reads it"
        names = ", ".join(dict.fromkeys(self._name(each) for each in readers))
        inputs = self._stream.weights.of_inputs
        if any(read in inputs for each in readers for read in self._read(each)):
            return f"{names} looks rows up in it, which the inputs say"
        if all(self._stream.near.get(each) for each in readers):
            return f"{names} applies it to the hidden states, which each device has"
        return f"{names} uses all of it for the shard of each device"

    def _readers(self, weight: relax.Var) -> list[relax.Var]:
        """Returns the calls that use a weight, also through views of it."""
        views, pending = self._stream.weights.views, [weight]
        found: list[relax.Var] = []
        while pending:
            for user in self.program.users.get(pending.pop(), ()):
                (pending if user in views else found).append(user)
        return found

    def _read(self, var: relax.Var) -> list[relax.Var]:
        return self.program.reads(self.program.made[var])

    def _name(self, var: relax.Var) -> str:
        name = operator_of(self.program.made[var])
        return f"relax.{name}" if name else str(var.name)
