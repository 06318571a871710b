"""Sweeps over meshes and plans for the best configuration of a model on a cluster."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import tvm
from rich.console import Console
from tvm import relax

from distir_ext.analysis.programs.planned import check_cluster
from distir_ext.analysis.sweeps.configurations import (
    Configuration,
    Evaluator,
    Model,
    identity,
    unused_axes,
)
from distir_ext.analysis.sweeps.figures import Figures
from distir_ext.analysis.sweeps.processes import evaluate
from distir_ext.analysis.sweeps.sweep_result import Sweep, SweepRow
from distir_ext.annotate.patterns import Plan, annotate
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.modules import check_module
from distir_ext.structure.sizes import symbolic_sizes, with_sizes
from distir_ext.text.errors.plan_names import SEARCHED
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.progress import counting_bar


@short_tracebacks
def sweep(
    mod: tvm.IRModule,
    meshes: Iterable[Mesh],
    plans: Mapping[str, Plan] | None = None,
    cluster: Cluster | None = None,
    *,
    func: str | None = None,
    stages: str | None = None,
    microbatches: Iterable[int] = (1,),
    batch: str | None = None,
    sizes: Mapping[str, int] | None = None,
    inputs: Sequence[str] | None = None,
    memory_limit: float | None = None,
    processes: int | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Simulates a model for every mesh, plan and number of microbatches.

    Of each configuration the layers become calls of one function
    (:func:`distir_ext.transform.OutlineRepeats`; not if the plan names variables of layers), then
    it is annotated, cut into stages, lowered and planned once, and simulated. Configurations that
    differ in nothing but names and axes of size 1 are computed once. One that cannot be
    partitioned, such as a plan that does not fit the sizes of its mesh, is a row with the error.
    Ctrl-C stops all of it.

    Args:
        mod: A module without annotations.
        meshes: As those of :func:`factorizations`.
        plans: By name, plans as for :func:`distir_ext.annotate`, ``"tp"``, ``"fsdp"`` and
            ``"auto"`` too, which is searched for the cluster; by default the last alone.
        cluster: The devices, with a :class:`distir_ext.Device`.
        func: The function that is annotated and called; it may be left out where there is one.
        stages: The mesh axis that is cut into stages of a pipeline
            (:func:`distir_ext.transform.AssignStages`). Meshes without it, or where it has size 1,
            have no stages.
        microbatches: Numbers of microbatches.
        batch: The symbolic size that is divided by them. It is needed if one of them is not 1.
        sizes: Values for symbolic sizes, by name; that of the batch is of all microbatches.
        inputs: As for :func:`distir_ext.annotate`.
        memory_limit: Bytes that a device may hold; by default what the cluster's devices have.
        processes: So many processes, with this one, share the configurations; by default this one
            has all. Each of the others imports TVM first, which takes seconds. They are started as
            those of ``multiprocessing`` with ``"spawn"``, so a script needs
            ``if __name__ == "__main__":``.
        progress: False shows no bar on terminals and in notebooks.

    Returns:
        A row for each configuration.

    Raises:
        ValueError: There is nothing to compare; there is no such function, axis, or symbolic size,
            or a size has no value; microbatches without a batch; a number is not positive; inputs
            are not the first parameters; a plan fits none of the meshes, whatever their sizes; the
            cluster says nothing of its devices; a process could not start.
        TypeError: The module, the cluster, a mesh or a plan is none.

    Example:
        >>> from tvm import relax
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((4096, 4096), "float16")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> plans = {"rows": {"x": ("tp", None)}, "sum": {"x": (None, "tp"), "w": ("tp", None)}}
        >>> found = sweep(builder.get(), [Mesh(tp=2), Mesh(tp=4)], plans, Cluster.preset("H100"))
        >>> str(found.best)
        'tp=4, rows'
    """
    check_module(mod)
    check_cluster(cluster)
    assert cluster is not None
    limit = cluster.device.memory if memory_limit is None and cluster.device else memory_limit
    if limit is None or not limit > 0:
        raise ValueError(f"memory_limit is {memory_limit}; it must be positive")
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; it must be at least 1")
    plans = {SEARCHED: SEARCHED} if plans is None else plans
    configurations = _configurations(meshes, plans, microbatches, stages)
    name = _function(mod, func)
    values = _checked_sizes(mod, sizes or {}, batch, configurations)
    _check_plans(mod, name, inputs, configurations)
    model = Model(mod, name, cluster, stages, batch, values, inputs)

    first: dict[object, int] = {}
    of = [
        first.setdefault(identity(each, stages), index) for index, each in enumerate(configurations)
    ]
    distinct = sorted(set(of))
    evaluator = Evaluator(model)
    chosen = [configurations[index] for index in distinct]
    found: dict[int, Figures] = {}
    console = Console(stderr=True, quiet=True) if progress is False else None
    bar = counting_bar("configurations", len(chosen), console)
    computed = evaluate(model, evaluator, chosen, min(processes or 1, len(chosen)))
    with bar as advance, closing(computed):
        for number, figures in computed:
            found[distinct[number]] = figures
            advance()
    rows = []
    for each, index in zip(configurations, of, strict=True):
        figures = found[index]
        if figures.error is not None and each is not configurations[index]:
            figures = evaluator(each)  # an error names axes
        unused = unused_axes(each, stages, figures)
        rows.append(_row(each, figures, limit, values[batch] if batch else None, unused))
    return Sweep(cluster, float(limit), tuple(rows))


def _configurations(
    meshes: Iterable[Mesh],
    plans: Mapping[str, Plan],
    microbatches: Iterable[int],
    stages: str | None,
) -> list[Configuration]:
    if not isinstance(plans, Mapping):
        raise TypeError(f"plans are a mapping from names to plans, not a {type(plans).__name__}")
    for name, plan in plans.items():
        if not isinstance(plan, Mapping | str):
            raise TypeError(
                f"plan {name!r} is a {type(plan).__name__}, not a mapping to dims, or a name"
            )
    if isinstance(meshes, Mesh):
        raise TypeError("meshes are an iterable of meshes, not one mesh")
    if not isinstance(meshes, Iterable):
        raise TypeError(
            f"meshes are an iterable of meshes, not a {type(meshes).__name__}; "
            "dx.analysis.factorizations makes those of a number of devices"
        )
    listed = [as_mesh(mesh, f"mesh {index}") for index, mesh in enumerate(meshes)]
    numbers = list(microbatches)
    for number in numbers:
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"a number of microbatches is a positive integer, not {number!r}")
    for what, given in (("mesh", listed), ("plan", plans), ("number of microbatches", numbers)):
        if not given:
            raise ValueError(f"there is nothing to compare: no {what} is given")
    axes = list(dict.fromkeys(name for mesh in listed for name in mesh.axis_names))
    if stages is not None and stages not in axes:
        raise ValueError(
            f"no mesh has the axis {stages!r} for stages{did_you_mean(stages, axes)}; "
            f"the axes are {', '.join(map(repr, axes))}"
        )
    return [
        Configuration(mesh, name, plan, number)
        for mesh in listed
        for name, plan in plans.items()
        for number in numbers
    ]


def _function(mod: tvm.IRModule, func: str | None) -> str:
    names = [
        name.name_hint
        for name, function in mod.functions_items()
        if isinstance(function, relax.Function)
        and (function.attrs is not None and "global_symbol" in function.attrs)
    ]
    listed = ", ".join(names) or "none"
    if func is None:
        if len(names) != 1:
            raise ValueError(f"the module has several functions, {listed}: state func=")
        return str(names[0])
    if func not in names:
        raise ValueError(
            f"the module has no function {func!r}{did_you_mean(func, names)}; it has {listed}"
        )
    return func


def _check_plans(
    mod: tvm.IRModule,
    func: str,
    inputs: Sequence[str] | None,
    configurations: Sequence[Configuration],
) -> None:
    """Refuses inputs that the function lacks, and plans that fit no mesh, whatever its sizes.

    Axes of size 1 divide everything, so what is refused with them is refused with all sizes. What
    sizes do not divide is for the rows of these meshes to say.

    Raises:
        ValueError: As :func:`distir_ext.annotate`, for a plan with its name.
    """
    annotate(mod, configurations[0].mesh, {}, func, inputs)
    errors: dict[str, list[ValueError]] = {}
    fitting = set()
    for each in {(each.plan, each.mesh.axis_names): each for each in configurations}.values():
        names = each.mesh.axis_names
        if each.entries == SEARCHED:  # it fits them all, or none
            fitting.add(each.plan)
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # annotating it for its configurations says them
                annotate(mod, Mesh((1,) * len(names), names), each.entries, func, inputs)
            fitting.add(each.plan)
        except ValueError as error:
            errors.setdefault(each.plan, []).append(error)
    for plan, found in errors.items():
        if plan not in fitting:
            raise ValueError(f"plan {plan!r} fits no mesh: {found[0]}") from found[0]


def _checked_sizes(
    mod: tvm.IRModule,
    sizes: Mapping[str, int],
    batch: str | None,
    configurations: Sequence[Configuration],
) -> dict[str, int]:
    known = symbolic_sizes(mod)
    listed = f"they are {', '.join(known)}" if known else "it has none"
    if batch is None:
        if any(each.microbatches != 1 for each in configurations):
            raise ValueError(
                "microbatches divide a symbolic size: name it, as in "
                f'batch="n", sizes={{"n": 64}}; of the module {listed}'
            )
    elif batch not in known:
        raise ValueError(
            f"the module has no symbolic size {batch!r} for the batch"
            f"{did_you_mean(batch, known)}; {listed}"
        )
    with_sizes(mod, sizes)  # refuses unknown sizes, and those without a value
    return dict(sizes)


def _row(
    each: Configuration, figures: Figures, limit: float, batch: int | None, unused: tuple[str, ...]
) -> SweepRow:
    seconds, memory = figures.seconds, figures.peak_memory
    return SweepRow(
        each.mesh,
        each.plan,
        each.microbatches,
        seconds,
        batch / seconds if batch is not None and seconds else None,
        memory,
        memory is not None and memory <= limit,
        figures.bytes_sent,
        figures.bubble,
        figures.exposed_communication,
        figures.error,
        unused,
    )
