"""Results of programs: global arrays whose shards stay with the workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from distir_ext.params.held_array import HeldArray
from distir_ext.params.host_array import copied_to_numpy, numpy_dtype, numpy_view
from distir_ext.signature.sizes import size_of
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import counted
from distir_ext.workers.base import Workers
from distir_ext.workers.cuts import samples

if TYPE_CHECKING:
    from distir_ext.signature.sharding import Sharding


class ShardedArray(Shown):
    """A global array on the workers of a session.

    Nothing is gathered before :meth:`numpy` or :meth:`tensor` is called. Passed to a function of
    the same session that takes it with the same sharding, its shards are used where they are.
    With another sharding, and to another session, each worker gets its part of those shards that
    have it, by way of this process.

    The array does not change. One that was passed to an input that is donated
    (:func:`distir_ext.donate`) is used up: all but its shape and dtype raises RuntimeError.
    After its session was closed it can be read if the workers were threads, but not passed on.

    Example, a state that stays on the workers::

        logits, cache = model["prefill"](prompt)
        while ...:
            logits, cache = model["decode"](token, cache)
            token = logits.numpy().argmax(-1)
    """

    def __init__(
        self, workers: Workers, spec: TensorSpec, shape: tuple[int, ...], shards: Mapping[int, Any]
    ) -> None:
        self._workers = workers
        self._spec = spec
        self._shape = shape
        self._held = shards
        self._donated_to: str | None = None
        self._is_kept = True

    @property
    def _shards(self) -> Mapping[int, Any]:
        if self._donated_to is not None:
            raise RuntimeError(
                f"an array {self.dtype}{list(self._shape)} was donated as {self._donated_to}: a "
                "result has its memory now; use that, or pass the array's numpy()"
            )
        return self._held

    def check_available(self, where: str) -> None:
        """Refuses an array that was donated.

        Args:
            where: Name of the use in messages.

        Raises:
            RuntimeError: It was.
        """
        if self._donated_to is not None:
            raise RuntimeError(
                f"{where} is an array that was donated as {self._donated_to}: a result has its "
                "memory now; pass that, or the numpy() of the array before it is donated"
            )

    def donate(self, where: str) -> None:
        """Gives the shards up, as results of a call may be written there.

        Args:
            where: Name of the input that it is passed for.
        """
        self._donated_to, self._held = where, {}

    def may_be_overwritten(self) -> ShardedArray:
        """This array, a result of a function that takes donated inputs."""
        self._is_kept = False
        return self

    def keep(self) -> None:
        """Makes later calls that the array is donated to write elsewhere."""
        if not self._is_kept and self._workers.is_open:
            self._is_kept = True
            shards = [self._shards.get(device) for device in self._workers.device_ids]
            self._workers.run(
                "keep", ["distir.runtime.keep_argument"] * len(shards), [[x] for x in shards]
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The global sizes."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, each counted once."""
        return self.size * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type; equal to its name, ``"float32"``."""
        return numpy_dtype(self._spec.dtype)

    @property
    def shards(self) -> Mapping[int, Any]:
        """Shards by device id, with padding where the shards do not divide a size.

        Those of processes have ``shape``, ``dtype`` and ``numpy()``.

        Raises:
            RuntimeError: the array was donated.
        """
        self.keep()
        return dict(self._shards)

    @property
    def sharding(self) -> Sharding:
        """The mesh, the dims, and which part of the array each device holds."""
        # Workers, which have arrays too, start without what draws them.
        from distir_ext.signature.sharding import sharding_of_shards

        return sharding_of_shards(self._spec, self._shape, self._shards)

    @property
    def workers(self) -> Workers:
        """Workers that hold the array."""
        return self._workers

    @property
    def held(self) -> HeldArray | None:
        """Its shards, by a type; None if its data decides its shape: it is replicated."""
        if _decided_by_data(self._spec, next(iter(self._shards.values()))):
            return None
        return HeldArray(self._spec, self._shape, self._shards)

    def tensor(self) -> Any:
        """The global array as a new ``tvm.runtime.Tensor`` on the host.

        Raises:
            RuntimeError: its workers were processes, and their session is closed.
        """
        new_tensor = tvm_ffi.get_global_func("distir.runtime.new_host_tensor")
        result = new_tensor(tvm_ffi.Shape(self._shape), self._spec.dtype)
        self.gather_into(result)
        return result

    def gather_into(self, result: Any) -> None:
        """Writes the global array to a row-major tensor of its shape and dtype on the host.

        Raises:
            RuntimeError: its workers were processes, and their session is closed.
        """
        spec = self._spec
        device, first = next(iter(self._shards.items()))
        if _decided_by_data(spec, first):
            result.copyfrom(self._workers.fetch({device: first})[device])
            return
        paste = tvm_ffi.get_global_func("distir.runtime.paste")
        holders = spec.holders(self._shards).values()
        found = self._workers.fetch({device: self._shards[device] for device in holders})
        for device, shard in found.items():
            paste(shard, result, tvm_ffi.Shape(spec.begin(device, self._shape)))

    def numpy(self) -> Any:
        """The global array as a new NumPy array."""
        return numpy_view(self.tensor())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return copied_to_numpy(self, dtype, copy, "a sharded array")

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return int(tvm_ffi.DLDeviceType.kDLCPU), 0

    def __tvm_ffi_object__(self) -> Any:
        return self.tensor()

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a scalar has no length")
        return self._shape[0]

    def __repr__(self) -> str:
        if self._donated_to is not None:
            return f"<ShardedArray {self.dtype}{list(self._shape)}, donated>"
        if len(self._shape) != len(self._spec.shape):
            return f"<ShardedArray {self.dtype}{list(self._shape)}>"
        text = f"<ShardedArray {replace(self._spec, shape=self._shape)}"
        if len(self._spec.device_ids) == 1:
            return f"{text}>"
        return f'{text}, placement "{self._spec.placement_text}">'

    def with_shards(self, shards: Mapping[int, Any]) -> ShardedArray | None:
        """The array of other shards; None unless they have the sizes and dtypes of these."""
        if self._donated_to is not None:
            return None
        for device, shard in self._shards.items():
            other = shards.get(device)
            if other is None or other.shape != shard.shape or other.dtype != shard.dtype:
                return None
        return ShardedArray(self._workers, self._spec, self._shape, shards)

    def shards_for(
        self, workers: Workers, spec: TensorSpec, where: str
    ) -> Mapping[int, Any] | None:
        """The shards of the devices of another type, if they are cut and placed as it says.

        Args:
            workers: The workers that will use them.
            spec: The type; its dtype and sizes are those of this array.
            where: Name of the use in messages.

        Returns:
            By device id its shard; None if the array has to be cut again, as where other workers
            hold it.

        Raises:
            ValueError: those are gone.
        """
        if workers is not self._workers:
            if self._workers.is_open:
                return None
            raise ValueError(
                f"{where} is on the workers of another session, which is closed, or of this one "
                "before it was restarted; pass the array's numpy() instead"
            )
        # The padding of a result is anything, that of an argument has to be zero.
        is_uneven = spec.uneven(self._shape) or self._spec.uneven(self._shape)
        if spec.parts != self._spec.parts or is_uneven:
            return None
        if self._spec.blocks is spec.blocks and len(self._shards) == len(spec.blocks):
            return self._shards
        for device, block in spec.blocks.items():
            if device not in self._shards or self._spec.blocks[device] != block:
                return None
        return {device: self._shards[device] for device in spec.blocks}


def _decided_by_data(spec: TensorSpec, shard: Any) -> bool:
    """Returns whether a tensor has a shape that its type lacks, as data decide it (copies only)."""
    return not spec.shape and len(shard.shape) > 0


def global_shape(
    spec: TensorSpec, shards: Mapping[int, Any], where: str, sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape of the array that shards make up.

    Args:
        spec: Its type.
        shards: By device id its shard; at least one.
        where: Its name in messages.
        sizes: Those of symbolic variables that are known.

    Raises:
        ValueError: the shards do not fit the type, or each other.
    """
    first = next(iter(shards.values()))
    if _decided_by_data(spec, first):
        return tuple(first.shape)
    if len(first.shape) != len(spec.shape):
        device = next(iter(shards))
        raise ValueError(
            f"{where}: device {device} returned {first.dtype} {list(first.shape)}, expected "
            f"{counted(len(spec.shape), 'dimension')}"
        )
    cut = [local * parts for local, parts in zip(first.shape, spec.parts, strict=True)]
    # A dimension that is not sharded is not padded either, so that its computed size is not needed.
    known = [
        size_of(dim, sizes) if parts > 1 or isinstance(dim, int) or dim in sizes else None
        for dim, parts in zip(spec.shape, spec.parts, strict=True)
    ]
    stated = [have if size is None else size for size, have in zip(known, cut, strict=True)]
    # A stated size may have padding behind it in the shards.
    kept = zip(stated, cut, spec.local_shape(stated), first.shape, strict=True)
    shape = tuple(size if want == have else covered for size, covered, want, have in kept)
    extent = spec.local_shape(shape)
    for device, shard in samples(shards):
        if tuple(shard.shape) != extent or str(shard.dtype) != spec.dtype:
            raise ValueError(
                f"{where}: device {device} returned {shard.dtype} {list(shard.shape)}, expected "
                f"{spec.dtype} {list(extent)}"
            )
    return shape
