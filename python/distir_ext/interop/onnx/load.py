"""Imports an ONNX model into Relax, annotated as one of its device configurations states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tvm

from distir_ext.annotate.annotations import MeshTable
from distir_ext.interop.onnx.configuration import Configuration
from distir_ext.interop.onnx.frontend import import_graph
from distir_ext.interop.onnx.ir_model import faults_of
from distir_ext.interop.onnx.meshes import PlanMeshes
from distir_ext.interop.onnx.place import placed
from distir_ext.interop.onnx.proto import model_proto
from distir_ext.interop.onnx.read import listed, read_proto
from distir_ext.interop.onnx.targets import Plan, plan_targets
from distir_ext.mesh.mesh import Mesh
from distir_ext.mesh.notation import with_mesh_axes
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

CONFIGURATION_ATTR = "distir.onnx_configuration"
"""The attribute of a module that has the name of the configuration that it was imported with."""


class Imported(NamedTuple):
    """A model in Relax."""

    mod: tvm.IRModule
    """Function "main" takes the inputs and then the initializers; variables and parameters are
    called as the model's tensors, but for weights that
    :func:`distir_ext.interop.onnx.weight_names` renames. It is annotated as the configuration
    says."""

    mesh: Mesh | None
    """The devices of the configuration, which ``Session`` takes; None without one. Where tensors
    lie on several meshes, as those of stages do, this has all devices along one axis, and
    ``meshes(mod)`` are the meshes."""

    params: dict[str, list[Any]]
    """The initializers' values, as ``Session.load(params=)`` takes them."""


@short_tracebacks
def from_onnx(
    model: Any,
    configuration: str | None = None,
    *,
    annotated: bool = True,
    shape_dict: Mapping[str, Sequence[Any]] | None = None,
    opset: int | None = None,
) -> Imported:
    """A model in Relax, annotated as one of its device configurations says.

    TVM's frontend imports it, with initializers as parameters. A sharding of a node's input or
    output becomes an annotation of that tensor, for this node or where it is made. Nodes on
    different devices, as those of pipeline stages are, get different meshes. Propagation finds the
    shardings that the configuration leaves open.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, the path of a file, or its bytes.
        configuration: The name of the configuration; may be left out if the model has at most one.
        annotated: Whether the module is annotated. If not, plans of :func:`distir_ext.annotate`
            may name the model's tensors.
        shape_dict: From names of inputs to shapes, where the model's are not those wanted.
        opset: The version of the operators, if not that of the model.

    Raises:
        TypeError: It is no model.
        ValueError: The file is no model, or :func:`check` finds something; there is no such
            configuration, or several and none is named; a node cannot be imported; or shardings
            cannot be stated on a mesh. The error lists all of these, by node and tensor.
        OSError: The file cannot be read.
    """
    proto = model_proto(model, weights=True)
    chosen = _chosen(read_proto(proto, faults_of(model)), configuration) if annotated else None
    graph = proto.graph
    names = {each.name for each in graph.initializer}
    sources = [each.name for each in graph.input if each.name not in names]
    plan = Plan({}, [], []) if chosen is None else plan_targets(chosen, graph.node, sources)
    meshes = PlanMeshes(plan, graph.node)
    problems = [*plan.problems, *meshes.problems]
    what = "shardings that cannot be stated on a mesh"
    if problems:
        raise ValueError(listed(what, problems))

    imported = import_graph(proto, shape_dict, opset)
    mod = tvm.IRModule({}, global_infos={"mesh": [mesh.device_mesh for mesh in meshes.all]})
    mod = with_mesh_axes(mod, [mesh.axis_names for mesh in meshes.all])
    table = MeshTable(mod)
    function, problems = placed(imported, graph.node, plan, meshes, table)
    if problems:
        raise ValueError(listed(what, problems))
    mod["main"] = function
    mod = table.store(mod)
    if chosen is None:
        return Imported(tvm.IRModule({"main": function}), None, imported.params)
    mod = mod.with_attr(CONFIGURATION_ATTR, chosen.name)
    return Imported(mod, _mesh_of_all(chosen, meshes.all), imported.params)


def _chosen(configurations: Sequence[Configuration], name: str | None) -> Configuration | None:
    by_name = {each.name: each for each in configurations}
    if name is None:
        if len(by_name) > 1:
            known = ", ".join(map(repr, by_name))
            raise ValueError(f"the model has several configurations; name one: {known}")
        return next(iter(by_name.values()), None)
    if name not in by_name:
        known = f"it has {', '.join(map(repr, by_name))}" if by_name else "it has none"
        raise ValueError(
            f"the model has no configuration {name!r}; {known}{did_you_mean(name, by_name)}"
        )
    return by_name[name]


def _mesh_of_all(configuration: Configuration, meshes: Sequence[Mesh]) -> Mesh:
    if len(meshes) == 1:
        return meshes[0]
    if not meshes:
        return Mesh((configuration.num_devices,), ("x",))
    devices = sorted({device for mesh in meshes for device in mesh.device_ids})
    return Mesh((len(devices),), ("device",), devices)
