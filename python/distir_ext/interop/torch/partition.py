"""Partitions a model of PyTorch by a plan for PyTorch into an executable for all workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import tvm

from distir_ext.analysis.estimate import estimate
from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import MIN_ELEMENTS
from distir_ext.annotate.patterns import annotate
from distir_ext.autosharding.plan import autoshard
from distir_ext.compile.entry import build
from distir_ext.interop.torch.entries import entries
from distir_ext.interop.torch.importer import ImportedModel, check_model, import_with_names
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.plans import candidates, state_plan
from distir_ext.interop.torch.statements import Statements
from distir_ext.interop.torch.structure import state_structure
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.native.reports import record
from distir_ext.params.matching import Params, Rename, renamed_to
from distir_ext.session.model import Model
from distir_ext.session.session import Session
from distir_ext.text.logs import package_logger
from distir_ext.text.tracebacks import short_tracebacks

_LOGGER = package_logger("distir_ext.interop.torch")

_Found = TypeVar("_Found")


@dataclass(frozen=True, repr=False)
class Partitioned:
    """A model that is built for the devices of a mesh."""

    exe: Any
    """The executable, as :func:`distir_ext.build` returns it."""

    mod: tvm.IRModule
    """The annotated module that it was built from."""

    mesh: Mesh
    """The devices."""

    params: dict[str, torch.Tensor]
    """The model's parameters, by their names in the module."""

    names: dict[str, str]
    """From names of parameters in the module to the model's, with dots."""

    plan: dict[str, Any]
    """Annotations, as :func:`distir_ext.annotate` takes them."""

    notes: tuple[str, ...]
    """One line for each tensor that was sharded or not, with the reason."""

    renamed: dict[str, tuple[str, ...]]
    """From names in the model's ``state_dict`` to those of parameters in the module: several if
    they are tied, none for buffers, which are constants of the module."""

    def load(
        self,
        session: Session,
        params: Params = None,
        *,
        rename: Rename = None,
        strict: bool = True,
    ) -> Model:
        """Hands the executable to the workers of a session, and cuts the weights for them.

        Args:
            session: Has the devices of the mesh.
            params: Other weights than the model's own: a ``state_dict``, or the path of a file or
                directory of safetensors that has what the ``state_dict`` has; each worker reads
                its part.
            rename: From names in ``params`` to those in the model's ``state_dict``: a function, or
                a dict in which names that stay may be left out.
            strict: Whether values that the model has no weight for are an error.

        Returns:
            The model, which is called with tensors; ``torch.from_dlpack`` takes what it returns.

        Raises:
            TypeError: ``rename`` is given without ``params``.
            ValueError: As :meth:`distir_ext.Session.load` does, and all else that it raises.
        """
        if params is None:
            if rename is not None:
                raise TypeError("rename= is of the names in params=, which was not given")
            return session.load(self.exe, params=self.params)
        return session.load(self.exe, params=params, rename=self._renaming(rename), strict=strict)

    def _renaming(self, rename: Rename) -> Callable[[str], tuple[str, ...]]:
        """Returns the map from names in files to names of parameters in the module."""

        def renamed(name: str) -> tuple[str, ...]:
            found: list[str] = []
            for each in renamed_to(rename, name):
                found += self.renamed.get(each, (each,))
            return tuple(found)

        return renamed

    def __repr__(self) -> str:
        sharded = sum(any(dims or ()) for name, dims in self.plan.items() if name in self.params)
        return f"<Partitioned on {self.mesh!r}: {sharded} of {len(self.params)} parameters sharded>"


@short_tracebacks
def partition(
    model: torch.nn.Module,
    example_inputs: Any,
    mesh: Mesh | Any,
    plan: str | Mapping[str, Any] = "auto",
    *,
    axes: Mapping[str, str] | None = None,
    min_elements: int = MIN_ELEMENTS,
    memory_limit: float | None = None,
    dynamic_shapes: Any = None,
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    **options: Any,
) -> Partitioned:
    """Exports a model, shards it by a plan, and builds it.

    Plans:

    - ``"hf"``: what the model of transformers brings along: ``tp_plan``, and ``ep_plan`` if the
      mesh has an axis for experts.
    - ``"tp"``: pairs of products, the first by columns, the second by rows, found in the program.
    - ``"fsdp"``: each parameter by its largest dimension that the devices divide, and the batch.
    - ``"auto"``: the one that takes the least time within ``memory_limit``, by
      :func:`distir_ext.analysis.estimate`, of ``"search"``, ``"hf"`` (if the model has rules for
      its layers), ``"tp"`` and, on a mesh with one axis or one called ``fsdp``, ``"fsdp"``; open
      sizes are those of the example inputs for this. Those that do not fit are left out.
    - ``"search"``: what :func:`distir_ext.autoshard` finds, for the least time within
      ``memory_limit``; with open sizes, for those of the example inputs.
    - a dict: from names to styles of transformers (``"colwise"``), to styles of
      ``torch.distributed.tensor.parallel``, or to dims as :func:`distir_ext.annotate` takes them.
      Names have dots, with ``*`` for a part, or are written as torch.export writes them. Keys with
      dims that name no parameter are patterns of :func:`distir_ext.annotate`.

    Further axes of the mesh shard the batch of the inputs if they are called ``dp``, ``data``,
    ``batch`` or ``fsdp``. What no plan states propagation finds. The logger
    ``distir_ext.interop.torch`` says at level INFO what was sharded and what was not, and why.

    Args:
        model: In evaluation mode. It is not changed.
        example_inputs: A tensor, tensors in order, or by name; see :func:`import_model`.
        mesh: The devices.
        plan: The plan.
        axes: Roles of mesh axes, if their names do not say it: from ``"tp"``, ``"ep"``,
            ``"fsdp"`` and ``"batch"`` to an axis.
        min_elements: What ``"fsdp"`` leaves to propagation: parameters with fewer elements.
        memory_limit: For ``"search"`` and ``"auto"``, bytes that a device may hold; by default the
            memory of the device of ``cluster=``, or of an H100.
        dynamic_shapes: The sizes that stay open, as for ``torch.export.export``.
        target: Target to build for, as for :func:`distir_ext.build`.
        **options: Further arguments of :func:`distir_ext.build`.

    Returns:
        The executable and what belongs to it; ``partitioned.load(session)`` runs it.

    Raises:
        TypeError: The model, the inputs, the mesh or the plan have a wrong type.
        ValueError: The model cannot be exported or imported; there is no plan of a name; the model
            has no plan of its own; axes cannot be told apart; or the plan does not fit the model:
            one error that lists all keys that name nothing, with the nearest name, unknown styles,
            and styles that cannot be used on a parameter.
    """
    check_model(model)
    chosen = Axes(as_mesh(mesh, "the mesh to partition for"), dict(axes or {}))
    names = ModelNames(model)
    kinds = candidates(model, plan, chosen)
    each_stated, refused = _of_each(
        kinds, lambda kind: state_plan(model, names, kind, plan, chosen, min_elements)
    )
    values = {
        value: each for stated in each_stated.values() for value, each in stated.values.items()
    }
    imported = import_with_names(model, example_inputs, dynamic_shapes, values)
    annotated, refused_late = _of_each(
        list(each_stated),
        lambda kind: (
            _searched(imported, each_stated[kind], chosen, options.get("cluster"), memory_limit)
            if kind == "search"
            else _annotated(names, imported, each_stated[kind], chosen, kind)
        ),
    )
    best = _fastest(
        list(annotated.values()), imported.open_sizes, options.get("cluster"), memory_limit
    )
    for kind, why in {**refused, **refused_late}.items():
        best.stated.notes.append(f"auto: {kind!r} cannot be used: {why}")
    return Partitioned(
        build(best.mod, target, **options),
        best.mod,
        chosen.mesh,
        imported.params,
        imported.names,
        best.found,
        tuple(best.stated.notes),
        _renamed(names, imported),
    )


def _of_each(
    kinds: Sequence[str], compute: Callable[[str], _Found]
) -> tuple[dict[str, _Found], dict[str, str]]:
    """Computes something of each plan; of several, those that do not fit are left out.

    Returns:
        By kind what was computed, and why it could not be.

    Raises:
        ValueError: None of them fits: the first one's.
    """
    found: dict[str, _Found] = {}
    refused: dict[str, ValueError] = {}
    for kind in kinds:
        try:
            found[kind] = compute(kind)
        except ValueError as error:
            refused[kind] = error
    if not found:
        raise next(iter(refused.values()))
    return found, {kind: str(error) for kind, error in refused.items()}


@dataclass(frozen=True)
class _Annotated:
    """A model as one plan shards it."""

    kind: str
    stated: Statements
    found: dict[str, Any]
    mod: tvm.IRModule


def _annotated(
    names: ModelNames, imported: ImportedModel, stated: Statements, axes: Axes, kind: str
) -> _Annotated:
    start = time.perf_counter()
    if kind == "tp":
        state_structure(names, imported, axes, stated)
        stated.check()
    found = entries(names, imported, stated, axes, kind)
    _report(kind, imported, found, stated, time.perf_counter() - start)
    mod = annotate(imported.mod, axes.mesh, found)
    return _Annotated(kind, stated, found, mod)


def _searched(
    imported: ImportedModel,
    stated: Statements,
    axes: Axes,
    cluster: Any,
    memory_limit: float | None,
) -> _Annotated:
    start = time.perf_counter()
    plan = autoshard(
        imported.mod, axes.mesh, cluster, memory_limit=memory_limit, sizes=imported.open_sizes
    )
    stated.notes += [f"{each.name}: {each.dims}; {each.reason}" for each in plan.weights]
    found = dict(plan.plan)
    _report("search", imported, found, stated, time.perf_counter() - start)
    return _Annotated("search", stated, found, plan.mod)


def _fastest(
    each: Sequence[_Annotated],
    sizes: Mapping[str, int],
    cluster: Cluster | None,
    memory_limit: float | None,
) -> _Annotated:
    """The one that takes the least time, the first of those; if none fits, the smallest.

    Args:
        each: The model under several plans.
        sizes: Those of the example inputs, for the sizes that are open.
        cluster: The devices; by default H100s.
        memory_limit: Bytes that a device may hold; by default its memory.
    """
    if len(each) == 1:
        return each[0]
    cluster = Cluster.preset("H100") if cluster is None else cluster
    estimates, unpriced = _of_each(
        [one.kind for one in each],
        lambda kind: estimate(
            next(one.mod for one in each if one.kind == kind), cluster, sizes=sizes
        ),
    )
    limit = cluster.device.memory if memory_limit is None and cluster.device else memory_limit
    assert limit is not None

    def price(one: _Annotated) -> tuple[float, float]:
        found = estimates[one.kind]
        over = max(0.0, found.peak_memory - limit)
        return over, found.seconds

    priced = [one for one in each if one.kind in estimates]
    best = min(priced, key=price)
    of_example = ", with the sizes of the example inputs" if sizes else ""
    for one in priced:
        over, seconds = price(one)
        held = f", and holds {over:g} bytes more than a device may" if over else ""
        best.stated.notes.append(
            f"auto: {one.kind!r} takes {seconds:.4g} s by the estimate{of_example}{held}"
        )
    best.stated.notes += [
        f"auto: {kind!r} cannot be priced: {why}" for kind, why in unpriced.items()
    ]
    return best


def _report(
    kind: str,
    imported: ImportedModel,
    found: Mapping[str, Any],
    stated: Statements,
    seconds: float,
) -> None:
    for note in stated.notes:
        _LOGGER.info("%s: %s", kind, note)
    sharded = sum(name in found for name in imported.params)
    left = len(imported.params) - sharded
    skipped = {"parameters": {"left to propagation": left}} if left else {}
    done = {"parameters": sharded, "inputs and values": len(found) - sharded}
    record(f"TorchPlan({kind})", done, skipped, seconds)


def _renamed(names: ModelNames, imported: ImportedModel) -> dict[str, tuple[str, ...]]:
    """The parameters of the module that each name of the model's ``state_dict`` stands for."""
    by_tensor: dict[int, list[str]] = {}
    for exported, name in imported.names.items():
        by_tensor.setdefault(id(names.parameters[name]), []).append(exported)
    renamed: dict[str, tuple[str, ...]] = dict.fromkeys(names.buffers, ())
    for name, parameter in names.parameters.items():
        # Files have one of the names of tied parameters: the first.
        renamed[name] = tuple(by_tensor.pop(id(parameter), ()))
    return renamed
