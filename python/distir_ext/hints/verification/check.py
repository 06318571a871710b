"""Verifies hints for a model: results and communication, sharded and unsharded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from rich.table import Table

from distir_ext.compile.entry import build, lower
from distir_ext.hints.application import apply
from distir_ext.hints.detection import detect
from distir_ext.hints.verification.expected import (
    as_text,
    communicated,
    is_expected,
    textbook,
)
from distir_ext.hints.verification.models import Program
from distir_ext.hints.vocabulary import DistConfig, Hints
from distir_ext.session.session import Session
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.printable import message_text, shown
from distir_ext.text.tables import new_table

TOLERANCE = 1e-5
"""Of the relative RMSE: float32 sums in another order differ by some 1e-6, a wrong shard by 1."""

CONFIGS: dict[str, DistConfig] = {
    "tp-only": DistConfig(world_size=2),
    "ep-only": DistConfig(world_size=2, moe_ep_size=2),
    "tep": DistConfig(world_size=4, moe_ep_size=2),
    "attn-dp": DistConfig(world_size=4, moe_ep_size=4, enable_attention_dp=True),
}
"""By the name that commands take."""

PASS, FAIL, SKIP = "pass", "FAIL", "skip"


@dataclass(frozen=True)
class Outcome:
    """Result for one model under one configuration.

    Attributes:
        model: Its name.
        config: The name of the configuration.
        status: ``"pass"``, ``"FAIL"`` or ``"skip"``.
        why: Reason why it failed or was skipped.
        rel_rmse: Root mean square error over that of PyTorch's result; None if it did not run.
        tolerance: Upper bound of the error.
        communicated: The communication of the program, in words.
        textbook: The communication that is expected.
        line: The summary line of the applied hints.
    """

    model: str
    config: str
    status: str
    why: str = ""
    rel_rmse: float | None = None
    tolerance: float = TOLERANCE
    communicated: str = ""
    textbook: str = ""
    line: str = ""


def verify(
    model: str,
    program: Program,
    config: str,
    hints: Hints | None = None,
    change: Callable[[tvm.IRModule], tvm.IRModule] = lambda lowered: lowered,
    target: Any = "llvm",
    tolerance: float = TOLERANCE,
    devices: int | None = None,
) -> Outcome:
    """Shards a model, runs it on CPU workers, and compares.

    Args:
        model: Its name, for the outcome.
        program: The model.
        config: A key of :data:`CONFIGS`.
        hints: Its layers; None: as they are detected.
        change: Applied to the lowered module, to see that what is wrong fails.
        target: Target of compilation, as :func:`distir_ext.build` takes it.
        tolerance: Upper bound of the relative RMSE.
        devices: Number of devices; None: as many as :data:`CONFIGS` has.

    Raises:
        ValueError: There is no such configuration; or a hint contradicts the model.
    """
    if config not in CONFIGS:
        raise ValueError(
            f"there is no configuration {config!r}, only {', '.join(CONFIGS)}"
            f"{did_you_mean(config, CONFIGS)}"
        )
    dist = CONFIGS[config] if devices is None else configuration_of(config, devices)
    hints = detect(program.mod) if hints is None else hints
    unsupported = _unsupported(hints, config)
    if unsupported:
        return Outcome(model, config, SKIP, unsupported)
    hinted = apply(program.mod, dist, hints)
    lowered = change(lower(hinted.mod))
    found, wanted = communicated(lowered), textbook(program.mod, hinted.report, dist)
    executable = build(lowered, target)
    with Session(hinted.mesh) as session:
        loaded = session.load(executable, params=hinted.params(program.weights))
        result = loaded(**program.inputs)
        actual = np.asarray((result[0] if isinstance(result, tuple | list) else result).numpy())
    error = _relative_rmse(actual, program.expected)
    failures = [] if error < tolerance else [f"rel_rmse {error:.1e} is not below {tolerance:.0e}"]
    if not is_expected(found, wanted):
        failures.append("the communication is not the textbook's")
    return Outcome(
        model,
        config,
        FAIL if failures else PASS,
        "; ".join(failures),
        error,
        tolerance,
        as_text(found),
        as_text(wanted),
        hinted.report.log_line(),
    )


def configuration_of(config: str, devices: int) -> DistConfig:
    """A configuration of a number of devices.

    Raises:
        ValueError: There can be none of so many.
    """
    pairs = 2 if devices % 2 == 0 else devices
    return {
        "tp-only": DistConfig(world_size=devices),
        "ep-only": DistConfig(world_size=devices, moe_ep_size=devices),
        "tep": DistConfig(world_size=devices, moe_ep_size=pairs),
        "attn-dp": DistConfig(world_size=devices, moe_ep_size=devices, enable_attention_dp=True),
    }[config]


def outcome_line(outcome: Outcome) -> str:
    """Formats an outcome as a line that programs can read: ``rel_rmse=<x> (tol=<y>)``."""
    head = f"{shown(outcome.model)} {outcome.config}: {outcome.status}"
    if outcome.rel_rmse is None:
        return f"{head}, {message_text(outcome.why)}"
    return f"{head}, rel_rmse={outcome.rel_rmse:.1e} (tol={outcome.tolerance:.0e})"


def _unsupported(hints: Hints, config: str) -> str:
    """Returns the reason why a model does not support the configuration; empty if it does."""
    has_experts = any(layer.layer_type == "moe" for layer in hints.layers.values())
    if config == "ep-only" and not has_experts:
        return "the model has no experts"
    return ""


def _relative_rmse(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    difference = np.sqrt(np.mean((actual.astype(np.float64) - expected) ** 2))
    return float(difference / np.sqrt(np.mean(expected.astype(np.float64) ** 2)))


def outcome_table(outcomes: list[Outcome]) -> Table:
    """The matrix of models and configurations."""
    columns = ("model", "config", "status", "rel_rmse", "tol", "communicated", "textbook", "why")
    table = new_table("hints", *columns, texts=len(columns))
    for each in outcomes:
        has_run = each.rel_rmse is not None
        table.add_row(
            each.model,
            each.config,
            each.status,
            f"{each.rel_rmse:.1e}" if has_run else "",
            f"{each.tolerance:.0e}" if has_run else "",
            each.communicated,
            "same" if has_run and each.communicated == each.textbook else each.textbook,
            each.why,
        )
    return table
