"""Chooses how a program is sharded: ``dx.autoshard``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import tvm

from distir_ext.analysis.programs.planned import check_cluster
from distir_ext.analysis.simulate import simulate
from distir_ext.annotate.annotations import function_to_annotate
from distir_ext.annotate.named_plans import searches
from distir_ext.autosharding.auto_plan import AutoPlan
from distir_ext.autosharding.meshes import meshes_of
from distir_ext.autosharding.on_mesh import PlanOnMesh, TooLittleMemoryError
from distir_ext.autosharding.pipelines import Pipelines
from distir_ext.autosharding.search import Options, Program, Progress
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase
from distir_ext.structure.sizes import symbolic_sizes
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

GAP = 0.01
"""By which part of its time a plan may exceed the bound."""

OBJECTIVES = ("time", "memory")

# Of symbolic sizes, where a plan is named and none are stated.
_ASSUMED_SIZE = 1024
EFFORT = 8
"""Most rounds of a search; most programs need one or two to come within ``GAP``."""

# Most rounds where several meshes are compared.
_EFFORT_PER_MESH = 3
# Pipelines that are estimated to take at most so much longer than the best plan are runners-up.
_RUNNERS_UP = 1.5
# Numbers of microbatches that are tried, where none are stated.
_MOST_MICROBATCHES = 64


@short_tracebacks
def autoshard(
    mod: tvm.IRModule,
    mesh: Mesh | Any | None = None,
    cluster: Cluster | None = None,
    *,
    devices: int | None = None,
    memory_limit: float | None = None,
    func: str = "main",
    objective: str = "time",
    sizes: Mapping[str, int] | None = None,
    batch: str | None = None,
    microbatches: Iterable[int] | None = None,
    gap: float = GAP,
    effort: int = EFFORT,
    progress: Progress | None = None,
) -> AutoPlan:
    """Finds shardings of a program that take the least time within a limit of memory.

    All parameters and values are chosen at once: from the ways in which each operator can be
    computed (its factor rule), with the time of its shards by the roofline, and with the
    redistributions between operators as they are planned. What is annotated already stays as it is.
    The result is annotations, so propagation, ``explain`` and all else work as for those that are
    written by hand. ``docs/autoshard.md`` says what is assumed.

    With ``devices``, meshes of up to three axes are compared, and pipelines: ranges of operators on
    parts of the devices, with the microbatches that are fastest (if ``batch`` says what they
    divide).

    Args:
        mod: A module in which nothing is distributed yet; it may have annotations on the mesh.
        mesh: The mesh; without it, ``devices`` are arranged, also in stages of a pipeline.
        cluster: The devices with their links, with a :class:`distir_ext.Device`. By default H100s.
        devices: Number of devices, in place of a mesh.
        memory_limit: Bytes that a device may hold at any time; by default the memory of the
            cluster's device.
        func: The function that is called; those that it calls are planned with it.
        objective: ``"time"``, or ``"memory"`` for the least memory, and then time.
        sizes: Values for symbolic sizes, for which the plan is chosen.
        batch: The symbolic size that microbatches divide, with ``devices``. That rows of a batch do
            not see each other is for the caller to know.
        microbatches: Numbers of microbatches to compare; by default 1, 2, 4, .. up to 64, those
            that divide the batch.
        gap: It ends once no plan can be faster by more than this part, as 0.01.
        effort: Most rounds of the search.
        progress: Called several times a second with the seconds of the best plan so far (None if
            there is none) and the bound (None before there is one); true ends the search. By
            default a terminal shows both.

    Returns:
        The plan. Ctrl-C also ends the search, and returns the best so far.

    Raises:
        ValueError: The module is distributed already, or has annotations on another mesh; the
            limit is below what any plan needs (says the least); an axis of the mesh is larger than
            any dimension; a symbolic size has no value; there is no such function or objective;
            microbatches do not divide the batch, or are stated without one or without ``devices``.
        TypeError: It is no module, mesh or cluster.

    Example:
        >>> from tvm import relax
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8192, 8192), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w], {"num_input": 1}):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> plan = autoshard(builder.get(), Mesh(tp=4)).plan  # one of two that are as fast
        >>> sum(dims != (None, None) for dims in plan.values())
        1
    """
    check_module(mod)
    function_to_annotate(mod, func)
    cluster = Cluster.preset("H100") if cluster is None else cluster
    check_cluster(cluster)
    if objective not in OBJECTIVES:
        raise ValueError(
            f"there is no objective {objective!r}{did_you_mean(objective, OBJECTIVES)}; there are "
            f"{', '.join(OBJECTIVES)}"
        )
    if phase(mod) not in (None, "annotated"):
        raise ValueError(
            "the module is distributed already; automatic sharding takes it as it is before "
            "PropagateSharding"
        )
    if memory_limit is not None and not memory_limit > 0:
        raise ValueError(f"memory_limit is {memory_limit}; it is a positive number of bytes")
    if (mesh is None) == (devices is None):
        raise ValueError("state either a mesh or devices=, the number of devices")
    assert cluster.device is not None
    limit = float(cluster.device.memory if memory_limit is None else memory_limit)
    options = Options(cluster, limit, gap, effort, progress)
    values = dict(sizes or {})
    if mesh is not None:
        if batch is not None or microbatches is not None:
            raise ValueError("microbatches are chosen with devices=, not for a mesh")
        given = as_mesh(mesh, "the mesh to plan for")
        finder = PlanOnMesh(mod, Program(mod, func, values, cluster), values, given, options)
        return finder.least() if objective == "memory" else finder.fastest()
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise ValueError(f"devices is a positive number, not {devices!r}")
    numbers = _microbatches(mod, batch, microbatches, values)
    options = replace(options, effort=min(effort, _EFFORT_PER_MESH))
    arrangements = _Arrangements(mod, func, devices, values, batch, options)
    arrangements.compare_meshes(objective, numbers)
    # A pipeline of one microbatch needs no less memory: it is for time.
    if objective == "time" and devices > 1:
        arrangements.compare_pipelines(numbers)
    return arrangements.best()


def _microbatches(
    mod: tvm.IRModule,
    batch: str | None,
    stated: Iterable[int] | None,
    sizes: Mapping[str, int],
) -> list[int]:
    if batch is None:
        if stated is not None:
            raise ValueError(
                'microbatches divide a symbolic size: name it, as in batch="n", sizes={"n": 64}'
            )
        return [1]
    known = symbolic_sizes(mod)
    if batch not in known:
        listed = f"they are {', '.join(known)}" if known else "it has none"
        raise ValueError(
            f"the module has no symbolic size {batch!r} for the batch{did_you_mean(batch, known)}; "
            f"{listed}"
        )
    if batch not in sizes:
        raise ValueError(f"the batch needs a value: sizes={{{batch!r}: ...}}")
    size = sizes[batch]
    if stated is None:
        powers = (2**power for power in range(_MOST_MICROBATCHES.bit_length()))
        return [number for number in powers if size % number == 0]
    numbers = list(stated)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"a number of microbatches is a positive integer, not {number!r}")
        if size % number:
            raise ValueError(f"{batch} = {size} does not divide into {number} microbatches")
    if not numbers:
        raise ValueError("there is no number of microbatches to compare")
    return numbers


class _Arrangements:
    """Plans of all arrangements of a number of devices."""

    def __init__(
        self,
        mod: tvm.IRModule,
        func: str,
        devices: int,
        sizes: Mapping[str, int],
        batch: str | None,
        options: Options,
    ) -> None:
        self._mod = mod
        self._func = func
        self._devices = devices
        self._sizes = sizes
        self._batch = batch
        self._options = options
        self._found: list[AutoPlan] = []
        self._errors: list[ValueError] = []
        self._programs: dict[int, Program] = {}

    def compare_meshes(self, objective: str, numbers: Iterable[int]) -> None:
        """Adds the best plan of each mesh: of one call, or if none fits, of few microbatches."""
        for number in numbers:
            for mesh in meshes_of(self._devices, self._options.cluster):
                try:
                    plan = self._on(mesh, objective, number)
                except ValueError as error:
                    if isinstance(error, TooLittleMemoryError) and number > 1:
                        error = TooLittleMemoryError(
                            error.least, f"{error}, in {number} microbatches"
                        )
                    self._errors.append(error)
                else:
                    self._found.append(plan)
            if self._found:
                return

    def _on(self, mesh: Mesh, objective: str, number: int) -> AutoPlan:
        program, sizes = self._program(number), self._sizes_of(number)
        finder = PlanOnMesh(self._mod, program, sizes, mesh, self._options)
        plan = finder.least() if objective == "memory" else finder.fastest()
        if number == 1:
            return plan
        timeline = simulate(
            plan.mod,
            self._options.cluster,
            sizes=sizes,
            function=self._func,
            microbatches=number,
        )
        return replace(
            plan,
            seconds=timeline.seconds,
            searched_seconds=number * plan.searched_seconds,
            bound=number * plan.bound,
            microbatches=number,
        )

    def compare_pipelines(self, numbers: Iterable[int]) -> None:
        """Adds the best pipeline of each number of microbatches."""
        for number in numbers:
            worst = _RUNNERS_UP * min((each.seconds for each in self._found), default=math.inf)
            pipelines = Pipelines(
                self._mod,
                self._program(number),
                self._sizes_of(number),
                self._devices,
                number,
                self._options,
            )
            if pipelines.least_seconds >= worst:
                continue
            plan = pipelines.fastest(worst)
            if plan is not None:
                self._found.append(plan)

    def best(self) -> AutoPlan:
        """The fastest plan, with the others.

        Raises:
            ValueError: There is none: that of the mesh which needs least memory, else of the first.
        """
        if not self._found:
            short = [each for each in self._errors if isinstance(each, TooLittleMemoryError)]
            raise min(short, key=lambda each: each.least) if short else self._errors[0]
        self._found.sort(key=lambda plan: plan.seconds)
        return replace(self._found[0], others=tuple(self._found[1:]))

    def _sizes_of(self, microbatches: int) -> dict[str, int]:
        sizes = dict(self._sizes)
        if self._batch is not None:
            sizes[self._batch] //= microbatches
        return sizes

    def _program(self, microbatches: int) -> Program:
        if microbatches not in self._programs:
            sizes = self._sizes_of(microbatches)
            self._programs[microbatches] = Program(
                self._mod, self._func, sizes, self._options.cluster
            )
        return self._programs[microbatches]


def _annotated(mod: tvm.IRModule, mesh: Any, cluster: Any, **options: Any) -> tvm.IRModule:
    sizes = dict.fromkeys(symbolic_sizes(mod), _ASSUMED_SIZE) | dict(options.pop("sizes", {}))
    return autoshard(mod, mesh, cluster, sizes=sizes, **options).mod


searches.append(_annotated)
