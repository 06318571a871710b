"""Adds and reads the arguments for a program, its mesh and its plan."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any, cast

from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.notation import Dims, parse_dims, parse_shard, parse_sizes
from distir_ext.cli.shared.parser import argument_type
from distir_ext.mesh.dims import Dim, DimEntry, TensorDims
from distir_ext.text.errors.plan_names import SEARCHED
from distir_ext.text.files.argument_files import is_plan_name, json_object

if TYPE_CHECKING:
    import tvm

    from distir_ext.mesh.cluster import Cluster
    from distir_ext.mesh.mesh import Mesh

PROGRAMS = """A program is a Python file with a TVMScript module ('model.py', or 'model.py:MLP' if
it has several), as dx.script writes them, too; an ONNX file ('.onnx'); a saved torch.export
('.pt2'); or a folder that dx.save wrote. Python files are run, and a '.pt2' can run code as well:
take them from whom you trust."""

SHARDINGS = """A sharding has an entry per dimension: an axis, several ('dp+tp'), or '-' for none:

  --mesh dp=2,tp=4 --shard 'x=dp,-' --shard '.*up.*=-,tp'

A pattern is a regular expression that matches a whole name of a parameter, a result ('return') or
a variable. The first that matches decides. 'replicated' is a sharding of any dimensions. A plan's
FILE is a JSON object of the same:

  {"x": ["dp", null], ".*up.*": "-,tp", "b": null}

'--plan tp' shards pairs of products by columns and rows, '--plan fsdp' each weight by its largest
dimension, and the batch; the axes are those called so, or the only one. '--plan auto' searches, as
'distir autoshard' does, for H100s.

A dimension is open with '...': 'y=dp+...,-', in JSON [["dp", "..."], null]. A priority stands
behind it: 'w=tp@1,-', in JSON [{"axes": ["tp"], "open": false, "priority": 1}, null]. Axes that
must not shard a tensor are stated in JSON alone: {"dims": ["...", null], "replicated": ["tp"]}."""


def add_sharded_program(parser: argparse.ArgumentParser) -> None:
    """Adds the program, its sizes, its mesh and its plan."""
    parser.add_argument("program", metavar="PROGRAM", help="the file of the program, or its folder")
    add_sharding(parser)


def add_mesh(
    parser: argparse.ArgumentParser, text: str = "the devices, as dp=2,tp=4", **options: Any
) -> None:
    """Adds a mesh by the sizes of its axes.

    Args:
        parser: That of the command.
        text: Help for the argument.
        options: Further ones of ``add_argument``.
    """
    parser.add_argument(
        "--mesh", type=argument_type(parse_sizes), metavar="AXIS=SIZE,..", help=text, **options
    )


def add_sharding(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that state how a program is sharded."""
    add_mesh(
        parser,
        "the devices, as dp=2,tp=4; left out if the program is annotated already, as an ONNX "
        "file with a device configuration is",
    )
    parser.add_argument(
        "--configuration",
        metavar="NAME",
        help="which device configuration of an ONNX file shards it, if it has several",
    )
    add_shards(parser)
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="a JSON file of patterns and shardings, or tp, fsdp or auto, which find them by what "
        "the program computes; what '--shard' says comes first",
    )
    add_function(parser)


def add_shards(parser: argparse.ArgumentParser) -> None:
    """Adds the shardings that stand on the command line."""
    parser.add_argument(
        "--shard",
        action="append",
        default=[],
        type=argument_type(parse_shard),
        metavar="PATTERN=DIMS",
        help="shard what a pattern matches, as 'x=dp,-'; may be repeated",
    )


def add_function(parser: argparse.ArgumentParser) -> None:
    """Adds which function is sharded, its stages, its inputs and its sizes."""
    parser.add_argument(
        "--stages",
        metavar="AXIS",
        help="cut the function into stages of a pipeline along this axis of the mesh",
    )
    parser.add_argument(
        "--func",
        metavar="NAME",
        help="the function to shard (default: main, or the only one)",
    )
    parser.add_argument(
        "--inputs",
        metavar="NAME,..",
        type=lambda text: [name.strip() for name in text.split(",")],
        help="the parameters that every call passes; the others are weights",
    )
    add_sizes(parser)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds numbers for symbolic sizes, which :func:`sizes_of` reads."""
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        type=argument_type(parse_sizes),
        metavar="NAME=NUMBER",
        help="a number for a symbolic size, as n=2048; may be repeated",
    )


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    """The numbers that the arguments have for symbolic sizes."""
    return {name: size for each in options.size for name, size in each.items()}


def sharded_program(options: argparse.Namespace) -> tvm.IRModule:
    """The program, annotated as the arguments say.

    Raises:
        ValueError: There is no such program, the arguments do not fit it, or nothing in it is
            distributed then.
        OSError: A file cannot be read.
    """
    import distir_ext as dx
    from distir_ext.interop._program_files import read_program
    from distir_ext.structure.sizes import bind_sizes

    if options.mesh is not None and options.configuration is not None:
        raise UsageError("--configuration is for an ONNX file that is sharded without --mesh")
    for name in ("shard", "plan", "stages", "inputs"):
        if options.mesh is None and getattr(options, name):
            raise UsageError(f"--{name} needs --mesh")
    plan: dict[str, Any] = dict(options.shard)
    by_name = bool(options.plan) and is_plan_name(options.plan)
    if options.plan and not by_name:
        plan.update({name: dims for name, dims in read_plan(options.plan) if name not in plan})
    mod = read_program(options.program, options.mesh is None, options.configuration)
    mod = bind_sizes(mod, sizes_of(options))
    reached = dx.phase(mod)
    if options.mesh is not None:
        if reached in ("lowered", "runtime"):
            raise ValueError(f"{options.program} is {reached} already; leave --mesh out")
        func = options.func or default_function(mod)
        mesh = dx.Mesh(tuple(options.mesh.values()), tuple(options.mesh))
        searched = by_name and options.plan == SEARCHED
        if by_name and not searched:
            plan.update(_found_by_name(mod, options.plan, mesh, func, options.inputs, list(plan)))
        mod = dx.annotate(mod, mesh, plan, func, options.inputs)
        if searched:  # what is stated stays as it is
            mod = dx.annotate(mod, mesh, SEARCHED, func, options.inputs)
        if options.stages:
            mod = dx.transform.AssignStages(mesh, options.stages, func=func)(mod)
    if dx.phase(mod) is None:
        raise ValueError(
            f"nothing in {options.program} is distributed; state --mesh and --shard, as in --mesh "
            "dp=2 --shard 'x=dp,-', or annotate it there"
        )
    return mod


def check_sizes(mod: tvm.IRModule) -> None:
    """Raises an error for a module with symbolic sizes that have no number.

    Raises:
        ValueError: It has symbolic sizes.
    """
    from distir_ext.structure.sizes import symbolic_sizes

    lacking = [f"--size {name}=.." for name in symbolic_sizes(mod)]
    if lacking:
        raise ValueError(f"the program has symbolic sizes; state {' '.join(lacking)}")


def on_cluster(mod: tvm.IRModule, cluster: Cluster) -> tvm.IRModule:
    """The module with a cluster, which decides conflicts; one that is lowered has decided them."""
    import distir_ext as dx

    if dx.phase(mod) in ("lowered", "runtime"):
        return mod
    return dx.transform.SetCluster(cluster)(mod)


def devices_of(mod: tvm.IRModule) -> int:
    """Counts the devices that the meshes of a module have together."""
    import distir_ext as dx

    return len({device for mesh in dx.meshes(mod) for device in mesh.device_ids})


def default_function(mod: tvm.IRModule) -> str:
    """The function of a program that is sharded where none is named: main, or the only one.

    Raises:
        ValueError: There are several, and none of them is main.
    """
    from tvm import relax

    names = [
        str(name.name_hint)
        for name, function in mod.functions_items()
        if isinstance(function, relax.Function)
        and function.attrs is not None
        and "global_symbol" in function.attrs
    ]
    if "main" in names or not names:
        return "main"
    if len(names) > 1:
        raise ValueError(f"the program has no function main; name one by --func: {names}")
    return names[0]


def _found_by_name(
    mod: tvm.IRModule,
    plan: str,
    mesh: Mesh,
    func: str,
    inputs: list[str] | None,
    stated: list[str],
) -> dict[str, Any]:
    """The entries of a plan by name, but for what patterns state already."""
    from distir_ext.annotate.annotations import relax_function
    from distir_ext.annotate.axes import Axes
    from distir_ext.annotate.named_plans import named_plan

    relax_function(mod, func)  # refuses others
    found = named_plan(mod, plan, Axes(mesh, {}, can_be_given=False), func, inputs)
    return {
        re.escape(name): dims
        for name, dims in found.dims.items()
        if not any(re.fullmatch(pattern, name) for pattern in stated)
    }


def read_plan(file: str) -> list[tuple[str, Dims]]:
    """The entries of a plan in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It has no plan in it; names the file and the pattern.
    """
    entries = json_object(file, "plan")
    return [(pattern, _dims(file, pattern, dims)) for pattern, dims in entries.items()]


def _dims(file: str, pattern: str, dims: Any) -> Dims:
    if isinstance(dims, str):
        try:
            return parse_dims(dims)
        except ValueError as error:
            raise ValueError(f"the plan {file}, {pattern!r}: {error}") from error
    if dims is None:
        return None
    if isinstance(dims, dict) and set(dims) == {"dims", "replicated"}:
        entries = _dims(file, pattern, dims["dims"])
        if entries is None or not _is_names(dims["replicated"]):
            raise ValueError(f"the plan {file}, {pattern!r}: {json.dumps(dims)} is no sharding")
        return TensorDims(*entries, replicated=dims["replicated"])
    if not isinstance(dims, list) or not all(map(_is_entry, dims)):
        raise ValueError(
            f"the plan {file}, {pattern!r}: {json.dumps(dims)} is no sharding, as "
            '["dp", null], "dp,-" or null'
        )
    try:
        return tuple(map(_entry, dims))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the plan {file}, {pattern!r}: {error}") from error


def _entry(entry: Any) -> DimEntry:
    """An entry of dims; JSON has "..." for what Python calls so."""
    if isinstance(entry, list):
        return tuple(... if name == "..." else name for name in entry)
    if isinstance(entry, dict):
        return Dim(*entry.get("axes", ()), **{k: v for k, v in entry.items() if k != "axes"})
    return ... if entry == "..." else cast("str | None", entry)


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, dict):
        return set(entry) <= {"axes", "open", "priority"} and _is_names(entry.get("axes", []))
    return entry is None or isinstance(entry, str) or _is_names(entry)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
