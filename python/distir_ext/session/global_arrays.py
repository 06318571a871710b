"""Cuts global arrays into shards and joins shards, checked against the types of a signature.

Example: an argument of shape ``[8, 4]`` for a parameter ``float32["n", 4]`` whose first dimension
is cut in two binds ``n`` to 8 and gives each device a box of 4 x 4 elements. So does an argument
``[8]`` for a parameter ``shape["n"]``, and 8 for a number called ``n``.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from distir_ext.params.host_array import ArrayInParts, HostArray, host_array
from distir_ext.params.parts import StoredPart
from distir_ext.params.stored_array import StoredArray, StoredShards
from distir_ext.session.moved_array import MovedArray, MovedCut
from distir_ext.session.sharded_array import ShardedArray, global_shape
from distir_ext.session.worker_value import WorkerValue
from distir_ext.signature.signature import ParamSpec
from distir_ext.signature.sizes import Dim, names_in, size_of
from distir_ext.signature.specs import (
    Leaf,
    NumberSpec,
    ShapeSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    ValueSpec,
)
from distir_ext.text.errors.spelling import counted
from distir_ext.workers.base import Takers, Workers
from distir_ext.workers.cuts import Cut, StoredCut, cuts_of, samples

Sizes = Mapping[str, tuple[int, str]]


_Cut = HostArray | ArrayInParts | MovedArray | StoredArray | StoredShards


class SizeBinding:
    """Sizes of symbolic dimensions, and where each was first seen.

    Args:
        known: Sizes bound before, such as those of the weights.
    """

    def __init__(self, known: Sizes | None = None) -> None:
        self.sizes: dict[str, tuple[int, str]] = dict(known or {})
        self._computed: list[tuple[str, int, str]] = []

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes alone."""
        return {name: size for name, (size, _) in self.sizes.items()}

    def bind(self, dim: Dim, size: int, where: str) -> None:
        """Checks a dimension of an argument as :meth:`check` does, but computed ones later.

        Raises:
            ValueError: it has another size; names ``where``.
        """
        if isinstance(dim, int) or dim.isidentifier():
            self.check(dim, size, where)
        else:
            self._computed.append((dim, size, where))

    def check_computed(self) -> None:
        """Checks the dimensions whose sizes are computed from others, once all of them are bound.

        Those of weights are checked again, as inputs may state the others.

        Raises:
            ValueError: one has another size; names it and what the others were bound by.
        """
        plain = {
            name: size
            for name, size in self.numbers.items()
            if name.isidentifier() or names_in(name) == [name]
        }
        bound = [(dim, *found) for dim, found in self.sizes.items() if dim not in plain]
        for dim, size, where in [*bound, *self._computed]:
            wanted = size_of(dim, plain)
            if wanted is None:
                self.check(dim, size, where)
            elif wanted != size:
                known = ", ".join(
                    f"{self.sizes[name][1]} has {name} = {self.sizes[name][0]}"
                    for name in names_in(dim)
                )
                raise ValueError(f"{where} has size {size}, but {dim} is {wanted}: {known}")
        self._computed.clear()

    def check(self, dim: Dim, size: int, where: str) -> None:
        """Checks that a dimension has the expected size, binding its name if it has one.

        Raises:
            ValueError: it has another size; names ``where``.
        """
        if isinstance(dim, str):
            bound, first = self.sizes.setdefault(dim, (size, where))
            if bound != size:
                raise ValueError(f"{where} has {dim} = {size}, but {first} has {dim} = {bound}")
        elif dim != size:
            raise ValueError(f"{where} has size {size}, expected {dim}")


@dataclass(frozen=True)
class Argument:
    """A value for a parameter.

    Attributes:
        param: The parameter.
        value: A global array, on the host, on the workers or on disk; a shape; a number; or a
            nested sequence of these.
        where: Its name in messages, such as ``input "x" of "main"``.
    """

    param: ParamSpec
    value: Any
    where: str


class ArgumentCutter:
    """Checks the arguments of one step and describes their shards.

    The memory of all arguments stays alive as long as this object.

    Args:
        workers: The workers that get the shards.
        known: Sizes of symbolic dimensions bound before.
        dividing: Those that have to divide, and why (:class:`FunctionSpec`).
        size_names: Variables in sizes of parameters and results.
    """

    def __init__(
        self,
        workers: Workers,
        known: Sizes | None = None,
        dividing: Mapping[str, str] | None = None,
        size_names: Collection[str] = (),
    ) -> None:
        self.binding = SizeBinding(known)
        self._size_names = size_names
        self._dividing = dividing or {}
        self._workers = workers
        self._arrays: list[HostArray | ArrayInParts] = []

    def cut(self, arguments: Sequence[Argument]) -> list[Any]:
        """Checks arguments, and then cuts them by the sizes that all of them state.

        Returns:
            What devices get of each (``cuts``).

        Raises:
            TypeError: not an array, a shape or a number as the type says, or of another dtype.
            ValueError: another shape, sizes that contradict each other, a symbolic size that has to
                divide among the devices and does not, or an array on workers that are gone.
        """
        taken = [self._take(each.value, each.param.spec, each.where) for each in arguments]
        for each, value in zip(arguments, taken, strict=True):
            if isinstance(each.param.spec, NumberSpec) and type(value) is int:
                if value < 0 and each.param.name in self._size_names:
                    raise ValueError(f"{each.where} is {value}, which is no size")
                self.binding.check(each.param.name, value, each.where)
        self.binding.check_computed()
        return [
            self._cut(value, each.param.spec, each.where)
            for each, value in zip(arguments, taken, strict=True)
        ]

    def _take(self, value: Any, spec: Spec, where: str) -> Any:
        """An argument, checked but for computed sizes, with what memory it has."""
        if isinstance(spec, TupleSpec):
            return self._take_tuple(value, spec, where)
        if isinstance(spec, ShapeSpec):
            return self._take_shape(value, spec, where)
        if isinstance(spec, NumberSpec):
            return _number(value, spec, where)
        if isinstance(spec, ValueSpec):
            if not isinstance(value, WorkerValue):
                raise TypeError(
                    f"{where} is {type(value).__name__}, expected a value that a function of this "
                    "session returned"
                )
            return value.values_for(self._workers, where)
        opened = self._open(value, where)
        self._check_array(opened, spec, where)
        return opened

    def _cut(self, opened: Any, spec: Spec, where: str) -> Any:
        """Returns the shards or values that devices get of an argument that was taken."""
        if isinstance(spec, TupleSpec):
            fields = zip(opened, spec.fields, strict=True)
            return [self._cut(*each, f"{where}[{index}]") for index, each in enumerate(fields)]
        if not isinstance(spec, TensorSpec):
            return opened
        self._check_division(opened, spec, where)
        spec = spec.with_sizes(self.binding.numbers, where)
        if isinstance(opened, ShardedArray):
            shards = opened.shards_for(self._workers, spec, where)
            if shards is not None:
                return shards
            array: _Cut = self._moved_array(opened)
        else:
            array = opened
        if isinstance(array, MovedArray):
            return MovedCut(array, spec)
        extent = spec.local_shape(array.shape)
        if isinstance(array, StoredArray | StoredShards):
            return StoredCut(spec.blocks, StoredPart(array, spec.layout, extent))
        by_block = {
            block: array.shard(spec.begin(device, array.shape), extent)
            for block, device in spec.first_holders.items()
        }
        return Cut(spec.blocks, by_block)

    def read_stored(self, cuts: Sequence[Any]) -> None:
        """Makes each worker read its parts of arrays in files.

        Args:
            cuts: Values by device; lists have one for each field.

        Raises:
            WorkerError: a file cannot be read any more.
        """
        stored = list(cuts_of(StoredCut, cuts))
        if not stored:
            return
        takers: dict[frozenset[int], list[int]] = {}
        for rank, device in enumerate(self._workers.device_ids):
            indices = frozenset(i for i, cut in enumerate(stored) if device in cut)
            takers.setdefault(indices, []).append(rank)
        groups = [Takers(tuple(ranks), indices) for indices, ranks in takers.items() if indices]
        read = self._workers.keep("read inputs", stored, groups)
        for cut, held in zip(stored, read, strict=True):
            cut.held = held

    def _moved_array(self, array: ShardedArray) -> _Cut:
        if array.held is not None:
            return MovedArray(array.workers, array.held)
        whole = host_array(array.tensor())
        self._arrays.append(whole)
        return whole

    def _open(
        self, value: Any, where: str
    ) -> HostArray | ArrayInParts | ShardedArray | StoredArray | StoredShards:
        if isinstance(value, ShardedArray | StoredArray | StoredShards):
            return value
        try:
            array = host_array(value)
        except TypeError as error:
            raise TypeError(f"{where} cannot be used: {error}") from error
        self._arrays.append(array)
        return array

    def _take_tuple(self, value: Any, spec: TupleSpec, where: str) -> list[Any]:
        if not isinstance(value, Sequence) or len(value) != len(spec.fields):
            is_sequence = isinstance(value, Sequence)
            found = counted(len(value), "field") if is_sequence else type(value).__name__
            wanted = counted(len(spec.fields), "field")
            raise ValueError(f"{where} is {found}, expected a tuple of {wanted}")
        return [
            self._take(each, field, f"{where}[{index}]")
            for index, (each, field) in enumerate(zip(value, spec.fields, strict=True))
        ]

    def _check_array(self, array: Any, spec: TensorSpec, where: str) -> None:
        if spec.dtype and array.dtype != spec.dtype:
            raise TypeError(f"{where} has dtype {array.dtype}, expected {spec.dtype}")
        if len(array.shape) != len(spec.shape):
            has = counted(len(array.shape), "dimension")
            raise ValueError(
                f"{where} has {has} {list(array.shape)}, expected {len(spec.shape)}: {spec}"
            )
        for index, (dim, size) in enumerate(zip(spec.shape, array.shape, strict=True)):
            self.binding.bind(dim, size, f"dimension {index} of {where}")

    def _take_shape(self, value: Any, spec: ShapeSpec, where: str) -> tvm_ffi.Shape:
        shape = _shape(value, where)
        if spec.dims is None:
            return shape
        if len(shape) != len(spec.dims):
            has = counted(len(shape), "size")
            raise ValueError(f"{where} has {has} {list(shape)}, expected {len(spec.dims)}: {spec}")
        for index, (dim, size) in enumerate(zip(spec.dims, shape, strict=True)):
            entry = f"entry {index} of {where}"
            if isinstance(dim, str) and size < 0:
                raise ValueError(f"{entry} is {dim} = {size}, which is no size")
            if dim is not None:
                self.binding.bind(dim, size, entry)
        return shape

    def _check_division(self, array: Any, spec: TensorSpec, where: str) -> None:
        for index in spec.uneven(array.shape):
            name = spec.shape[index]
            if isinstance(name, str) and name in self._dividing:
                reason = self._dividing[name]
                raise ValueError(
                    f"dimension {index} of {where} has size {name} = {array.shape[index]}, which "
                    f"does not divide among the {spec.parts[index]} parts that its placement cuts "
                    "it into" + (f"; it cannot be padded along {reason}" if reason else "")
                )


def _number(value: Any, spec: NumberSpec, where: str) -> int | float | bool:
    """A number of a type as Python has it."""
    try:
        if spec.dtype == "bool":
            if value in (False, True):
                return bool(value)
        elif "float" in spec.dtype:
            if hasattr(value, "__float__") or hasattr(value, "__index__"):
                return float(value)
        else:
            number = operator.index(value)
            bits = int(spec.dtype.removeprefix("u").removeprefix("int"))
            least = 0 if spec.dtype.startswith("u") else -(2 ** (bits - 1))
            if least <= number < least + 2**bits:
                return number
            raise ValueError(f"{where} is {number}, which is no {spec}")
    except TypeError:
        pass
    raise TypeError(f"{where} is {type(value).__name__}, expected a number: {spec}")


def _shape(value: Any, where: str) -> tvm_ffi.Shape:
    try:
        sizes = tuple(operator.index(each) for each in value)
    except TypeError as error:
        raise TypeError(f"{where} is {type(value).__name__}, expected shape") from error
    if large := [size for size in sizes if not -(2**63) <= size < 2**63]:
        raise ValueError(f"{where} has the size {large[0]}, which is no int64")
    return tvm_ffi.Shape(sizes)


def _is_of(spec: Leaf, returned: Any) -> bool:
    """Returns whether a returned value may be of a type."""
    if isinstance(spec, ShapeSpec):
        return isinstance(returned, tvm_ffi.Shape)
    if isinstance(spec, NumberSpec):
        return isinstance(returned, bool | int | float)
    return not isinstance(returned, tvm_ffi.Shape) and hasattr(returned, "dtype")


def join(
    workers: Workers,
    spec: Leaf,
    shards: Mapping[int, Any],
    where: str,
    binding: SizeBinding,
) -> Any:
    """One leaf of a global result.

    Args:
        workers: The workers that hold the shards.
        spec: Its type.
        shards: Shards that devices returned; every part at least once.
        where: Its name in messages.
        binding: Sizes that the arguments have bound.

    Returns:
        A :class:`ShardedArray`, a shape or a number as it is, or a :class:`WorkerValue`.

    Raises:
        ValueError: the shards are not what the type says.
    """
    if isinstance(spec, ValueSpec):
        return WorkerValue(workers, shards)
    for device, shard in samples(shards):
        if not _is_of(spec, shard):
            found = type(shard).__name__
            raise ValueError(f"{where}: device {device} returned a {found}, expected {spec}")
    if not isinstance(spec, TensorSpec):
        return next(iter(shards.values()))
    spec = spec.with_sizes(binding.numbers, where)
    shape = global_shape(spec, shards, where, binding.numbers)
    for index, (dim, size) in enumerate(zip(spec.shape, shape, strict=False)):
        binding.check(dim, size, f"dimension {index} of {where}")
    return ShardedArray(workers, spec, shape, shards)
