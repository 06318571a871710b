"""Arrays in host memory, in the form that the writer of safetensors takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi

from distir_ext.params import safetensors
from distir_ext.params.host_array import host_array, numpy_view


class HostTensor:
    """Any array of the host that safetensors can have.

    Args:
        value: Value that users pass as an array.
        where: Its name in messages.

    Attributes:
        shape: Sizes in elements.
        dtype: TVM's name of the element type.

    Raises:
        TypeError: it is no array.
        ValueError: safetensors lack its dtype.
    """

    def __init__(self, value: Any, where: str) -> None:
        try:
            self._array = host_array(value)
        except TypeError as error:
            raise TypeError(f"{where} cannot be saved: {error}") from error
        self.shape = self._array.shape
        self.dtype = self._array.dtype
        safetensors.check_dtype(self.dtype, where)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Its elements, one behind the other."""
        shard = self._array.shard([0] * len(self.shape), self.shape)
        return numpy_view(tvm_ffi.get_global_func("distir.runtime.cut_shard")(shard))
