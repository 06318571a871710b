"""Runs ``generate`` of transformers with a ``forward`` that a session's workers compute.

All that chooses tokens is transformers': sampling, stop tokens, processors of logits, streamers.
A copy of the model, with the same weights and configuration, has ``forward`` and the encoder
replaced; caches stay on the workers, and logits of the last position come back.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from distir_ext.interop.torch.generation.report import GenerationReport
from distir_ext.interop.torch.generation.shardings import EMPTY
from distir_ext.interop.torch.generation.steps import Layout
from distir_ext.interop.torch.generation.worker_cache import WorkerCache
from distir_ext.session.model import Model
from distir_ext.session.session import Session
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.progress import counting_bar


class Generator:
    """A model on the workers of a session, which generates.

    Attributes:
        report: Times and memory of the last call of :meth:`generate`; None before it.
    """

    def __init__(self, layout: Layout, loaded: Model, cache_bytes_per_device: int) -> None:
        self.report: GenerationReport | None = None
        self._layout = layout
        self._loaded = loaded
        self._bytes_per_device = cache_bytes_per_device
        self._session: Session | None = None
        self._times = _Times()

    def owning(self, session: Session) -> Generator:
        """This generator, which closes a session with itself."""
        self._session = session
        return self

    def close(self) -> None:
        """Ends the session that belongs to it, if any."""
        if self._session is not None:
            self._session.close()

    @short_tracebacks
    def generate(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        *,
        seed: int | None = None,
        progress: bool = True,
        **options: Any,
    ) -> Any:
        """Generates tokens, as ``model.generate`` of transformers.

        Args:
            input_ids: int64 (sequences, tokens): the prompts, padded on the left, or what the
                encoder takes. Models whose input has another name take it by that name, such as
                ``input_features``.
            attention_mask: int64 (sequences, tokens): 0 for padding.
            seed: Of what is sampled; the random state of torch stays as it is then. None for that
                state.
            progress: Whether a bar is shown on a terminal, if it takes long.
            **options: Arguments of ``model.generate``: ``max_new_tokens``, ``do_sample``,
                ``temperature``, ``top_k``, ``top_p``, ``eos_token_id``, ``pad_token_id``,
                ``streamer``, ``logits_processor`` and so on. Those that are not given are of the
                model's ``generation_config``.

        Returns:
            As ``model.generate``: int64 (sequences, prompt and new tokens), without the prompt for
            models with an encoder.

        Raises:
            TypeError: Inputs are missing.
            ValueError: Prompts and new tokens are more than the caches hold; beams, assistants, or
                arguments that ``model.generate`` does not have.
            WorkerError: A worker failed.
            RuntimeError: The session is closed.
        """
        layout = self._layout
        model: Any = layout.model
        given = dict(options)
        main = model.main_input_name
        if input_ids is not None:
            given[main if main not in given else "input_ids"] = _tensor(input_ids, main)
        if main not in given:
            raise TypeError(f"generate() takes {main}")
        if attention_mask is not None:
            given["attention_mask"] = _tensor(attention_mask, "attention_mask")
        first = given[main]
        if first.ndim < 2 or 0 in first.shape:
            raise ValueError(
                f"{main} has the shape {tuple(first.shape)}; it is (sequences, tokens), and none "
                "of them 0"
            )
        steps = self._check_lengths(given, 1 if layout.encoder else first.shape[1])
        cache = WorkerCache()
        given[layout.cache_name] = cache
        given["use_cache"] = True
        self._times = times = _Times()
        begin = time.perf_counter()
        with contextlib.ExitStack() as stack:
            if seed is not None:
                stack.enter_context(torch.random.fork_rng(devices=[]))
                torch.manual_seed(seed)
            if progress and steps:
                times.advance = stack.enter_context(counting_bar("generating", steps))
            stack.enter_context(torch.no_grad())
            result = self._copy().generate(**given)
        rows = cache.valid.shape[0]
        self.report = GenerationReport(
            rows,
            rows * times.prompt,
            rows * times.steps,
            times.prefill,
            times.decode,
            time.perf_counter() - begin,
            len(cache.groups) * sum(each.bytes for each in layout.tensors),
            len(cache.groups) * self._bytes_per_device,
        )
        return result

    def _check_lengths(self, given: Mapping[str, Any], prompt: int) -> int | None:
        """Checks that caches hold what is asked for; returns the most new tokens, if known."""
        model: Any = self._layout.model
        config = given.get("generation_config") or model.generation_config

        def asked(name: str) -> Any:
            return given.get(name, getattr(config, name, None))

        for name in ("num_beams", "num_beam_groups"):
            if (asked(name) or 1) > 1:
                raise ValueError(
                    f"{name}={asked(name)}: beam search is not possible, as caches on workers are "
                    "not reordered"
                )
        limit = self._layout.generation.max_length
        if prompt > limit:
            raise ValueError(
                f"a prompt of {prompt} tokens is longer than the caches, which hold {limit}: "
                "Generation(max_length=...) says how many"
            )
        new = asked("max_new_tokens")
        if new is None:
            total = asked("max_length")
            new = None if total is None else total - prompt
        # The last token is returned, and not cached.
        if new is not None and prompt + new - 1 > limit:
            raise ValueError(
                f"a prompt of {prompt} tokens and {new} new ones are more than the caches hold, "
                f"which is {limit}: Generation(max_length=...) says how many"
            )
        return None if new is None else int(new)

    def _copy(self) -> Any:
        """A model of the same configuration whose ``forward`` the workers compute."""
        model: Any = self._layout.model
        replaced = copy.copy(model)

        def forward(**given: Any) -> ModelOutput:
            return self._forward(given)

        signature = inspect.signature(type(model).forward)
        own = list(signature.parameters.values())[1:]
        forward.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        vars(replaced)["forward"] = forward
        if self._layout.encoder:
            vars(replaced)["get_encoder"] = lambda *_, **__: _Unencoded()
        return replaced

    def _forward(self, given: Mapping[str, Any]) -> ModelOutput:
        cache = given[self._layout.cache_name]
        ids = given["decoder_input_ids" if self._layout.encoder else "input_ids"]
        begin = time.perf_counter()
        is_first = not cache.groups
        if is_first:
            self._start(cache, ids.shape[0], given)
        mask_name = "decoder_attention_mask" if self._layout.encoder else "attention_mask"
        mask = given.get(mask_name)
        count = ids.shape[1]
        new = torch.ones_like(ids) if mask is None else mask[:, -count:].to(torch.int64)
        positions = given.get(self._layout.positions_name)
        if positions is None:
            positions = cache.seen + torch.arange(count).expand(ids.shape)
        logits = self._feed(cache, ids, new, positions.expand(ids.shape))
        cache.seen += count
        self._times.add(time.perf_counter() - begin, count, is_first)
        return ModelOutput(logits=logits[:, None], **{self._layout.cache_name: cache})

    def _start(self, cache: WorkerCache, rows: int, given: Mapping[str, Any]) -> None:
        """Makes caches for so many sequences on the workers, and encodes what an encoder takes."""
        layout = self._layout
        cache.valid = torch.zeros(rows, layout.generation.slots, dtype=torch.int64)
        encoded: list[dict[str, Any]] = []
        if layout.encoder:
            taken = given["encoder_outputs"][0]
            inputs, mask = self._encoder_inputs(taken, given.get("attention_mask"))
            cache.encoder_mask = mask
            for group in self._groups(rows):
                parts = {name: self._rows(value, group) for name, value in inputs.items()}
                found = self._loaded["encode"](**parts)
                encoded.append(dict(zip((c.name for c in layout.crossed), found, strict=True)))
        for index, _ in enumerate(self._groups(rows)):
            arrays = self._loaded[EMPTY](**layout.zeros())
            named = dict(zip((each.name for each in layout.kept), arrays, strict=True))
            cache.groups.append({**named, **(encoded[index] if encoded else {})})

    def _encoder_inputs(
        self, taken: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Inputs of the encoder, of the length that it was exported for."""
        layout = self._layout
        name = layout.model.main_input_name
        shape = tuple(layout.encoder[str(name)].shape[1:])
        if layout.encoder_mask is None:
            if tuple(taken.shape[1:]) != shape:
                raise ValueError(
                    f"{name} has the shape {tuple(taken.shape)}; the encoder was exported for "
                    f"{shape} of each sequence"
                )
            return {str(name): taken.to(layout.encoder[str(name)].dtype)}, None
        missing = shape[0] - taken.shape[1]
        if missing < 0:
            raise ValueError(
                f"{taken.shape[1]} tokens are more than the encoder takes, which is {shape[0]}: "
                "Generation(encoder_length=...) says how many"
            )
        mask = torch.ones_like(taken) if mask is None else mask.to(torch.int64)
        pad = torch.nn.functional.pad
        mask = pad(mask, (0, missing))
        return {str(name): pad(taken, (0, missing)), "attention_mask": mask}, mask

    def _feed(
        self,
        cache: WorkerCache,
        ids: torch.Tensor,
        new: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """The logits (sequences, vocabulary) after tokens, which workers append to the caches."""
        chunk = self._layout.generation.chunk_length
        count = ids.shape[1]
        if count == 1 or cache.held % chunk or chunk == 1:
            logits = ids.new_zeros(0)
            for each in range(count):
                at = slice(each, each + 1)
                logits = self._call("decode", cache, ids[:, at], new[:, at], positions[:, at])
            return logits
        padding = -count % chunk
        ids, new, positions = (
            torch.nn.functional.pad(each, (padding, 0)) for each in (ids, new, positions)
        )
        logits = ids.new_zeros(0)
        for begin in range(0, ids.shape[1], chunk):
            at = slice(begin, begin + chunk)
            logits = self._call("prefill", cache, ids[:, at], new[:, at], positions[:, at])
        return logits

    def _call(
        self,
        program: str,
        cache: WorkerCache,
        ids: torch.Tensor,
        new: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        layout, count = self._layout, ids.shape[1]
        if layout.has_slots and cache.held + count > layout.generation.slots:
            raise ValueError(
                f"the caches are full: they hold {layout.generation.max_length} tokens; "
                "Generation(max_length=...) says how many"
            )
        cache.valid[:, cache.held : cache.held + count] = new
        whole = {
            "ids": ids,
            "new": new,
            "positions": positions,
            "valid": cache.valid,
            "encoder_mask": cache.encoder_mask,
        }
        wanted = layout.inputs_of(program)
        logits = []
        for index, group in enumerate(self._groups(ids.shape[0])):
            named: dict[str, Any] = {
                name: self._rows(value, group)
                for name, value in whole.items()
                if name in wanted and value is not None
            }
            if "start" in wanted:
                named["start"] = torch.full((1,), cache.held)
            named.update(cache.groups[index])
            first, *arrays = self._loaded[program](**named)
            kept = dict(zip((each.name for each in layout.kept), arrays, strict=True))
            cache.groups[index] = {**cache.groups[index], **kept}
            logits.append(torch.from_dlpack(first)[: group.stop - group.start])
        cache.held += count
        return torch.cat(logits)

    def _groups(self, rows: int) -> Iterator[slice]:
        batch = self._layout.batch
        for begin in range(0, rows, batch):
            yield slice(begin, min(begin + batch, rows))

    def _rows(self, value: torch.Tensor, group: slice) -> torch.Tensor:
        """The rows of a group, and as many zeros as it lacks."""
        missing = self._layout.batch - (group.stop - group.start)
        rows = value[group]
        if missing:
            rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
        return rows.contiguous()


class _Times:
    """Times of one call of ``generate``."""

    def __init__(self) -> None:
        self.prefill = self.decode = 0.0
        self.prompt = self.steps = 0
        self.advance: Any = None

    def add(self, seconds: float, tokens: int, is_first: bool) -> None:
        """Counts a step."""
        if is_first:
            self.prefill += seconds
            self.prompt = tokens
        else:
            self.decode += seconds
        self.steps += 1
        if self.advance is not None:
            self.advance()


class _Unencoded(torch.nn.Module):
    """An encoder that returns what it takes: workers encode it, once there are caches."""

    def forward(self, *given: Any, **named: Any) -> BaseModelOutput:
        """The first of what is given that is a batch of inputs."""
        for name in ("input_ids", "input_features", "input_values", "inputs"):
            if name in named:
                return BaseModelOutput(last_hidden_state=named[name])
        return BaseModelOutput(last_hidden_state=given[0])


def _tensor(value: Any, name: str) -> torch.Tensor:
    """A tensor of what a user gives.

    Raises:
        TypeError: It is none.
    """
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} is a {type(value).__name__}, not a tensor of tokens") from error
