"""Partitions a model of transformers into the programs that generate.

One module has ``prefill``, which takes a chunk of a prompt, ``decode``, which takes a token,
``empty``, which gives empty caches, and with an encoder ``encode``. All have the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import tvm
from tvm import relax

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.patterns import annotate
from distir_ext.compile.entry import build
from distir_ext.interop.torch.annotated import (
    Annotated,
    best_annotated,
    renamed,
    stated_plans,
    values_of,
)
from distir_ext.interop.torch.entries import entries
from distir_ext.interop.torch.generation.generator import Generator
from distir_ext.interop.torch.generation.settings import Generation
from distir_ext.interop.torch.generation.shardings import EMPTY, CacheShardings
from distir_ext.interop.torch.generation.steps import (
    Layout,
    Tensors,
    find_layout,
    forward_is,
)
from distir_ext.interop.torch.importer import ImportedModel, import_with_names
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.partitioned import Partitioned
from distir_ext.params.matching import Params, Rename
from distir_ext.session.session import Session


@dataclass(frozen=True, repr=False)
class PartitionedGenerator(Partitioned):
    """A model of transformers that is built to generate on the devices of a mesh."""

    layout: Layout
    """What the programs take."""

    cache_bytes_per_device: int
    """Memory of the caches of ``batch`` sequences on the device that holds most of them."""

    weights: str | None = None
    """The folder that has the weights; None if the model has them."""

    _own: list[Generator] = field(default_factory=list)

    def generator(
        self,
        session: Session,
        params: Params = None,
        *,
        rename: Rename = None,
        strict: bool = True,
    ) -> Generator:
        """Hands the programs to the workers of a session, and cuts the weights for them.

        Args:
            session: Has the devices of the mesh.
            params: As for :meth:`Partitioned.load`: by default those of the folder that the model
                is of, or the model's own.
            rename: As for :meth:`Partitioned.load`.
            strict: As for :meth:`Partitioned.load`.

        Returns:
            Has ``generate``.

        Raises:
            ValueError: As :meth:`Partitioned.load`, and all else that it raises.
        """
        params = self.weights if params is None else params
        loaded = self.load(session, params, rename=rename, strict=strict)
        return Generator(self.layout, loaded, self.cache_bytes_per_device)

    def generate(self, input_ids: Any = None, *args: Any, **options: Any) -> Any:
        """Generates on workers that are threads of this process, with the model's own weights.

        The workers start with the first call and stay until :meth:`close`. For processes, hosts,
        GPUs or other weights see :meth:`generator`.

        Args:
            input_ids: As for :meth:`Generator.generate`.
            *args: As for :meth:`Generator.generate`.
            **options: As for :meth:`Generator.generate`.

        Returns:
            As :meth:`Generator.generate`.
        """
        return self._started().generate(input_ids, *args, **options)

    @property
    def report(self) -> Any:
        """Report of the last call of :meth:`generate`; None before it."""
        return self._own[0].report if self._own else None

    def close(self) -> None:
        """Ends the workers that :meth:`generate` has started."""
        while self._own:
            self._own.pop().close()

    def __enter__(self) -> PartitionedGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Generator:
        if not self._own:
            session = Session(self.mesh)
            try:
                self._own.append(self.generator(session).owning(session))
            except BaseException:
                session.close()
                raise
        return self._own[0]


def partition_generation(
    model: torch.nn.Module,
    example_inputs: Any,
    generation: Generation,
    axes: Axes,
    plan: str | Mapping[str, Any],
    *,
    min_elements: int,
    memory_limit: float | None,
    target: Any,
    options: Mapping[str, Any],
    weights: str | None,
) -> PartitionedGenerator:
    """Partitions a model as :func:`partition` does, into programs that generate.

    Raises:
        TypeError: The model is not one of transformers.
        ValueError: The model does not generate, or keeps what cannot stay on workers; or as
            :func:`partition`.
    """
    layout = find_layout(model, generation, example_inputs)
    names = ModelNames(model)
    stated, refused = stated_plans(model, names, plan, axes, min_elements)
    values = values_of(stated)
    imported = {}
    for name, function, inputs in _programs(layout):
        with forward_is(model, function, list(inputs)):
            imported[name] = import_with_names(model, inputs, None, values)
    best = best_annotated(
        names,
        imported["decode"],
        stated,
        refused,
        axes,
        options.get("cluster"),
        memory_limit,
    )
    caches = CacheShardings(layout, axes, best.stated.notes)
    mod = _merged({**{name: each.mod for name, each in imported.items()}, EMPTY: _empty(layout)})
    for name, each in imported.items():
        stated_here = _entries(names, each, best, axes)
        given = caches.entries(name, {str(p.name) for p in each.mod["main"].params})
        mod = annotate(mod, axes.mesh, {**stated_here, **given}, func=name)
    mod = annotate(mod, axes.mesh, caches.entries(EMPTY, set()), func=EMPTY)
    every: dict[str, torch.Tensor] = {}
    exported: dict[str, str] = {}
    for each in imported.values():
        every.update(each.params)
        exported.update(each.names)
    return PartitionedGenerator(
        build(mod, target, **options),
        mod,
        axes.mesh,
        every,
        exported,
        best.found,
        tuple(best.stated.notes),
        renamed(names, exported),
        layout,
        caches.bytes_per_device,
        weights,
    )


def _programs(layout: Layout) -> Iterator[tuple[str, Callable[..., Any], Tensors]]:
    """The programs by name, and the inputs that they are exported with."""
    yield "decode", layout.step, layout.inputs(1)
    if layout.generation.chunk_length > 1:
        yield "prefill", layout.step, layout.inputs(layout.generation.chunk_length)
    if layout.encoder:
        yield "encode", layout.encode, layout.encoder


def _entries(
    names: ModelNames, imported: ImportedModel, best: Annotated, axes: Axes
) -> dict[str, Any]:
    """Entries of a plan for one program; what it finds for ``decode`` holds for all."""
    found = entries(names, imported, best.stated, axes, best.kind)
    return {**found, **{name: best.found[name] for name in imported.params if name in best.found}}


def _empty(layout: Layout) -> tvm.IRModule:
    """A function that gives the caches before the first token, each of a zero of its own.

    Equal values would become one, which could not be written in place.
    """
    builder = relax.BlockBuilder()
    zeros = layout.zeros()
    given = {
        name: relax.Var(
            name, relax.TensorType(tuple(zero.shape), str(zero.dtype).removeprefix("torch."))
        )
        for name, zero in zeros.items()
    }
    with builder.function("main", list(given.values())):
        with builder.dataflow():
            caches = [
                builder.emit(relax.op.broadcast_to(given[each.name], each.shape))
                for each in layout.kept
            ]
            result = builder.emit_output(relax.Tuple(caches))
        builder.emit_func_output(result)
    mod = builder.finalize()
    mod["main"] = mod["main"].with_attr("num_input", len(zeros))
    return mod


def _merged(mods: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """One module with the function ``main`` of each under a name of its own.

    Kernels of the same name are the same.
    """
    functions: dict[Any, Any] = {}
    for name, mod in mods.items():
        for variable, function in mod.functions_items():
            if variable.name_hint == "main":
                functions[tvm.ir.GlobalVar(name)] = function.with_attr("global_symbol", name)
            else:
                functions[variable] = function
    return tvm.IRModule(functions)
