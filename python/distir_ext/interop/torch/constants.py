"""Folds constants: values that depend on neither inputs nor parameters.

Models of transformers compute masks, positions and rotary angles from the shape of their inputs,
with operators on booleans and integers. With static shapes these are constants: they are computed
once, when the model is imported, instead of by every device in every step:

    arange(8) -> le -> where(.., 0, -inf) -> expand(4, 1, 8, 8)        a constant of (1, 1, 8, 8)
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def constant_values(program: torch.export.ExportedProgram) -> dict[fx.Node, Any]:
    """The values of the calls in a program that are the same for all inputs and parameters.

    Buffers and tensors that the model's code has are constants too, but for those that the program
    writes to.
    """
    known: dict[fx.Node, Any] = {}
    calls: dict[fx.Node, Any] = {}
    held = _held(program)
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in held:
                known[node] = held[node.name]
            elif node.op == "call_function" and _is_computable(node, known):
                arguments = fx.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = calls[node] = node.target(*arguments[0], **arguments[1])
    return calls


def _held(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Buffers and constants by the names of their placeholders."""
    signature = program.graph_signature
    buffers = dict(program.named_buffers())
    changed = set(signature.buffers_to_mutate.values())
    held = {
        name: buffers[target]
        for name, target in signature.inputs_to_buffers.items()
        if target not in changed
    }
    for name, target in signature.inputs_to_lifted_tensor_constants.items():
        held[name] = program.constants[target]
    return held


def _is_computable(node: fx.Node, known: dict[fx.Node, Any]) -> bool:
    target: Any = node.target
    if any(source not in known for source in node.all_input_nodes):
        return False
    if target is operator.getitem:
        return True
    is_operator = isinstance(target, torch._ops.OpOverload)
    return is_operator and torch.Tag.nondeterministic_seeded not in target.tags


def without_repetitions(value: torch.Tensor) -> torch.Tensor:
    """A constant with one element along each dimension where all slices are equal.

    Example:
        >>> without_repetitions(torch.ones(4, 2)).shape
        torch.Size([1, 1])
        >>> without_repetitions(torch.arange(2).expand(3, 2)).shape
        torch.Size([1, 2])
    """
    for dim, size in enumerate(value.shape):
        if size > 1 and torch.equal(value, value.narrow(dim, 0, 1).expand_as(value)):
            value = value.narrow(dim, 0, 1)
    return value.contiguous()
