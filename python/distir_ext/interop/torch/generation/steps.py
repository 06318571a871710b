"""Exports a model's ``forward`` as a step that takes and returns caches as tensors.

While a step is exported, the model's ``forward`` is one that takes new tokens, where they are, and
the caches, and returns the logits after the last token and the caches. So modules and parameters
keep the names that the model has, and plans for it fit.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from distir_ext.interop.torch.export import as_exports_need, is_from_transformers
from distir_ext.interop.torch.generation.caches import (
    CacheTensor,
    as_cache,
    cache_of,
    find_tensors,
    held_by,
    recording_cache,
)
from distir_ext.interop.torch.generation.masks import masks_of_slots
from distir_ext.interop.torch.generation.settings import Generation

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """Inputs and results of the steps of a model."""

    model: torch.nn.Module
    generation: Generation
    batch: int

    tensors: list[CacheTensor]
    """The caches, in the order in which steps take and return them."""

    like: Any
    """A cache as the model itself makes it."""

    encoder: Tensors
    """What the encoder takes, by name; empty for models without one."""

    encoded: torch.Tensor | None
    """Shape and type of what the encoder returns."""

    cache_name: str
    """Name of the argument of ``forward`` that is the cache."""

    @property
    def names(self) -> list[str]:
        """The arguments of ``forward``."""
        return list(inspect.signature(type(self.model).forward).parameters)

    @property
    def takes_positions(self) -> bool:
        """Returns whether positions of tokens are an input."""
        return self.positions_name in self.names

    @property
    def positions_name(self) -> str:
        """Name of the argument for positions of tokens."""
        return "decoder_position_ids" if self.encoder else "position_ids"

    @property
    def has_slots(self) -> bool:
        """Returns whether a cache has positions."""
        return any(each.kind in ("full", "window") for each in self.tensors)

    @property
    def encoder_mask(self) -> str | None:
        """Name of the mask of what the encoder takes; None if it has none."""
        return "attention_mask" if "attention_mask" in self.encoder else None

    def inputs_of(self, program: str) -> list[str]:
        """The inputs of ``"prefill"`` or ``"decode"``."""
        return list(self.inputs(1 if program == "decode" else self.generation.chunk_length))

    def inputs(self, length: int) -> Tensors:
        """Example inputs of a step with this many new tokens.

        - ``ids``, ``new``: the tokens, and 0 for those that are padding
        - ``positions``: where they are, without padding
        - ``valid``: 0 for positions of caches that are padding
        - ``start``: how many positions are held
        - ``encoder_mask``: 0 for what is padding among what the encoder took
        """
        new = (self.batch, length)
        found = {"ids": torch.zeros(new, dtype=torch.int64)}
        if self.has_slots:
            slots = self.generation.slots
            found["start"] = torch.zeros(1, dtype=torch.int64)
            found["valid"] = torch.ones(self.batch, slots, dtype=torch.int64)
        if length > 1 and any(each.kind == "state" for each in self.tensors):
            found["new"] = torch.ones(new, dtype=torch.int64)
        if self.takes_positions:
            found["positions"] = torch.zeros(new, dtype=torch.int64)
        if self.encoder_mask:
            found["encoder_mask"] = self.encoder["attention_mask"]
        return {**found, **{each.name: each.zeros() for each in self.tensors}}

    def step(self, **given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The logits (batch, vocabulary) after the last of the new tokens, and the caches."""
        start = given.get("start", torch.zeros(1, dtype=torch.int64))
        cache = as_cache(self.tensors, given, self.like, start)
        named: dict[str, Any] = {self.cache_name: cache, "use_cache": True, "return_dict": True}
        new = given.get("new")
        if new is None and self.has_slots:
            new = torch.ones_like(given["ids"])
        if "positions" in given:
            named[self.positions_name] = given["positions"]
        if self.encoder:
            assert self.encoded is not None
            encoded = torch.zeros(self.encoded.shape, dtype=self.encoded.dtype)
            named["decoder_input_ids"] = given["ids"]
            named["encoder_outputs"] = (encoded,)
            if self.encoder_mask:
                named["attention_mask"] = given["encoder_mask"]
        else:
            named["input_ids"] = given["ids"]
            named["attention_mask"] = new
        if "logits_to_keep" in self.names:
            named["logits_to_keep"] = 1
        with masks_of_slots(given.get("valid")):
            outputs = type(self.model).forward(self.model, **named)
        return (outputs.logits[:, -1], *held_by(cache, self.kept))

    @property
    def kept(self) -> list[CacheTensor]:
        """The caches that a step changes."""
        return [each for each in self.tensors if each.kind != "crossed"]

    def zeros(self) -> Tensors:
        """Inputs of the program that gives empty caches: a zero for each, by name."""
        return {
            each.name: torch.zeros((1,) * len(each.shape), dtype=each.dtype) for each in self.kept
        }

    @property
    def crossed(self) -> list[CacheTensor]:
        """The caches that the encoder's program gives."""
        return [each for each in self.tensors if each.kind == "crossed"]

    def encode(self, **given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keys and values of what the encoder takes, for the decoder's layers."""
        cache = recording_cache(self.like)
        _first_step(self.model, {**given, self.cache_name: cache}, self.batch, 1)
        return held_by(cache, self.crossed)


def find_layout(model: Any, generation: Generation, example_inputs: Any) -> Layout:
    """Finds what the steps of a model take.

    Args:
        model: Of transformers, in evaluation mode.
        generation: The sizes.
        example_inputs: Inputs of ``forward`` by name, or the first one; None for tokens.

    Raises:
        TypeError: The model is not one of transformers.
        ValueError: The model does not generate, or keeps what cannot stay on workers.
    """
    name = type(model).__name__
    if not is_from_transformers(model):
        raise TypeError(f"{name} is not a model of transformers; generation= is for those")
    if not getattr(model, "can_generate", bool)():
        raise ValueError(
            f"{name} does not generate; a class with a head, such as those of "
            "transformers.AutoModelForCausalLM, does"
        )
    names = list(inspect.signature(type(model).forward).parameters)
    cache_name = next(
        (each for each in ("cache", "past_key_values", "cache_params") if each in names), None
    )
    if cache_name is None:
        raise ValueError(f"{name} takes no cache in forward, so that its tokens cannot be kept")
    given = _example(model, example_inputs)
    first = given.get(model.main_input_name)
    batch = generation.batch or (1 if first is None else first.shape[0])
    encoder = _encoder_inputs(model, generation, given, batch)
    tokens = encoder or {"input_ids": torch.zeros(batch, 2, dtype=torch.int64)}
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.no_grad(), as_exports_need(model):
        faked = {key: fake.from_tensor(value) for key, value in tokens.items()}
        outputs = _first_step(model, faked, batch, 2)
    cache = cache_of(outputs)
    if cache is None:
        raise ValueError(f"{name} returns no cache, so that its tokens cannot be kept")
    encoded = getattr(outputs, "encoder_last_hidden_state", None)
    return Layout(
        model,
        generation,
        batch,
        find_tensors(cache, generation, name),
        cache,
        encoder,
        encoded,
        cache_name,
    )


def _first_step(model: Any, given: Mapping[str, Any], batch: int, length: int) -> Any:
    named = dict(given)
    if model.config.is_encoder_decoder:
        named["decoder_input_ids"] = torch.zeros(batch, length, dtype=torch.int64)
    return type(model).forward(model, **named, use_cache=True, return_dict=True)


def _example(model: Any, example_inputs: Any) -> Mapping[str, Any]:
    if example_inputs is None:
        return {}
    if isinstance(example_inputs, Mapping):
        return example_inputs
    first = example_inputs
    if isinstance(first, Sequence) and not isinstance(first, str):
        first = first[0]
    if not isinstance(first, torch.Tensor):
        raise TypeError(
            "example inputs are None, a tensor, several in order, or tensors by name, not "
            f"{type(example_inputs).__name__}"
        )
    return {model.main_input_name: first}


def _encoder_inputs(
    model: Any, generation: Generation, given: Mapping[str, Any], batch: int
) -> Tensors:
    """Inputs of the encoder of a model."""
    if not model.config.is_encoder_decoder:
        return {}
    main = model.main_input_name
    if main == "input_ids":
        found = given.get(main)
        length = generation.encoder_length or (
            generation.max_length if found is None else found.shape[1]
        )
        shape = (batch, length)
        return {
            main: torch.zeros(shape, dtype=torch.int64),
            "attention_mask": torch.ones(shape, dtype=torch.int64),
        }
    if main not in given:
        raise ValueError(
            f"the encoder of {type(model).__name__} takes {main!r}, the shape of which an example "
            "input says"
        )
    example = given[main]
    return {main: torch.zeros(batch, *example.shape[1:], dtype=example.dtype)}


@contextlib.contextmanager
def forward_is(
    model: torch.nn.Module, function: Callable[..., Any], names: Sequence[str]
) -> Iterator[None]:
    """Replaces a model's ``forward`` by a function of named inputs, until the block ends."""

    def forward(**given: Any) -> Any:
        return function(**given)

    parameters = [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in names]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    vars(model)["forward"] = forward
    try:
        yield
    finally:
        del vars(model)["forward"]
