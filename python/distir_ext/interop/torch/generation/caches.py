"""Describes the caches of a transformers model as tensors that each step reads and writes.

A model asks its cache for keys and values, for states of convolutions and recurrences, and for the
positions that masks are computed of. Here all of these are tensors that a step takes and returns,
of sizes that stay:

    keys, values    (batch, heads, slots, size)     written in place from `start` on
    window          the same with fewer slots       position p is in slot p % slots
    states          as the model has them           replaced
    crossed         (batch, heads, encoder, size)   of an encoder, only read
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils

from distir_ext.interop.torch.cache_writes import write
from distir_ext.interop.torch.generation.settings import Generation

HEADS = 1
"""Dimension of the heads of keys and values, and of most states."""


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a cache."""

    name: str
    """Of the input and of the result, such as ``layer_0_keys``."""

    kind: str
    """``"full"``, ``"window"``, ``"state"`` or ``"crossed"``."""

    layer: int
    """The layer."""

    role: str
    """``"keys"``, ``"values"``, ``"conv"`` or ``"recurrent"``, the last two with a number."""

    shape: tuple[int, ...]
    """The whole shape; the first dimension is the batch."""

    dtype: torch.dtype
    """The type of elements."""

    @property
    def bytes(self) -> int:
        """Size on all devices together, without what is replicated."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def zeros(self) -> torch.Tensor:
        """The tensor before the first token."""
        return torch.zeros(self.shape, dtype=self.dtype)


def cache_of(outputs: Any) -> Any:
    """The cache that a model of transformers returned; None if there is none."""
    for name in ("cache", "past_key_values", "cache_params"):
        if (found := getattr(outputs, name, None)) is not None:
            return found
    return None


def find_tensors(cache: Any, generation: Generation, model: str) -> list[CacheTensor]:
    """The tensors of a cache that a model has filled with a few tokens.

    Args:
        cache: The cache of transformers.
        generation: The sizes.
        model: Name of the model's class, for messages.

    Raises:
        ValueError: A layer is of a kind that cannot be kept on workers; names it.
    """
    if isinstance(cache, cache_utils.EncoderDecoderCache):
        crossed = _layers(cache.cross_attention_cache, generation, model, "crossed_")
        return [*_layers(cache.self_attention_cache, generation, model, ""), *crossed]
    if not isinstance(cache, cache_utils.Cache):
        raise ValueError(
            f"{model} keeps a {type(cache).__name__}, which is not a cache of transformers"
        )
    return list(_layers(cache, generation, model, ""))


def _layers(cache: Any, generation: Generation, model: str, prefix: str) -> Iterator[CacheTensor]:
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, cache_utils.DummyLayer):
            continue
        known = (*_STATES, *_ATTENTION)
        if type(layer) not in known:
            raise ValueError(
                f"{model} keeps a {type(layer).__name__} in layer {index}; those that can stay on "
                f"workers are {', '.join(each.__name__ for each in known)}"
            )
        name = f"{prefix}layer_{index}"
        if isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
            both = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
            for role, states in both.items():
                for number, state in states.items():
                    if state is not None:
                        yield CacheTensor(
                            f"{name}_{role}_{number}",
                            "state",
                            index,
                            f"{role} {number}",
                            tuple(state.shape),
                            state.dtype,
                        )
        if isinstance(layer, cache_utils.DynamicLayer) and layer.keys is not None:
            kind, slots = _size(layer, generation, prefix)
            for role, held in (("keys", layer.keys), ("values", layer.values)):
                batch, heads, length, size = held.shape
                shape = (batch, heads, slots or length, size)
                yield CacheTensor(f"{name}_{role}", kind, index, role, shape, held.dtype)


def _size(layer: Any, generation: Generation, prefix: str) -> tuple[str, int]:
    """The kind of a layer, and its slots; 0 for as many as it has."""
    if prefix:
        return "crossed", 0
    if isinstance(layer, cache_utils.DynamicSlidingWindowLayer):
        slots = generation.window_slots(int(layer.sliding_window))
        return ("full" if slots == generation.slots else "window"), slots
    return "full", generation.slots


_ATTENTION = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
_STATES = (
    cache_utils.LinearAttentionLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
)


class _Slots(cache_utils.CacheLayerMixin):
    """Keys and values of one layer: those of all positions, or of a window."""

    keys: Any
    values: Any

    def __init__(self, is_window: bool, is_sliding: bool, start: torch.Tensor) -> None:
        super().__init__()
        self.is_sliding = is_sliding
        self.is_initialized = True
        self._is_window = is_window
        self._start = start

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Does nothing: there is all that is needed."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Writes keys and values of new tokens; returns all that are held."""
        at = torch.remainder(self._start, self.keys.shape[2]) if self._is_window else self._start
        self.keys = write(self.keys, key_states, at)
        self.values = write(self.values, value_states, at)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """The slots, and what is added to a slot's number for the position that it holds."""
        slots = self.keys.shape[2]
        numbers = torch.arange(slots)
        if not self._is_window:
            return slots, torch.zeros_like(numbers)
        last = self._start + (query_length - 1)
        return slots, last - torch.remainder(last - numbers, slots) - numbers

    def get_seq_length(self) -> Any:
        """The position of the first new token."""
        return self._start.reshape(())

    def get_max_length(self) -> int:
        """The slots."""
        return int(self.keys.shape[2])


class _States(cache_utils.LinearAttentionLayer):
    """States of convolutions and recurrences of one layer, of which there is always one before."""

    def hold(self, role: str, number: int, state: torch.Tensor) -> None:
        """Holds a state; a step computes on a copy of it."""
        held, initialized = (
            (self.conv_states, self.is_conv_states_initialized)
            if role == "conv"
            else (self.recurrent_states, self.is_recurrent_states_initialized)
        )
        held[number], initialized[number] = state.clone(), True
        self.has_previous_state[number] = True
        if role == "conv":
            self.conv_kernel_size[number] = state.shape[-1]
        self.dtype, self.device = state.dtype, state.device


class _StatesAndSlots(_States, _Slots):
    """States, and keys and values, of one layer."""

    def __init__(
        self, is_window: bool, is_sliding: bool, start: torch.Tensor, number_of_states: int
    ) -> None:
        _Slots.__init__(self, is_window, is_sliding, start)
        _States.__init__(self, number_of_states)  # type: ignore[call-arg]


class _Recorded(cache_utils.CacheLayerMixin):
    """Keys and values of one layer, as the model computes them."""

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        """Does nothing: there is nothing before."""

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Holds keys and values."""
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Those of new tokens alone."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """0: there is nothing before."""
        return 0

    def get_max_length(self) -> int:
        """-1: there is no most."""
        return -1


def recording_cache(like: Any) -> Any:
    """A cache that holds what the first tokens of an encoder-decoder give.

    Args:
        like: The cache that the model itself has made.
    """
    parts = (like.self_attention_cache, like.cross_attention_cache)
    return cache_utils.EncoderDecoderCache(
        *(cache_utils.Cache(layers=[_Recorded() for _ in part.layers]) for part in parts)
    )


def as_cache(
    tensors: Sequence[CacheTensor], values: Mapping[str, torch.Tensor], like: Any, start: Any
) -> Any:
    """A cache of transformers that holds the tensors that a step takes.

    Args:
        tensors: What it holds.
        values: The tensors, by name.
        like: The cache that the model itself has made.
        start: int64 (1,): how many positions are held.
    """
    if not isinstance(like, cache_utils.EncoderDecoderCache):
        return cache_utils.Cache(layers=_filled(tensors, values, like, start))
    own = [each for each in tensors if each.kind != "crossed"]
    crossed = [each for each in tensors if each.kind == "crossed"]
    result = cache_utils.EncoderDecoderCache(
        cache_utils.Cache(layers=_filled(own, values, like.self_attention_cache, start)),
        cache_utils.Cache(layers=_crossed(crossed, values, like.cross_attention_cache)),
    )
    result.is_updated = dict.fromkeys(range(len(result)), True)
    return result


def _filled(
    tensors: Sequence[CacheTensor], values: Mapping[str, torch.Tensor], like: Any, start: Any
) -> list[Any]:
    layers = []
    for index, before in enumerate(like.layers):
        own = [each for each in tensors if each.layer == index]
        states = [each for each in own if each.kind == "state"]
        number = getattr(before, "number_of_states", 1)
        is_sliding = bool(getattr(before, "is_sliding", False))
        is_window = any(each.kind == "window" for each in own)
        layer: Any
        if not own:
            layer = cache_utils.DummyLayer()
        elif not states:
            layer = _Slots(is_window, is_sliding, start)
        elif len(states) == len(own):
            layer = _States(number)
        else:
            layer = _StatesAndSlots(is_window, is_sliding, start, number)
        for each in own:
            if each.kind == "state":
                role, which = each.role.split()
                layer.hold(role, int(which), values[each.name])
            else:
                setattr(layer, each.role, values[each.name])
        layers.append(layer)
    return layers


def _crossed(
    tensors: Sequence[CacheTensor], values: Mapping[str, torch.Tensor], like: Any
) -> list[Any]:
    layers = []
    for index in range(len(like.layers)):
        layer = cache_utils.DynamicLayer()
        for each in tensors:
            if each.layer == index:
                setattr(layer, each.role, values[each.name])
        layer.is_initialized = True
        layers.append(layer)
    return layers


def held_by(cache: Any, tensors: Sequence[CacheTensor]) -> tuple[torch.Tensor, ...]:
    """Tensors that a cache of :func:`as_cache` holds after a step, in the order of the tensors."""
    found = []
    for each in tensors:
        part = cache
        if isinstance(cache, cache_utils.EncoderDecoderCache):
            part = (
                cache.cross_attention_cache
                if each.kind == "crossed"
                else cache.self_attention_cache
            )
        layer = part.layers[each.layer]
        if each.kind == "state":
            role, which = each.role.split()
            states = layer.conv_states if role == "conv" else layer.recurrent_states
            found.append(states[int(which)])
        else:
            found.append(getattr(layer, each.role))
    return tuple(found)
