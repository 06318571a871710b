"""Annotates an imported function with the shardings of an ONNX device configuration.

A tensor of the model is a variable of the same name. Its sharding where it is made comes behind
it, and what a node reads otherwise is annotated for this node alone::

    hidden = R.matmul(x_operand, up_operand)
    hidden_sharded = R.dist.annotate_sharding(hidden, ...)
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Sequence
from typing import Any

from tvm import relax

from distir_ext.annotate.annotations import Mark, MeshTable
from distir_ext.interop.onnx.expressions import handles, replaced
from distir_ext.interop.onnx.frontend import ImportedGraph
from distir_ext.interop.onnx.labels import node_label
from distir_ext.interop.onnx.meshes import PlanMeshes
from distir_ext.interop.onnx.targets import NodeTargets, Plan, Target

# They ask for the shape of a tensor, not for its elements.
_SHAPE_OPERATORS = {"Shape", "Size"}


def sharded_name(tensor: str, tensors: Collection[str]) -> str:
    """Returns the name of the variable that holds an output with its stated sharding."""
    name = f"{tensor}_sharded"
    while name in tensors:
        name += "_"
    return name


def placed(
    imported: ImportedGraph, protos: Sequence[Any], plan: Plan, meshes: PlanMeshes, table: MeshTable
) -> tuple[relax.Function, list[str]]:
    """The function with the names of the model and the shardings of a plan.

    Args:
        imported: The function.
        protos: The nodes of the graph.
        plan: Targets of their tensors.
        meshes: Those of the plan.
        table: Of the module, with these meshes in it.

    Returns:
        The function, and what of the plan could not be put into it.
    """
    writer = _Writer(imported, protos, plan, meshes, table)
    return writer.function(), writer.problems


class _Writer:
    def __init__(
        self,
        imported: ImportedGraph,
        protos: Sequence[Any],
        plan: Plan,
        meshes: PlanMeshes,
        table: MeshTable,
    ) -> None:
        self.problems: list[str] = []
        self._imported = imported
        self._protos = protos
        self._plan = plan
        self._meshes = meshes
        self._table = table
        self._builder = relax.BlockBuilder()
        outputs = [name for node in imported.nodes for name in node.outputs]
        self._tensors = {*imported.parameters, *outputs}
        self._taken = {*self._tensors, *imported.renamed.values()}
        self._taken.update(sharded_name(name, self._tensors) for name in self._tensors)
        # By the handle of what the frontend made: what stands for it from here on, and all
        # annotated forms of it.
        self._now: dict[Any, relax.Expr] = {}
        self._annotated: dict[Any, list[tuple[Mark, relax.Var]]] = {}
        self._names: dict[Any, str] = {}
        for node in imported.nodes:
            for name, value in node.outputs.items():
                if isinstance(value, relax.Var):
                    self._names.setdefault(value.__chandle__(), name)

    def function(self) -> relax.Function:
        """The function; it can be asked for once."""
        function = self._imported.function
        params = []
        for name, param in self._imported.parameters.items():
            params.append(param)
            name = self._imported.renamed.get(name, name)
            if param.name != name:  # the frontend drops "onnx::"
                params[-1] = relax.Var(name, param.ty)
                self._now[param.__chandle__()] = params[-1]
        blocks = [self._block(block) for block in function.body.blocks]
        body = relax.SeqExpr(blocks, replaced(function.body.body, self._now))
        return relax.Function(
            params,
            self._builder.normalize(body),
            function.ret_ty,
            function.is_pure,
            function.attrs,
            function.span,
        )

    def _block(self, block: relax.BindingBlock) -> relax.BindingBlock:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        kind = relax.DataflowVar if is_dataflow else relax.Var
        bindings: list[relax.Binding] = []
        of_node: list[relax.Binding] = []
        for binding in block.bindings:
            index = self._imported.marks.get(binding.var.__chandle__())
            if index is None:
                of_node.append(binding)
            else:
                self._node(index, of_node, bindings, kind)
                of_node = []
        bindings += [self._renamed(binding, {}) for binding in of_node]
        return relax.DataflowBlock(bindings) if is_dataflow else relax.BindingBlock(bindings)

    def _node(
        self,
        index: int,
        old: Sequence[relax.Binding],
        bindings: list[relax.Binding],
        kind: type[relax.Var],
    ) -> None:
        """Writes the bindings of a node."""
        targets = self._plan.nodes.get(index, NodeTargets())
        values = self._imported.nodes[index]
        used = {handle for binding in old for handle in handles(binding.value)}
        operands: dict[Any, relax.Expr] = {}
        for tensor, target in targets.inputs.items():
            value = values.inputs[tensor]
            if not isinstance(value, relax.Expr) or value.__chandle__() not in used:
                self._refuse_unused(index, tensor, target)
                continue
            mark = self._mark(index, tensor, target, value.ty)
            if mark is not None:
                handle = value.__chandle__()
                operands[handle] = self._stated(f"{tensor}_operand", value, mark, bindings, kind)
        for binding in old:
            bindings.append(self._renamed(binding, operands))
        for tensor, target in targets.outputs.items():
            value = values.outputs[tensor]
            if not isinstance(value, relax.Var):
                self._refuse_unused(index, tensor, target)
                continue
            mark = self._mark(index, tensor, target, value.ty)
            if mark is not None:
                name = sharded_name(tensor, self._tensors)
                stated = self._stated(name, value, mark, bindings, kind, is_taken=True)
                self._now[value.__chandle__()] = stated

    def _stated(
        self,
        name: str,
        value: relax.Expr,
        mark: Mark,
        bindings: list[relax.Binding],
        kind: type[relax.Var],
        is_taken: bool = False,
    ) -> relax.Var:
        """A variable that holds a value as a mark says; one that is there already if there is."""
        handle = value.__chandle__()
        forms = self._annotated.setdefault(handle, [])
        for there, var in forms:
            if there.says_the_same(mark):
                return var
        annotated = self._builder.normalize(mark.on(self._now.get(handle, value)))
        var = kind(name if is_taken else self._fresh(name), annotated.ty)
        bindings.append(relax.VarBinding(var, annotated))
        forms.append((mark, var))
        return var

    def _mark(self, index: int, tensor: str, target: Target, type_: Any) -> Mark | None:
        """Returns the annotation of a tensor; None, and a problem, if it does not fit."""
        entity = self._entity(index, tensor)
        if not isinstance(type_, relax.TensorType):
            self._refuse_unused(index, tensor, target)
            return None
        if target.arrangement is None:
            return self._table.mark(entity, self._meshes.of(target), None, type_)
        dims: list[tuple[str, ...] | None] = [None] * max(type_.ndim, 0)
        for axis, axes in zip(target.axes, self._meshes.axes_of(target), strict=True):
            if not -len(dims) <= axis < len(dims):
                rank = "an unknown rank" if type_.ndim < 0 else f"rank {type_.ndim}"
                self.problems.append(f"{entity}: axis {axis} is sharded, but it has {rank}")
                return None
            if dims[axis] is not None:
                self.problems.append(f"{entity}: axis {axis} is sharded twice")
                return None
            dims[axis] = axes
        try:
            return self._table.mark(entity, self._meshes.of(target), dims, type_)
        except ValueError as error:
            self.problems.append(str(error))
            return None

    def _refuse_unused(self, index: int, tensor: str, target: Target) -> None:
        """Notes a sharding of what is no tensor any more; replicated, it needs none."""
        if target.arrangement is not None and self._protos[index].op_type not in _SHAPE_OPERATORS:
            self.problems.append(
                f"{self._entity(index, tensor)}: it is sharded, but TVM's frontend has made a "
                "constant or a shape of it"
            )

    def _entity(self, index: int, tensor: str) -> str:
        return f"{node_label(self._protos[index], index)}, tensor {tensor!r}"

    def _renamed(self, binding: relax.Binding, operands: dict[Any, relax.Expr]) -> relax.Binding:
        """A binding on the values of now, its variable called as the tensor that it holds."""
        now = ChainMap(operands, self._now)
        old = binding.var
        handle = old.__chandle__()
        name = self._names.get(handle)
        if name is None:
            name = self._fresh(old.name) if old.name in self._taken else old.name
        if name != old.name:
            var = type(old)(name, old.ty)
            self._now[handle] = var
        else:
            var = old
        value = replaced(binding.value, now)
        if isinstance(binding, relax.MatchCast):
            return relax.MatchCast(var, value, binding.ty)
        return relax.VarBinding(var, value)

    def _fresh(self, name: str) -> str:
        number, fresh = 0, name
        while fresh in self._taken:
            number += 1
            fresh = f"{name}_{number}"
        self._taken.add(fresh)
        return fresh
