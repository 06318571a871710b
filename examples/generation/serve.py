"""Greedy generation, by the unpartitioned program and on the workers of a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.analysis import Collective
from distir_ext.demo.case import normal_weights
from generation.llama import SHARDING, LlamaConfig, export

SEED = 1

Tokens = npt.NDArray[np.int64]
# Runs "prefill" and "decode": inputs to the next token and the caches.
Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Task:
    """A module, its weights and what to generate from."""

    module: tvm.IRModule
    weights: Mapping[str, npt.NDArray[Any]]
    prompt: Tokens
    """int64 (batch, prompt length)."""


@dataclass(frozen=True)
class Outcome:
    """Generated tokens, and the time they took."""

    tokens: Tokens
    """int64 (batch, tokens)."""

    prefill_seconds: float
    """From the prompt to the first token."""

    decode_seconds: float
    """All further tokens."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all sequences that decoding gives in a second."""
        batch, count = self.tokens.shape
        return batch * (count - 1) / self.decode_seconds if count > 1 else float("nan")


def random_task(config: LlamaConfig, batch: int, length: int) -> Task:
    """Random weights and a random prompt."""
    module, shapes = export(config, batch)
    generator = np.random.default_rng(SEED)
    weights = normal_weights(shapes, generator)
    return Task(module, weights, generator.integers(0, config.vocabulary, (batch, length)))


def greedy(functions: Functions, prompt: Tokens, count: int) -> Outcome:
    """Generates ``count`` tokens after each prompt; only tokens are brought to the host."""
    begin = time.perf_counter()
    length = prompt.shape[1]
    token, caches = functions["prefill"](prompt, np.arange(length, dtype="float32"))
    tokens = [token.numpy()]
    filled = time.perf_counter()
    for position in range(length, length + count - 1):
        token, caches = functions["decode"](token, np.full(1, position, "float32"), caches)
        tokens.append(token.numpy())
    return Outcome(np.hstack(tokens), filled - begin, time.perf_counter() - filled)


def run_unpartitioned(task: Task, count: int) -> Outcome:
    """The module as it was written, compiled and run by TVM alone."""
    machine = relax.VirtualMachine(tvm.compile(task.module, "llvm"), tvm.cpu())
    weights = [tvm.runtime.tensor(value) for value in task.weights.values()]

    def function(name: str) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            tensors = [tvm.runtime.tensor(x) if isinstance(x, np.ndarray) else x for x in inputs]
            return machine[name](*tensors, *weights)

        return call

    return greedy({name: function(name) for name in ("prefill", "decode")}, task.prompt, count)


def partition(task: Task, mesh: dx.Mesh) -> tuple[Any, tuple[Collective, ...]]:
    """An executable for a mesh with the axes dp and tp, and what its functions communicate."""
    annotated = task.module
    for name in ("prefill", "decode"):
        annotated = dx.annotate(annotated, mesh, SHARDING, func=name)
    lowered = dx.lower(annotated)
    return dx.build(lowered), tuple(dx.analysis.collectives(lowered))


def run_partitioned(executable: Any, task: Task, mesh: dx.Mesh, count: int) -> Outcome:
    """An executable of :func:`partition`, on the workers of its mesh."""
    with dx.Session(mesh) as session:
        model = session.load(executable, params=task.weights)
        return greedy(model, task.prompt, count)
