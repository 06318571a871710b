"""Runs models of transformers, torch and ONNX on CPU workers, sharded by name patterns.

Every model is randomly initialised, small, and as its library builds it. It is imported by TVM's
frontends, sharded by plans on the names of its parameters, run, and compared with torch (for the
ONNX model, with ONNX's reference evaluator). Needs the extra "torch": pip install distir-ext[torch]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.case import BATCH, DATA_TENSOR, FULLY_SHARDED, TENSOR, Model
from models.run import LIMIT, Outcome, run


def made_by(module: str, name: str) -> Callable[..., Model]:
    """The function of a module under ``models``, imported when it is called.

    So no model needs the libraries of another.
    """

    def make(batch: int = BATCH) -> Model:
        model: Model = getattr(importlib.import_module(f"models.{module}"), name)(batch)
        return model

    return make


MODELS: Mapping[str, Callable[..., Model]] = {
    "llama": made_by("language", "llama"),
    "gpt2": made_by("language", "gpt2"),
    "mixtral": made_by("language", "mixtral"),
    "mamba2": made_by("language", "mamba2"),
    "vision": made_by("vision", "vision"),
    "encoder": made_by("encoder", "encoder"),
}
PLANS = (TENSOR, DATA_TENSOR, FULLY_SHARDED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 0 if every result is right, else 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", choices=MODELS, help="only this; repeatable")
    parser.add_argument("--plan", action="append", choices=PLANS, help="only this; repeatable")
    parser.add_argument("--workers", type=int, default=4, help="CPU workers (4); any number")
    options = parser.parse_args(arguments)
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: there has to be one at least")
    # torch warns of its own deprecated parts while it exports.
    warnings.filterwarnings("ignore", category=FutureWarning)
    console = Console()
    outcomes, failures = run_all(
        options.model or list(MODELS), options.plan or PLANS, options.workers, console
    )
    console.print(table(outcomes))
    failures += [
        f"{model}, {plan}: relative RMSE {outcome.error:.2e} is not below {LIMIT:.0e}"
        for (model, plan), outcome in outcomes.items()
        if not outcome.correct
    ]
    for failure in failures:
        console.print(failure, style="bold red", markup=False)
    return 1 if failures else 0


def run_all(
    models: Sequence[str], plans: Sequence[str], workers: int, console: Console
) -> tuple[dict[tuple[str, str], Outcome], list[str]]:
    """The outcome of each model under each plan, and what did not run at all."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    failures = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        SpinnerColumn(), *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=len(models) * len(plans))
        for name in models:
            progress.update(task, description=f"{name}: export")
            try:
                model = MODELS[name](max(BATCH, workers))  # rows for all
            except ModuleNotFoundError as error:
                failures.append(f"{name}: {error}; pip install distir-ext[torch] brings it")
                progress.advance(task, len(plans))
                continue
            for plan in plans:

                def step(text: str, at: str = f"{name}, {plan}") -> None:
                    progress.update(task, description=f"{at}: {text}")

                try:
                    outcomes[name, plan] = run(model, plan, step, workers)
                except Exception as error:
                    failures.append(f"{name}, {plan}: {error}")
                progress.advance(task)
    return outcomes, failures


def table(outcomes: Mapping[tuple[str, str], Outcome]) -> Table:
    """Errors, collectives and bytes of all runs."""
    result = Table(
        "model", "plan", "error", "collectives", "bytes", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in (*result.columns[:3], result.columns[-1]):
        column.no_wrap = True
    result.columns[-1].justify = "right"
    result.caption = "error: relative RMSE; bytes: sent by one device in one step"
    for (model, plan), outcome in outcomes.items():
        kinds: Counter[str] = Counter()
        for each in outcome.collectives:
            kinds[each.kind] += each.count
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
        result.add_row(model, plan, f"{outcome.error:.1e}", listed, f"{outcome.bytes_per_device:,}")
    return result


if __name__ == "__main__":
    sys.exit(main())
