"""A pipeline: which passes run, in which order, with which options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import tvm
from rich.table import Table

from distir_ext.native import reports
from distir_ext.native.steps import steps_until
from distir_ext.passes import transform
from distir_ext.pipelines.package_passes import CPU_PASSES, OPTIMIZE, SOURCE
from distir_ext.pipelines.registry import PHASES, RegisteredPass, package_passes
from distir_ext.text.display import Shown, tables
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.tables import as_text

# The pass before which those of others run that are given a module of a phase; behind all for "".
_BEFORE = {
    "annotated": "SplitFused",
    "propagated": "LegalizeRedistribute",
    "legalized": "LowerGlobalViewToLocalView",
    "lowered": "LowerCCL",
    "runtime": "",
}

_RUN_ATTR = "distir.passes"
"""Names of passes that a module has behind it and that are not to run again."""


@dataclass(frozen=True)
class PipelinePass:
    """A pass of a pipeline."""

    registered: RegisteredPass
    is_enabled: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those that are stated."""

    stated_in: str = ""
    """The configuration that spoke of it last; empty if none did."""

    @property
    def name(self) -> str:
        """Name in configurations."""
        return self.registered.name

    @property
    def is_step(self) -> bool:
        """True for one of the steps from annotations to programs."""
        return self.registered.is_required or self.name == OPTIMIZE

    def once(self) -> tvm.transform.Pass:
        """The pass, which leaves alone what it has been run on."""

        def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            if self.name in _behind(mod):
                return mod
            mod = self.registered.make(**self.options)(mod)
            return mod.with_attr(_RUN_ATTR, [*_behind(mod), self.name])

        return tvm.transform.module_pass(run, opt_level=0, name=f"Once({self.name})")


class PassPipeline(Shown):
    """The passes that :func:`distir_ext.lower` and :func:`distir_ext.build` run.

    Made by :func:`load`. ``print(pipeline)`` lists them.

    Attributes:
        passes: All of them in order, also those that are not enabled.
    """

    def __init__(self, passes: Sequence[PipelinePass]) -> None:
        self.passes = tuple(passes)

    def __iter__(self) -> Iterator[PipelinePass]:
        return iter(self.passes)

    def __getitem__(self, name: str) -> PipelinePass:
        """The pass of a name.

        Args:
            name: The name of one of ``passes``.

        Raises:
            KeyError: There is none; names the nearest.
        """
        for each in self.passes:
            if each.name == name:
                return each
        names = [each.name for each in self.passes]
        raise KeyError(f"the pipeline has no pass {name!r}{did_you_mean(name, names)}")

    def __str__(self) -> str:
        return as_text([self.table()])

    def table(self) -> Table:
        """The passes in order."""
        (table,) = tables(self)
        return table

    def is_enabled(self, name: str) -> bool:
        """Returns whether a pass of this package runs.

        Args:
            name: The name of a pass.

        Raises:
            KeyError: The pipeline has no such pass; names the nearest.
        """
        return self[name].is_enabled

    def disabled_for_cpus(self) -> frozenset[str]:
        """Passes for CPUs that do not run."""
        return frozenset(name for name in CPU_PASSES if not self.is_enabled(name))

    def optimize(self, defaults: Mapping[str, Any]) -> tvm.transform.Pass | None:
        """OptimizeCollectives, with a target's options where none are stated; None if disabled.

        Args:
            defaults: Options of OptimizeCollectives, by name, for the target.
        """
        stated = self[OPTIMIZE]
        if not stated.is_enabled:
            return None
        return transform.OptimizeCollectives(**{**defaults, **stated.options})

    def report_skipped(self, mod: tvm.IRModule, reached: str) -> None:
        """Reports the passes that a module is too far for.

        Args:
            mod: The module that the pipeline is given.
            reached: Its phase.
        """
        for each in self._between():
            if _is_earlier(each, reached) and each.name not in _behind(mod):
                why = f"the module is {reached} already"
                reports.record(each.name, {}, {"module": {why: 1}}, 0.0)

    def before(self, step: str, reached: str) -> list[tvm.transform.Pass]:
        """Returns the optional passes, and those of others, that run directly before a step.

        Args:
            step: The name of a step; ``""`` for the end.
            reached: The phase of the module that the pipeline is given.
        """
        return [
            each.once()
            for each in self._between()
            if _BEFORE[each.registered.phase] == step and not _is_earlier(each, reached)
        ]

    def _between(self) -> Iterator[PipelinePass]:
        """The enabled passes that run between steps."""
        for each in self.passes:
            if each.is_enabled and not each.is_step and each.name not in CPU_PASSES:
                yield each

    def behind(self, until: str, reached: str) -> list[tvm.transform.Pass]:
        """Returns the passes between a phase that lowering stops at and the next step.

        Args:
            until: The phase; nothing follows the name of a step.
            reached: As for :meth:`before`.
        """
        if until not in PHASES:
            return []
        following = steps_until("runtime")[len(steps_until(until)) :]
        return self.before(following[0].name if following else "", reached)


def _is_earlier(each: PipelinePass, phase: str) -> bool:
    return PHASES.index(each.registered.phase) < PHASES.index(phase)


def _behind(mod: tvm.IRModule) -> list[str]:
    has = mod.attrs is not None and _RUN_ATTR in mod.attrs
    return [str(name) for name in mod.attrs[_RUN_ATTR]] if has else []


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


@cache
def package_pipeline() -> PassPipeline:
    """The passes of this package, as they are enabled by default."""
    every = package_passes().values()
    return PassPipeline([PipelinePass(each, each.is_enabled) for each in every])


def in_order(passes: Sequence[PipelinePass]) -> list[PipelinePass]:
    """Passes of others are put in where they run, in the order in which they are given."""
    others = [each for each in passes if each.registered.source != SOURCE]
    placed = []
    for each in passes:
        if each.registered.source == SOURCE:
            placed += [o for o in others if _BEFORE[o.registered.phase] == each.name]
            placed.append(each)
    return placed + [other for other in others if not _BEFORE[other.registered.phase]]


def with_options(each: PipelinePass, stated: Mapping[str, Any], where: str) -> PipelinePass:
    """A pass of which more is stated."""
    enabled = stated.get("enabled", each.is_enabled)
    options = {name: value for name, value in stated.items() if name in each.registered.options}
    return replace(each, is_enabled=enabled, options={**each.options, **options}, stated_in=where)
