"""Computes operators that TVM has no kernel for by other operators.

Some operators are only computed inside others, dropped in passes of their own, or left to
libraries.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.relax import op as R
from tvm.relax.op import nn

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def _shape(value: relax.Expr) -> list[int]:
    return [int(size) for size in value.ty.shape]


def _packed_attention(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A bias keeps positions of different sequences apart."""
    query, key, value, starts = call.args[:4]
    length = _shape(query)[1]
    sequences = builder.emit(R.bucketize(R.arange(length, dtype="int32"), starts, right=True))
    same = R.equal(R.expand_dims(sequences, 1), R.expand_dims(sequences, 0))
    zero, far = (relax.const(x, "float32") for x in (0, -1e9))
    bias = builder.emit(R.reshape(R.where(same, zero, far), (1, 1, length, length)))
    return nn.attention(query, key, value, bias)


def _pixel_shuffle(_: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    times = int(call.attrs.upscale_factor)
    *batch, channels, height, width = _shape(call.args[0])
    rank = len(batch)
    split = R.reshape(call.args[0], (*batch, channels // times**2, times, times, height, width))
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    merged = (*batch, channels // times**2, height * times, width * times)
    return R.reshape(R.permute_dims(split, order), merged)


LEGALIZATIONS: dict[str, Legalization] = {
    "relax.ewise_fma": lambda _, call: R.add(R.multiply(*call.args[:2]), call.args[2]),
    "relax.builtin.stop_lift_params": lambda _, call: call.args[0],
    "relax.hint_on_device": lambda _, call: call.args[0],
    "relax.to_vdevice": lambda _, call: call.args[0],
    "relax.nn.attention_var_len": _packed_attention,
    "relax.nn.pixel_shuffle": _pixel_shuffle,
}
