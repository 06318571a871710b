"""Imports exported torch programs by TVM's frontend; folds constants, locates errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import tvm
from torch import fx
from tvm import relax, sym
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from distir_ext.interop._lookups import with_bounded_lookups
from distir_ext.interop.torch import cache_writes, indexing
from distir_ext.interop.torch.constants import constant_values, without_repetitions
from distir_ext.interop.torch.marks import OPERATOR
from distir_ext.interop.torch.operators import CONVERTERS, as_in_torch, promoted
from distir_ext.interop.torch.sizes import Sizes

Convert = Callable[[fx.Node], Any]

# Operators whose indices cannot be negative.
_COUNTED_FROM_START = ("embedding.default", "gather.default", "index_select.default")


def import_decomposed(
    program: torch.export.ExportedProgram,
) -> tuple[tvm.IRModule, dict[str, list[str]]]:
    """A decomposed program as a Relax module.

    Returns:
        The module, whose function "main" takes the inputs and then the parameters, as ``num_input``
        says; and from names of marks to the variables that they have become.

    Raises:
        ValueError: TVM's frontend cannot import an operator; says which, and of which module.
    """
    importer = _Importer(program)
    mod = importer.from_exported_program(
        program,
        keep_params_as_input=True,
        unwrap_unit_return_tuple=True,
        no_bind_return_tuple=False,
        custom_convert_map=None,
    )
    mod["main"] = _without_idle_bounds(mod["main"].without_attr("params"))
    try:
        mod = with_bounded_lookups(mod, lambda name: name not in importer.from_start)
    except ValueError as error:
        raise ValueError(f"the model looks up what is not there: {error}") from error
    return mod, importer.marked


def _without_idle_bounds(function: relax.Function) -> relax.Function:
    """A function without bounds of sizes that torch has tried, and that no parameter has."""
    name = "tir_var_lower_bound"
    bounds = dict(function.attrs[name]) if function.attrs and name in function.attrs else {}
    sizes = {str(size.name) for size in relax.analysis.defined_symbolic_vars(function)}
    used = {size: bound for size, bound in bounds.items() if str(size) in sizes}
    if len(used) == len(bounds):
        return function
    return function.with_attr(name, used) if used else function.without_attr(name)


class _Importer(ExportedProgramImporter):
    convert_map: dict[str, Convert]

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.marked: dict[str, list[str]] = {}
        self.from_start: set[str] = set()
        self._sizes = Sizes()
        self._constants = constant_values(program)
        self._refuse_unknown(program)
        computed = {_operator(node): _never for node in self._constants}
        own: dict[str, Convert] = {
            OPERATOR: self._mark,
            cache_writes.OPERATOR: self._write_cache,
            "embedding.default": self._look_up,
            "native_dropout.default": self._drop,
            "index.Tensor": self._index,
            "index_put.default": self._write_at_indices,
            "topk.default": functools.partial(_sorted, self.convert_map["topk.default"]),
            "cumsum.default": functools.partial(self._add_up, self.convert_map["cumsum.default"]),
            "slice.Tensor": functools.partial(self._slice_of, self.convert_map["slice.Tensor"]),
        }
        written: dict[str, Convert] = {
            name: functools.partial(self._written, convert) for name, convert in CONVERTERS.items()
        }
        known = {**computed, **self.convert_map, **written, **own}
        self.convert_map.update({name: self._converting(known[name]) for name in known})

    @staticmethod
    def _convert_pytorch_tensor_to_tvm(value: torch.Tensor) -> tvm.runtime.Tensor:
        # Parameters become inputs: their values are copied for an attribute that is dropped.
        if isinstance(value, torch.nn.Parameter):
            value = torch.zeros(())
        elif value.layout == torch.strided:
            # TVM takes what it can share, and all else by way of NumPy, which has no bfloat16.
            value = value.detach().clone(memory_format=torch.contiguous_format)
        return ExportedProgramImporter._convert_pytorch_tensor_to_tvm(value)

    def _refuse_unknown(self, program: torch.export.ExportedProgram) -> None:
        unknown: dict[str, str] = {}
        for node in program.graph.nodes:
            if node.op != "call_function" or node in self._constants:
                continue
            known = (*self.convert_map, *CONVERTERS, OPERATOR, cache_writes.OPERATOR)
            if _operator(node) not in known:
                unknown.setdefault(str(node.target), _place(node))
        if unknown:
            listed = ", ".join(f"{name} ({place})" for name, place in unknown.items())
            raise ValueError(f"TVM's frontend for PyTorch does not have {listed}")

    def _converting(self, convert: Convert) -> Convert:
        def converted(node: fx.Node) -> Any:
            if node in self._constants:
                return self._constant(node)
            for source in node.all_input_nodes:
                if source.op == "placeholder":
                    self._sizes.learn(source, self.env[source])
            try:
                with self._promoted(node):
                    result = convert(node)
                result = as_in_torch(result, node.meta.get("val"), self.block_builder.emit)
            except Exception as error:
                raise ValueError(
                    f"TVM's frontend for PyTorch cannot import {node.target} ({_place(node)}): "
                    f"{type(error).__name__}: {error}"
                ) from error
            if _operator(node) in _COUNTED_FROM_START and isinstance(result, relax.Var):
                self.from_start.add(str(result.name))
            return result

        return converted

    def _constant(self, node: fx.Node) -> Any:
        """Returns a constant for the operators that use it; None if only constants do."""
        value = self._constants[node]
        if not isinstance(value, torch.Tensor):
            return value
        if all(user in self._constants for user in node.users):
            return None
        small = without_repetitions(value)
        constant = relax.const(self._convert_pytorch_tensor_to_tvm(small))
        if small.shape == value.shape:
            return constant
        return self.block_builder.emit(relax.op.broadcast_to(constant, list(value.shape)))

    def _look_up(self, node: fx.Node) -> relax.Var:
        # TVM's converter makes one dimension of all those of the indices, which are then not
        # sharded apart.
        table, indices = self.env[node.args[0]], self.env[node.args[1]]
        indices = self.block_builder.emit(relax.op.astype(indices, "int32"))
        return self.block_builder.emit(relax.op.take(table, indices, axis=0, mode="fast"))

    def _drop(self, node: fx.Node) -> relax.Var:
        # The values and the mask; TVM's converter has the operand alone, in training as well.
        x, rate, training = node.args
        if training and rate > 0:
            return self.block_builder.emit(relax.op.nn.dropout(self.env[x], rate))
        ones = self.block_builder.emit(relax.op.ones_like(self.env[x]))
        return self.block_builder.emit(relax.Tuple([self.env[x], ones]))

    def _index(self, node: fx.Node) -> relax.Expr:
        data, indices = self.retrieve_args(node)
        if any(str(each.ty.dtype) == "bool" for each in indices if each is not None):
            raise ValueError("as many elements as a mask has: their number is not known")
        return indexing.looked_up(data, indices, self.block_builder)

    def _write_at_indices(self, node: fx.Node) -> relax.Expr:
        data, indices, values, *rest = self.retrieve_args(node)
        accumulate = bool(rest[0]) if rest else bool(node.kwargs.get("accumulate", False))
        return indexing.written(data, indices, values, accumulate, self.block_builder)

    def _add_up(self, convert: Convert, node: fx.Node) -> Any:
        # TVM's converter adds up booleans as booleans.
        data = node.args[0]
        dtype = self._convert_data_type(str(node.meta["val"].dtype))
        if str(self.env[data].ty.dtype) == dtype:
            return convert(node)
        before = self.env[data]
        self.env[data] = self.block_builder.emit(relax.op.astype(before, dtype))
        try:
            return convert(node)
        finally:
            self.env[data] = before

    def _written(self, convert: Callable[..., relax.Expr], node: fx.Node) -> relax.Var:
        emit = self.block_builder.emit
        return emit(convert(list(self.retrieve_args(node)), dict(node.kwargs), emit))

    @contextmanager
    def _promoted(self, node: fx.Node) -> Iterator[None]:
        """Operands in the dtype in which torch computes a call."""
        wanted = promoted(node, self.env)
        before = {each: self.env[each] for each in wanted}
        for each, dtype in wanted.items():
            self.env[each] = self.block_builder.emit(relax.op.astype(before[each], dtype))
        try:
            yield
        finally:
            self.env.update(before)

    def _slice_of(self, convert: Convert, node: fx.Node) -> Any:
        # TVM's converter cuts symbolic sizes off where torch knows that there is nothing to cut.
        arguments: list[Any] = [*node.args, *(0, None, None, 1)[len(node.args) - 1 :]]
        data, dim, start, _, step = arguments
        size, length = (
            self._sizes.expression(each.meta["val"].shape[dim]) for each in (data, node)
        )
        begin = self._sizes.expression(0 if start is None else start)
        is_static = isinstance(size, int) and isinstance(length, int)
        if is_static or any(each is None for each in (size, length, begin)):
            return convert(node)
        if isinstance(begin, int) and begin < 0:
            begin = size + begin
        if step == 1 and sym.Analyzer().can_prove_equal(size, length):
            return self.env[data]
        end = begin + length * step
        return self.block_builder.emit(
            relax.op.strided_slice(
                self.env[data], [dim], [begin], [end], [step], assume_inbound=True
            )
        )

    def _mark(self, node: fx.Node) -> relax.Var:
        value, name = node.args
        variable = self.block_builder.emit(self.env[value], str(name))
        self.marked.setdefault(str(name), []).append(str(variable.name))
        return variable

    def _write_cache(self, node: fx.Node) -> relax.Var:
        cache, values, start = (self.env[each] for each in node.args)
        name, kernel = cache_writes.kernel(cache.ty, values.ty)
        variable = self.block_builder.add_func(kernel, name)
        return self.block_builder.emit(
            relax.op.call_tir_inplace(variable, [cache, values, start], [0], cache.ty)
        )


def _sorted(convert: Convert, node: fx.Node) -> Any:
    """The largest elements in order, as TVM's converter wants them, also where any will do."""
    node.args = node.args[:4]
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "sorted"}
    return convert(node)


def _never(node: fx.Node) -> Any:
    raise NotImplementedError(f"{node.target} of other than constants")


def _operator(node: fx.Node) -> str:
    """Returns the name by which TVM's frontend looks up an operator."""
    return str(node.target.__name__)


def _place(node: fx.Node) -> str:
    """The module whose code calls an operator, as users name it."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    names = [str(each[0]) for each in stack.values() if each[0]]
    return f"in {names[-1]}" if names else "in the model"
