"""Configurations of a sweep (mesh, plan, microbatches): finds equal ones, computes their costs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm

from distir_ext.analysis.programs.planned import check_cluster
from distir_ext.analysis.sweeps.figures import Figures, ProgramCosts
from distir_ext.annotate.annotations import Mark
from distir_ext.annotate.named_plans import searching_for
from distir_ext.annotate.patterns import Plan, annotate
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.dims import TensorDims, read_dim, replicated_axes
from distir_ext.mesh.mesh import Mesh
from distir_ext.mesh.notation import Notation
from distir_ext.passes import transform
from distir_ext.structure.annotated_function import annotated_already
from distir_ext.structure.sizes import bind_sizes
from distir_ext.structure.weights.fused_weights import holds_several
from distir_ext.text.errors.tracebacks import short_tracebacks


@dataclass(frozen=True, eq=False)
class Configuration:
    """Configuration that a row of a sweep describes."""

    mesh: Mesh
    plan: str
    """Its name."""

    entries: Plan
    """The plan itself."""

    microbatches: int


@dataclass(frozen=True)
class Model:
    """Model and options that all configurations of a sweep share."""

    mod: tvm.IRModule
    func: str
    cluster: Cluster
    stages: str | None
    batch: str | None
    sizes: Mapping[str, int]
    inputs: Sequence[str] | None


@dataclass(frozen=True)
class _Bound:
    """A module of which all sizes are known.

    Attributes:
        mod: The module.
        outlined: The module with its repeats as calls.
        holds_several: Whether it takes a weight apart.
    """

    mod: tvm.IRModule
    outlined: tvm.IRModule
    holds_several: bool


class Evaluator:
    """Computes the costs of configurations of a model.

    Keeps what configurations have in common: the module of each batch size, and functions that
    differ only in the devices that communicate.
    """

    def __init__(self, model: Model) -> None:
        check_cluster(model.cluster)
        self._model = model
        self._modules: dict[int, _Bound] = {}
        self._fit_outlined: set[str] = set()  # plans
        self._costs = ProgramCosts(model.cluster)

    def __call__(self, configuration: Configuration) -> Figures:
        """The figures, or the error of a configuration that cannot be partitioned."""
        model = self._model
        try:
            mod, axes = self._annotated(configuration)
            stages = cut_axis(configuration.mesh, model.stages)
            if stages is not None:
                assign = transform.AssignStages(configuration.mesh, stages, func=model.func)
                mod = assign(mod)
            figures = self._costs(mod, model.func, configuration.microbatches)
            return replace(figures, named_axes=axes)
        except ValueError as error:
            return Figures(error=str(error))

    def _annotated(
        self, configuration: Configuration
    ) -> tuple[tvm.IRModule, frozenset[str] | None]:
        """Annotates the model of a configuration.

        Layers become calls of one function, unless the plan names their variables.

        Returns:
            The module, and the axes that a plan by name has used.
        """
        model, mesh, plan = self._model, configuration.mesh, configuration.entries
        bound = self._bound(configuration.microbatches)
        # Weights that hold several are cut as the plan shards them, and plans by name read what is
        # computed: both need a layer's operators, not calls of it.
        if bound.holds_several or isinstance(plan, str):
            with searching_for(model.cluster):
                annotated = annotate(bound.mod, mesh, plan, model.func, model.inputs)
            axes = _axes_named(annotated, model.func) if isinstance(plan, str) else None
            return transform.OutlineRepeats()(annotated), axes
        try:
            annotated = annotate(bound.outlined, mesh, plan, model.func, model.inputs)
        except ValueError:
            if configuration.plan in self._fit_outlined:
                raise
            return annotate(bound.mod, mesh, plan, model.func, model.inputs), None
        self._fit_outlined.add(configuration.plan)
        return annotated, None

    def _bound(self, microbatches: int) -> _Bound:
        """The module of one microbatch."""
        if microbatches not in self._modules:
            model = self._model
            sizes = dict(model.sizes)
            if model.batch is not None:
                if sizes[model.batch] % microbatches:
                    raise ValueError(
                        f"{model.batch} = {sizes[model.batch]} does not divide into "
                        f"{microbatches} microbatches"
                    )
                sizes[model.batch] //= microbatches
            bound = bind_sizes(model.mod, sizes)
            stated = annotate(bound, Mesh((1,), ("all",)), {}, model.func, model.inputs)
            self._modules[microbatches] = _Bound(
                bound, transform.OutlineRepeats()(bound), holds_several(stated, model.func)
            )
        return self._modules[microbatches]


def cut_axis(mesh: Mesh, stages: str | None) -> str | None:
    """The axis of a mesh that is cut into stages; none where it has size 1, or no such axis."""
    if stages is None or stages not in mesh.axis_names:
        return None
    return stages if mesh.shape[mesh.axis_names.index(stages)] > 1 else None


def _axes_named(mod: tvm.IRModule, func: str) -> frozenset[str]:
    """The axes that the annotations of a function name."""
    notation = Notation(mod)
    found: set[str] = set()
    for call in annotated_already(mod[func]).values():
        for entry in Mark.of(call).dims(notation, call.args[0].ty):
            found.update(axis.partition(":")[0] for axis in read_dim("dims", entry).axes)
    return frozenset(found)


def unused_axes(
    configuration: Configuration, stages: str | None, figures: Figures
) -> tuple[str, ...]:
    """The axes of more than one device that the plan does not name, and that have no stages.

    Devices along them compute the same.
    """
    mesh = configuration.mesh
    used = {cut_axis(mesh, stages)}
    if isinstance(configuration.entries, str):
        if figures.named_axes is None:
            return ()
        return _unnamed(mesh, {*used, *figures.named_axes})
    for dims in configuration.entries.values():
        if dims is None:
            continue
        if not isinstance(dims, tuple | list):
            return ()  # another form, which may name any
        if any(isinstance(each, Mesh) for each in dims):
            return ()
        used.update(axis for each in dims for axis in read_dim("dims", each).axes)
    return _unnamed(mesh, used)


def _unnamed(mesh: Mesh, used: set[str | None]) -> tuple[str, ...]:
    named = {axis.partition(":")[0] for axis in used if axis is not None}
    sizes = zip(mesh.axis_names, mesh.shape, strict=True)
    return tuple(name for name, size in sizes if size > 1 and name not in named)


def identity(configuration: Configuration, stages: str | None) -> Hashable:
    """Equal for configurations that differ in nothing but names and axes of size 1."""
    mesh = configuration.mesh
    large = [
        name for name, size in zip(mesh.axis_names, mesh.shape, strict=True) if size > 1
    ] or list(mesh.axis_names[:1])
    number = {name: large.index(name) if name in large else -1 for name in mesh.axis_names}
    shape = tuple(mesh.shape[mesh.axis_names.index(name)] for name in large)
    cut = cut_axis(mesh, stages)
    if isinstance(configuration.entries, str):
        return id(configuration)
    entries = []
    for pattern, dims in configuration.entries.items():
        numbered = _numbered(dims, number)
        if numbered is None:
            return id(configuration)
        entries.append((pattern, numbered))
    return (
        shape,
        mesh.device_ids,
        None if cut is None else number[cut],
        tuple(entries),
        configuration.microbatches,
    )


def _numbered(dims: Any, number: Mapping[str, int]) -> Hashable:
    """Dims with numbers instead of axes; None for other forms, and for axes that are unknown."""
    if dims is None:
        return "replicated"
    if type(dims) not in (tuple, list, TensorDims):
        return None
    found: list[Hashable] = []
    try:
        stated = [read_dim("dims", each) for each in dims]
    except (TypeError, ValueError):
        return None
    replicated = replicated_axes(dims)
    used = {*replicated, *(axis for each in stated for axis in each.axes)}
    if not used <= set(number):
        return None

    def numbers(axes: Iterable[str]) -> tuple[int, ...]:
        return tuple(number[axis] for axis in axes if number[axis] >= 0)

    for each in stated:
        found.append((numbers(each.axes), each.open, each.priority))
    return (*found, frozenset(numbers(replicated)))


@short_tracebacks
def factorizations(size: int, axis_names: Sequence[str]) -> list[Mesh]:
    """All meshes of so many devices: every way to write a number as a product of axis sizes.

    Args:
        size: The number of devices.
        axis_names: The axes, in the order of the meshes.

    Returns:
        Meshes, by the size of the first axis, then of the second, and so on, ascending.

    Raises:
        ValueError: The size is not positive, or there is no axis.

    Example:
        >>> [mesh.shape for mesh in factorizations(4, ("dp", "tp"))]
        [(1, 4), (2, 2), (4, 1)]
    """
    if size < 1:
        raise ValueError(f"the number of devices is {size}; it must be at least 1")
    if not axis_names:
        raise ValueError("a mesh has at least one axis, and none is named")
    return [Mesh(shape, axis_names) for shape in _shapes(size, len(axis_names))]


def _shapes(size: int, axes: int) -> Iterator[tuple[int, ...]]:
    if axes == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            yield from ((first, *rest) for rest in _shapes(size // first, axes - 1))
