"""Reads ONNX models from protos, onnx_ir models, files or bytes; visits nodes with known shapes."""

from __future__ import annotations

import math
import os
from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

try:
    import onnx
    from onnx.external_data_helper import uses_external_data
except ImportError as error:
    raise ImportError(
        f"dx.interop.onnx needs the package onnx: pip install 'distir-ext[onnx]' ({error})"
    ) from error

from distir_ext.interop.onnx.ir_model import is_ir_model, without_faults
from distir_ext.interop.onnx.labels import node_label
from distir_ext.text.files.regular_file import read_file

_MOST_BYTES = 2**31 - 1
"""Of a message of protobuf, which an ONNX file is."""

Shape: TypeAlias = tuple[int | str | None, ...]
"""Sizes, names of symbolic sizes, None for what is not known."""

Shapes: TypeAlias = MutableMapping[str, Shape | None]
"""By the names of values; None for those of which not even the rank is known."""


@dataclass(frozen=True)
class Node:
    """A node, and where it is."""

    proto: Any
    label: str
    index: int | None
    shapes: Shapes
    """Of the values that the model says something of."""

    @property
    def tensors(self) -> list[str]:
        """The names of its inputs and outputs."""
        return [name for name in (*self.proto.input, *self.proto.output) if name]


def model_proto(model: Any, weights: bool = False) -> Any:
    """The ``onnx.ModelProto`` of a model; not a copy of one that is one already.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, the path of a file, or its bytes.
        weights: Whether weights that a file has outside of itself are read, too.

    Raises:
        TypeError: It is none of these.
        ValueError: The file or bytes are no ONNX model; a tensor outside of it lies elsewhere than
            beside it, or says more bytes than it has; or an ``onnx_ir.Model`` cannot be written.
        OSError: The file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        parsed = _parsed(read_file(path, _MOST_BYTES), str(path))
        if weights:
            _read_external_data(parsed, path)
        return parsed
    if isinstance(model, bytes):
        return _parsed(model, "the model")
    if is_ir_model(model):
        return _written(model, weights)
    raise TypeError(
        f"the model is of type {type(model).__name__}; it has to be an onnx.ModelProto, an "
        "onnx_ir.Model, the path of a file, or its bytes"
    )


def _written(model: Any, weights: bool) -> Any:
    """An ``onnx_ir.Model`` as a proto, without what :func:`ir_model.faults_of` refuses."""
    import onnx_ir

    try:
        with without_faults(model):
            proto = onnx_ir.to_proto(model)
        for tensor in external_weights(proto) if weights else ():
            value = model.graph.initializers[tensor.name].const_value
            loaded = onnx_ir.external_data.convert_tensors_from_external([value])
            tensor.CopyFrom(onnx_ir.to_proto(loaded[0]))
    except Exception as error:
        raise ValueError(f"onnx_ir cannot write the model: {error.__cause__ or error}") from error
    return proto


def external_weights(model: Any) -> list[Any]:
    """The initializers of an ``onnx.ModelProto`` whose values are in files."""
    external = onnx.TensorProto.EXTERNAL
    return [each for each in model.graph.initializer if each.data_location == external]


def _parsed(data: bytes, what: str) -> Any:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # of protobuf, which is not a dependency of ours
        raise ValueError(f"{what} is no ONNX model: {error}") from error
    return model


def _read_external_data(model: Any, path: Path) -> None:
    folder = path.resolve().parent
    try:
        for tensor in _tensors_of(model):
            if uses_external_data(tensor):
                _check_size(tensor, folder)
        onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:
        reason = str(error) or type(error).__name__  # a MemoryError has no text
        raise ValueError(f"{path}: its external data cannot be read: {reason}") from error


def _check_size(tensor: Any, folder: Path) -> None:
    """Refuses a tensor that would read more than its elements take; what is packed takes less."""
    stated = {each.key: each.value for each in tensor.external_data}
    size = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
    most = math.prod(tensor.dims) * size
    if "length" in stated:
        length = int(stated["length"])
    else:
        file = folder / stated.get("location", "")
        length = (file.stat().st_size if file.is_file() else 0) - int(stated.get("offset", 0))
    if length > most:
        raise ValueError(
            f"tensor {tensor.name!r} has {length} bytes outside of the file; its shape and type "
            f"take {most}"
        )


def _tensors_of(model: Any) -> Iterator[Any]:
    """All tensors: of the graph, of branches and loop bodies in it, and of functions."""
    graphs, nodes = [model.graph], [each for function in model.functions for each in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs += attribute.graphs


def nodes_of(model: Any) -> Iterator[Node]:
    """All nodes: of the graph, of branches and loop bodies in it, and of functions."""
    yield from _nodes_of_graph(model.graph, {}, "", is_top=True)
    for function in model.functions:
        shapes = dict(_declared(function.value_info))
        yield from _labelled(function.node, shapes, f" of function {function.name!r}")


def _nodes_of_graph(graph: Any, outer: Shapes, where: str, is_top: bool = False) -> Iterator[Node]:
    shapes = ChainMap(dict(_declared((*graph.value_info, *graph.input, *graph.output))), outer)
    shapes.update((each.name, tuple(each.dims)) for each in graph.initializer)
    shapes.update((each.values.name, tuple(each.dims)) for each in graph.sparse_initializer)
    yield from _labelled(graph.node, shapes, where, is_top)


def _labelled(
    nodes: Iterable[Any],
    shapes: Shapes,
    where: str,
    is_top: bool = False,
) -> Iterator[Node]:
    for index, proto in enumerate(nodes):
        label = node_label(proto, index) + where
        yield Node(proto, label, index if is_top else None, shapes)
        for attribute in proto.attribute:
            graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
            for graph in graphs:
                yield from _nodes_of_graph(graph, shapes, f" in {attribute.name!r} of {label}")


def _declared(values: Iterable[Any]) -> Iterator[tuple[str, Shape | None]]:
    for value in values:
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            yield value.name, tuple(size_of(dim) for dim in tensor.shape.dim)
        else:
            yield value.name, None


def size_of(dim: Any) -> int | str | None:
    """A ``TensorShapeProto.Dimension``; or the ``dim`` of a ``SimpleShardedDimProto``."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.HasField("dim_param") else None
