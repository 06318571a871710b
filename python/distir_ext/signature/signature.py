"""The functions of an executable, as it states them: global types and SPMD programs.

``dx.build`` adds a function ``distir_signature`` that returns JSON (``signature_form``); this
module reads it into classes that know how a global array is divided among devices (``specs``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from distir_ext.mesh.mesh_axes import NamedMesh
from distir_ext.signature import signature_form
from distir_ext.signature.specs import (
    Leaf,
    NumberSpec,
    ShapeSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    ValueSpec,
    leaves,
    size_names,
)
from distir_ext.text.printable import shown

HOST = 1  # DLPack's kDLCPU


@dataclass(frozen=True)
class ParamSpec:
    """A parameter of a function."""

    name: str
    spec: Spec


@dataclass(frozen=True)
class Program:
    """SPMD program of a function for some devices.

    Attributes:
        name: Name of the function in the executable.
        device_ids: Devices that run it.
        params: Indices of the function's parameters that it takes, in order.
        results: Indices of the leaves of the function's result that it returns, in order.
        sizes: Symbolic dimensions that none of its parameters has; the program takes their global
            sizes as one more argument, a shape, if there are any.
        virtual_stage: A device runs its programs of a function in order of their virtual stages.
            The results of one, except the last, are the last arguments of the next.
    """

    name: str
    device_ids: tuple[int, ...]
    params: tuple[int, ...]
    results: tuple[int, ...]
    sizes: tuple[str, ...] = ()
    virtual_stage: int = 0


@dataclass(frozen=True)
class FusedWeight:
    """A weight of the user's that is several parameters, each a block of it.

    Attributes:
        name: The user's.
        dim: The dimension along which the blocks are.
        blocks: Names of the parameters.
        sizes: Of the blocks along the dimension.
    """

    name: str
    dim: int
    blocks: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class FunctionSpec:
    """A function of an executable.

    Attributes:
        name: Its name for the user.
        num_input: Parameters from this index on are weights.
        params: All parameters, with global types.
        result: Global type of the result.
        programs: Programs of its devices, in the order in which values go through them; no device
            has two of one virtual stage.
        fused: Weights that are several parameters.
        dividing: By name of a symbolic size that has to divide into its shards, since it cannot
            be padded: because of which operator; empty text where nothing was to be padded.
        donated: Indices of the inputs whose memory results may take.
    """

    name: str
    num_input: int
    params: tuple[ParamSpec, ...]
    result: Spec
    programs: tuple[Program, ...]
    fused: tuple[FusedWeight, ...] = ()
    dividing: Mapping[str, str] = field(default_factory=dict, hash=False)
    donated: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        devices = Counter(
            (device, program.virtual_stage)
            for program in self.programs
            for device in program.device_ids
        )
        repeated = sorted({device for (device, _), count in devices.items() if count > 1})
        if repeated:
            raise ValueError(f'function "{self.name}" has two programs for devices {repeated}')
        self._check_params()
        self._check_results()
        if not all(0 <= each < self.num_input for each in self.donated):
            raise ValueError(f'function "{self.name}" donates what is no input: {self.donated}')

    @cached_property
    def size_names(self) -> frozenset[str]:
        """Variables in the sizes of parameters and results."""
        types = [each.spec for each in self.params] + [self.result]
        return frozenset(
            name for each in types for leaf in leaves(each) for name in size_names(leaf)
        )

    @cached_property
    def programs_of(self) -> dict[int, tuple[Program, ...]]:
        """The programs that a device runs, in order; devices that run none are not in it."""
        found: dict[int, tuple[Program, ...]] = {}
        for program in sorted(self.programs, key=lambda program: program.virtual_stage):
            for device in program.device_ids:
                found[device] = (*found.get(device, ()), program)
        return found

    @cached_property
    def virtual_stages(self) -> int:
        """The number of virtual stages, at least 1."""
        return max((program.virtual_stage + 1 for program in self.programs), default=1)

    @cached_property
    def result_leaves(self) -> tuple[Leaf, ...]:
        """The types in the result, left to right."""
        return tuple(leaves(self.result))

    def _check_params(self) -> None:
        """A program takes parameters only on devices that have shards of them."""
        checked: set[tuple[int, int]] = set()
        for number, program in enumerate(self.programs):
            for index in program.params:
                param = self.params[index]
                if (number, id(param.spec)) in checked:  # parameters of one type have one object
                    continue
                checked.add((number, id(param.spec)))
                tensors = [leaf for leaf in leaves(param.spec) if isinstance(leaf, TensorSpec)]
                holders = {device for leaf in tensors for device in leaf.device_ids}
                missing = set(program.device_ids) - holders
                if tensors and missing:
                    raise ValueError(
                        f'program "{program.name}" takes parameter "{param.name}" on devices '
                        f"{sorted(missing)}, which are not in its mesh"
                    )

    def _check_results(self) -> None:
        """Every part of the result is returned by some device."""
        for index, leaf in enumerate(self.result_leaves):
            holders = {
                device
                for device, programs in self.programs_of.items()
                if index in programs[-1].results
            }
            if not isinstance(leaf, TensorSpec):
                complete = bool(holders)
            else:
                held = {leaf.blocks[device] for device in holders if device in leaf.blocks}
                complete = held == set(leaf.blocks.values())
            if not complete:
                raise ValueError(
                    f'no program of function "{self.name}" returns all of result {index}'
                )

    @property
    def inputs(self) -> tuple[ParamSpec, ...]:
        """The parameters that are passed in every call."""
        return self.params[: self.num_input]

    @property
    def weights(self) -> tuple[ParamSpec, ...]:
        """The parameters that are given once, when the executable is loaded."""
        return self.params[self.num_input :]

    @cached_property
    def given_weights(self) -> tuple[str, ...]:
        """The names of the weights as users have them: of fused ones their own, not the blocks'."""
        whole = {block: each.name for each in self.fused for block in each.blocks}
        return tuple(dict.fromkeys(whole.get(each.name, each.name) for each in self.weights))

    @cached_property
    def fused_specs(self) -> dict[str, TensorSpec]:
        """Types of weights that are split into several parameters, by name."""
        specs = {param.name: param.spec for param in self.weights}
        found = {}
        for each in self.fused:
            block = specs[each.blocks[0]]
            assert isinstance(block, TensorSpec)
            shape = list(block.shape)
            shape[each.dim] = sum(each.sizes)
            found[each.name] = replace(block, shape=tuple(shape), shards=())
        return found

    def __str__(self) -> str:
        inputs = ", ".join(f"{shown(param.name)}: {param.spec}" for param in self.inputs)
        weights = f" with {len(self.weights)} weights" if self.weights else ""
        return f"{shown(self.name)}({inputs}) -> {self.result}{weights}"


@dataclass(frozen=True)
class Signature:
    """All functions of an executable and the devices that it needs.

    Attributes:
        device_ids: Ids of the devices.
        device_type: Type of devices, as DLPack numbers them: 1 for the host's cores, 2 for CUDA.
        functions: The functions by name.
        partitions: Lists of disjoint groups of devices that communicate in its programs, as JSON.
        named_meshes: Those of the module that it was built from.
    """

    device_ids: tuple[int, ...]
    device_type: int
    functions: Mapping[str, FunctionSpec]
    partitions: tuple[str, ...] = ()
    named_meshes: tuple[NamedMesh, ...] = ()


_Mesh = tuple[tuple[int, ...], tuple[int, ...], NamedMesh]
"""Shape, device ids, and the mesh that has names for its axes."""


def _parse_named_mesh(written: Sequence[Any]) -> NamedMesh:
    shape, axes, devices = (tuple(each) for each in written)
    if len(axes) != len(shape) or not all(isinstance(name, str) for name in axes):
        raise ValueError(f"a mesh of shape {list(shape)} has the axes {list(axes)}")
    return NamedMesh(shape, axes, devices)


def _parse_mesh(value: Mapping[str, Any]) -> _Mesh:
    return tuple(value["shape"]), tuple(value["device_ids"]), _parse_named_mesh(value["named"])


class _Specs:
    """Types, one object for all parameters and results that have it; so each is looked at once."""

    def __init__(self, meshes: Sequence[_Mesh]) -> None:
        self._meshes = meshes
        self._found: dict[int, tuple[Any, Spec]] = {}  # by identity, with what has that

    def parse(self, value: Mapping[str, Any]) -> Spec:
        """The type that is written so."""
        if id(value) not in self._found:
            self._found[id(value)] = value, _parse_spec(value, self._meshes)
        return self._found[id(value)][1]


def _parse_spec(value: Mapping[str, Any], meshes: Sequence[_Mesh]) -> Spec:
    kind = value["kind"]
    if kind == "tensor":
        mesh_shape, device_ids, named_mesh = meshes[value["mesh"]]
        return TensorSpec(
            tuple(value["shape"]),
            value["dtype"],
            mesh_shape,
            device_ids,
            tuple(value["placement"]),
            value["sharding"],
            tuple(tuple(names) for names in value["dims"]),
            named_mesh,
            tuple(value.get("shards", ())),
        )
    if kind == "tuple":
        return TupleSpec(tuple(_parse_spec(each, meshes) for each in value["fields"]))
    if kind == "shape":
        dims = value["dims"]
        return ShapeSpec(None if dims is None else tuple(dims))
    if kind == "number":
        return NumberSpec(value["dtype"])
    return ValueSpec()


def _parse_function(name: str, value: Mapping[str, Any], specs: _Specs) -> FunctionSpec:
    params = tuple(ParamSpec(each["name"], specs.parse(each["type"])) for each in value["params"])
    programs = tuple(
        Program(
            each["name"],
            tuple(each["device_ids"]),
            tuple(each["params"]),
            tuple(each["results"]),
            tuple(each["sizes"]),
            each["virtual_stage"],
        )
        for each in value["programs"]
    )
    result = specs.parse(value["result"])
    fused = tuple(_parse_fused(each, at, params) for each, at in value["fused"].items())
    dividing = value["dividing"]
    donated = tuple(value["donated"])
    return FunctionSpec(
        name, value["num_input"], params, result, programs, fused, dividing, donated
    )


def _parse_fused(name: str, value: Sequence[Any], params: Sequence[ParamSpec]) -> FusedWeight:
    dim, *blocks = value
    specs = {param.name: param.spec for param in params}
    sizes = []
    for block in blocks:
        spec = specs.get(block)
        size = spec.shape[dim] if isinstance(spec, TensorSpec) and dim < len(spec.shape) else None
        if not isinstance(size, int):
            raise ValueError(f'"{block}" is no block of the weight "{name}" along dimension {dim}')
        sizes.append(size)
    return FusedWeight(name, dim, tuple(blocks), tuple(sizes))


def parse_signature(text: str) -> Signature:
    """Reads what ``distir_signature`` returned.

    Args:
        text: JSON.

    Raises:
        ValueError: it is not a signature of the version that this package reads, or it contradicts
            itself.
    """
    try:
        written = json.loads(text)
        version = written["version"]
        if version != signature_form.version():
            raise ValueError(
                f"the executable has a signature of version {version}, this package reads version "
                f"{signature_form.version()}; build it again"
            )
        found = signature_form.read(written)
        for type_text, sharding in written.get("shardings", {}).items():
            found.tensors[type_text]["sharding"] = sharding
        for type_text, dims in written.get("dims", {}).items():
            found.tensors[type_text]["dims"] = dims
        named_meshes = written.get("named_meshes", [])
        for mesh, named in zip(found.signature["meshes"], named_meshes, strict=False):
            if named is not None:
                mesh["named"] = named
        specs = _Specs([_parse_mesh(mesh) for mesh in found.signature["meshes"]])
        functions = {
            name: _parse_function(name, each, specs)
            for name, each in found.signature["functions"].items()
        }
        partitions = tuple(json.dumps(groups) for groups in written.get("partitions", ()))
        devices = tuple(found.signature["device_ids"])
        # Of one mesh there may be several views.
        distinct = dict.fromkeys(_parse_named_mesh(each) for each in named_meshes if each)
        device_type = int(written.get("device_type", HOST))
        return Signature(devices, device_type, functions, partitions, tuple(distinct))
    except json.JSONDecodeError as error:
        raise ValueError(f"the executable's distir_signature is no JSON: {error}") from error
    except signature_form.DAMAGED as error:
        raise ValueError(f"the executable's distir_signature is malformed: {error!r}") from error
