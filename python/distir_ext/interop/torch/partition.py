"""Partitions a model of PyTorch by a plan for PyTorch into an executable for all workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
import tvm

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import MIN_ELEMENTS
from distir_ext.compile.entry import build
from distir_ext.interop.torch.annotated import best_annotated, renamed, stated_plans, values_of
from distir_ext.interop.torch.generation.folders import FolderModel, model_of_folder
from distir_ext.interop.torch.generation.programs import partition_generation
from distir_ext.interop.torch.generation.settings import Generation, as_generation
from distir_ext.interop.torch.importer import check_model, import_with_names
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.partitioned import Partitioned
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def partition(
    model: torch.nn.Module | FolderModel | str | os.PathLike[str],
    example_inputs: Any,
    mesh: Mesh | Any,
    plan: str | Mapping[str, Any] = "auto",
    *,
    axes: Mapping[str, str] | None = None,
    min_elements: int = MIN_ELEMENTS,
    memory_limit: float | None = None,
    dynamic_shapes: Any = None,
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    generation: Generation | None = None,
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
        model: In evaluation mode. It is not changed. With ``generation=`` also the path of a
            folder of transformers, of whose safetensors each worker reads its part, or what
            :func:`model_of_folder` returned.
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
        generation: Sizes for a model of transformers that generates: the result is a
            :class:`PartitionedGenerator`, which has ``generate``. Example inputs may be None.
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
    weights = None
    if generation is not None and isinstance(model, str | os.PathLike):
        model = model_of_folder(model)
    if generation is not None and isinstance(model, FolderModel):
        model, weights = model
    check_model(model)
    assert isinstance(model, torch.nn.Module)
    chosen = Axes(as_mesh(mesh, "the mesh to partition for"), dict(axes or {}))
    if generation is not None:
        if dynamic_shapes is not None:
            raise ValueError(
                "dynamic_shapes= cannot be given with generation=, whose prompts and batches may "
                "have any size"
            )
        return partition_generation(
            model,
            example_inputs,
            as_generation(generation),
            chosen,
            plan,
            min_elements=min_elements,
            memory_limit=memory_limit,
            target=target,
            options=options,
            weights=weights,
        )
    names = ModelNames(model)
    stated, refused = stated_plans(model, names, plan, chosen, min_elements)
    imported = import_with_names(model, example_inputs, dynamic_shapes, values_of(stated))
    best = best_annotated(
        names, imported, stated, refused, chosen, options.get("cluster"), memory_limit
    )
    return Partitioned(
        build(best.mod, target, **options),
        best.mod,
        chosen.mesh,
        imported.params,
        imported.names,
        best.found,
        tuple(best.stated.notes),
        renamed(names, imported.names),
    )
