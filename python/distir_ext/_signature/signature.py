"""What an executable says about itself: its functions' global types and SPMD programs.

``dx.build`` adds a function ``distir_signature`` that returns JSON (``signature_form``); this
module reads it into classes that know how a global array is divided among devices.

A string among the sizes is a symbolic variable. Where a mesh does not divide a size, shards are
rounded up: the last of them end in padding; what is cut in whole heads says how large a shard is.
A placement has, per mesh axis, the tensor dimension that it shards, or -1; several axes on one
dimension nest in mesh order. The sharding is the same in the words of users, for people to read.

Example: a type of shape ``[8, "n"]`` on a mesh of shape ``[2, 2]`` with placement ``[0, -1]`` is
cut in two along dimension 0; devices 0 and 1 hold the first half, devices 2 and 3 the second.
"""

from __future__ import annotations

import ast
import json
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from distir_ext._meshes.blocks import Blocks, Layout, shard_shape
from distir_ext._meshes.mesh_axes import NamedMesh
from distir_ext._signature import signature_form
from distir_ext._text.printable import shown

HOST = 1  # DLPack's kDLCPU

Dim = int | str


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """A size, which may be an expression of variables; None where one of them is not given.

    >>> size_of("(n + 1) // 2 * m", {"n": 3, "m": 4})
    8

    Raises:
        ValueError: All are given, but it is no arithmetic that is known here.
    """
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    try:
        expression = ast.parse(dim, mode="eval").body
        return _evaluate(expression, sizes)
    except (SyntaxError, ZeroDivisionError):
        return None
    except KeyError as error:
        names = {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)} - {"T"}
        if names <= sizes.keys():
            raise ValueError(
                f"the size {shown(dim)} is computed in a way that Python cannot follow"
            ) from error
        return None


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "truncdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "truncmod": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "if_then_else": lambda condition, a, b: a if condition else b,
    "Select": lambda condition, a, b: a if condition else b,
}


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Raises KeyError for what is no known size, and no arithmetic as TVM prints it."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        operation = _OPERATIONS[type(node.op)]
        return operation(_evaluate(node.left, sizes), _evaluate(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        values = [_evaluate(each, sizes) for each in node.args]
        if node.func.attr.startswith(("int", "uint")) and len(values) == 1:  # T.int64(4)
            return values[0]
        return _FUNCTIONS[node.func.attr](*values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = _COMPARISONS[type(node.ops[0])]
        return compare(_evaluate(node.left, sizes), _evaluate(node.comparators[0], sizes))
    raise KeyError(ast.dump(node))


@dataclass(frozen=True)
class TensorSpec:
    """The global type of one tensor and where its shards are.

    Attributes:
        shape: Sizes; a string is the name of a symbolic variable.
        dtype: TVM's name of the element type.
        mesh_shape: Devices per mesh axis.
        device_ids: Devices of the mesh, row-major.
        placement: Per mesh axis the tensor dimension that it shards, or -1.
        sharding: The same in the words of a plan, with names of mesh axes: ``"('dp', None)"``.
        dims: The names alone, per dimension from major to minor.
        named_mesh: The mesh that has these axes.
        shards: Per dimension the size of every shard, where it is cut in whole grains (heads) and
            so is not the least; else 0. A string is an expression of symbolic variables. Empty
            where that is so of none.
    """

    shape: tuple[Dim, ...]
    dtype: str
    mesh_shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    placement: tuple[int, ...]
    sharding: str = ""
    dims: tuple[tuple[str, ...], ...] = ()
    named_mesh: NamedMesh | None = None
    shards: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        if prod(self.mesh_shape) != len(self.device_ids):
            raise ValueError(
                f"a mesh of shape {list(self.mesh_shape)} has {len(self.device_ids)} devices"
            )
        if len(self.placement) != len(self.mesh_shape) or not all(
            -1 <= dim < len(self.shape) for dim in self.placement
        ):
            raise ValueError(
                f"placement {list(self.placement)} does not fit a tensor of shape "
                f"{list(self.shape)} on a mesh of shape {list(self.mesh_shape)}"
            )
        if self.named_mesh is not None and len(self.dims) != len(self.shape):
            raise ValueError(f"dims {self.dims} do not fit a tensor of shape {list(self.shape)}")
        if self.shards and not self._shards_fit():
            raise ValueError(f"shards {self.shards} do not fit a tensor of {list(self.shape)}")

    def _shards_fit(self) -> bool:
        """Whether all shards together hold all of each dimension, and none is larger than it."""
        return len(self.shards) == len(self.shape) and all(
            held == 0
            or isinstance(held, str)
            or isinstance(size, str)
            or (isinstance(size, int) and -(-size // parts) <= held <= size)
            for size, parts, held in zip(self.shape, self.parts, self.shards, strict=True)
        )

    @cached_property
    def layout(self) -> Layout:
        """How it lies on the mesh."""
        return Layout(self.mesh_shape, self.device_ids, self.placement, len(self.shape))

    @property
    def _cut(self) -> Blocks:
        return self.layout.blocks

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Of what mostly differs: there may be thousands of devices."""
        return hash((self.shape, self.dtype, self.mesh_shape, self.placement))

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut."""
        return self._cut.parts

    @property
    def blocks(self) -> Mapping[int, tuple[int, ...]]:
        """Which part of each dimension a device holds, for every device of the mesh."""
        return self._cut.of_device

    @cached_property
    def first_holders(self) -> dict[tuple[int, ...], int]:
        """By block, the first device that holds it."""
        return self._holders(self._cut.of_device)

    def holders(self, devices: Container[int]) -> dict[tuple[int, ...], int]:
        """By block, the first device of some that holds it."""
        if all(device in devices for device in self.first_holders.values()):
            return self.first_holders
        return self._holders(devices)

    def _holders(self, devices: Container[int]) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for device, block in self.blocks.items():
            if device in devices:
                found.setdefault(block, device)
        return found

    @property
    def placement_text(self) -> str:
        """The placement as TVM writes it: ``"S[0], R"``."""
        return ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in self.placement)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of every shard of a global array of this shape.

        Where the parts do not divide a size, the last of them are padded. What of a symbolic
        dimension is cut in whole grains is known of :meth:`with_sizes` alone.
        """
        least = shard_shape(shape, self.parts)
        if not self.shards:
            return least
        return tuple(
            held if isinstance(held, int) and held else size
            for held, size in zip(self.shards, least, strict=True)
        )

    def with_sizes(self, sizes: Mapping[str, int]) -> TensorSpec:
        """The type with the sizes of shards that follow from those of symbolic variables.

        Raises:
            ValueError: some are not given.
        """
        if not any(isinstance(held, str) for held in self.shards):
            return self
        shards: list[Dim] = []
        for held in self.shards:
            size = size_of(held, sizes)
            if size is None:
                raise ValueError(
                    f"how {self} is cut depends on {held}, which no argument before it states"
                )
            shards.append(size)
        known = replace(self, shards=tuple(shards))
        known.__dict__["layout"] = self.layout  # where it lies is the same
        return known

    def begin(self, device: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Where the shard of a device begins in a global array of this shape."""
        extent = self.local_shape(shape)
        return tuple(i * size for i, size in zip(self.blocks[device], extent, strict=True))

    def uneven(self, shape: Sequence[int]) -> list[int]:
        """The dimensions of an array of this shape that the parts do not divide."""
        sizes = zip(shape, self.local_shape(shape), self.parts, strict=True)
        return [dim for dim, (size, local, parts) in enumerate(sizes) if local * parts != size]

    def __str__(self) -> str:
        shape = ", ".join(shown(str(dim)) for dim in self.shape)
        text = f"{self.dtype}[{shape}]"
        return f"{text} {self.sharding}" if self.sharding and len(self.device_ids) > 1 else text


@dataclass(frozen=True)
class TupleSpec:
    """A tuple of types."""

    fields: tuple[Spec, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(str(each) for each in self.fields) + ")"


@dataclass(frozen=True)
class ShapeSpec:
    """A shape value; every worker gets all of it."""

    def __str__(self) -> str:
        return "shape"


@dataclass(frozen=True)
class ValueSpec:
    """Anything else; every worker has one of its own, which it keeps."""

    def __str__(self) -> str:
        return "value"


Leaf = TensorSpec | ShapeSpec | ValueSpec
Spec = Leaf | TupleSpec


def leaves(spec: Spec) -> Iterator[Leaf]:
    """The types in a nested tuple, left to right."""
    if isinstance(spec, TupleSpec):
        for each in spec.fields:
            yield from leaves(each)
    else:
        yield spec


def unflatten(spec: Spec, values: Iterator[Any]) -> Any:
    """Nests values, given in the order of :func:`leaves`, as tuples of the type's form."""
    if isinstance(spec, TupleSpec):
        return tuple(unflatten(each, values) for each in spec.fields)
    return next(values)


@dataclass(frozen=True)
class ParamSpec:
    """A parameter of a function."""

    name: str
    spec: Spec


@dataclass(frozen=True)
class Program:
    """What some devices run for a function.

    Attributes:
        name: Of the function in the executable.
        device_ids: Devices that run it.
        params: Indices of the function's parameters that it takes, in order.
        results: Indices of the leaves of the function's result that it returns, in order.
        sizes: Symbolic dimensions that none of its parameters has; the program takes their global
            sizes as one more argument, a shape, if there are any.
        virtual_stage: A device runs its programs of a function in order of their virtual stages.
            What one of them returns is not a result but the last arguments of the next, unless it
            is the last.
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
        programs: What devices run for it, in the order in which values go through them; no device
            has two of one virtual stage.
        fused: Weights that are several parameters.
        dividing: By name of a symbolic size that has to divide into its shards, since it cannot
            be padded: because of which operator; empty text where nothing was to be padded.
    """

    name: str
    num_input: int
    params: tuple[ParamSpec, ...]
    result: Spec
    programs: tuple[Program, ...]
    fused: tuple[FusedWeight, ...] = ()
    dividing: Mapping[str, str] = field(default_factory=dict, hash=False)

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
        """By name of a weight that is several parameters, the type of the whole."""
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
        device_type: What they are, as DLPack numbers them: 1 for the host's cores, 2 for CUDA.
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
        return ShapeSpec()
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
    return FunctionSpec(name, value["num_input"], params, result, programs, fused, dividing)


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
