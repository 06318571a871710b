"""``distir visualize``: draws shardings."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.notation import parse_dims, parse_shape
from distir_ext.cli.shared.output import add_json, console, new_file, print_json
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import PROGRAMS, SHARDINGS, add_sharding, sharded_program

if TYPE_CHECKING:
    from distir_ext.views.visualize import Sharding, ShardingPicture

EXAMPLE = "distir visualize model.py hidden --mesh dp=2,tp=4 --shard 'x=dp,-'"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "visualize",
        help="draw which device has which block of a tensor",
        description="Draws which device has which block of a variable of a program, or of a shape\n"
        "(docs/visualize.md):\n\n"
        "  distir visualize model.py hidden --mesh dp=2,tp=4 --shard 'x=dp,-'\n"
        "  distir visualize dp,tp --shape 8,16 --mesh dp=2,tp=4\n\n"
        f"{PROGRAMS}",
        epilog=SHARDINGS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument(
        "program", metavar="PROGRAM|DIMS", help="the file of the program; of a shape, its sharding"
    )
    parser.add_argument(
        "variables",
        nargs="*",
        metavar="VARIABLE",
        help="what to draw of a program: a parameter or variable, 'return' for the result",
    )
    parser.add_argument(
        "--shape",
        type=argument_type(parse_shape),
        metavar="SIZE,..",
        help="draw a tensor of this shape, as 8,16, instead of a program's",
    )
    parser.add_argument(
        "--device",
        action="append",
        type=int,
        metavar="ID",
        help="a device whose block is to stand out; may be repeated",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=new_file,
        metavar="FILE",
        help="also write the picture, as SVG: FILE.svg",
    )
    add_sharding(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the picture."""
    if options.output and not options.output.endswith(".svg"):
        raise UsageError(f"--output {options.output}: a picture is a file .svg")
    picture = _of_program(options) if options.shape is None else _of_shape(options)
    if options.output:
        picture.to_svg(options.output)
    if options.json:
        print_json(_data(picture.sharding))
    elif console().is_terminal:
        print(picture)  # as wide as the terminal, with its colours
    else:
        print(picture.text())
    return 0


def _of_program(options: argparse.Namespace) -> ShardingPicture:
    import distir_ext as dx

    if len(options.variables) != 1:
        raise UsageError("one VARIABLE of the program is drawn; 'distir explain' lists them")
    return dx.visualize(
        sharded_program(options), options.variables[0], func=options.func, devices=options.device
    )


def _of_shape(options: argparse.Namespace) -> ShardingPicture:
    import distir_ext as dx

    if options.mesh is None:
        raise UsageError("--shape needs --mesh")
    if options.variables:
        raise UsageError("--shape takes one sharding, as 'dp,tp', and no program")
    for name in ("shard", "plan", "stages", "func", "inputs", "size"):
        if getattr(options, name):
            raise UsageError(f"--{name} is of a program, not of --shape")
    mesh = dx.Mesh(tuple(options.mesh.values()), tuple(options.mesh))
    return dx.visualize(options.shape, mesh, parse_dims(options.program), devices=options.device)


def _data(sharding: Sharding) -> dict[str, Any]:
    is_known = all(isinstance(size, int) for size in sharding.shape)
    return {
        "shape": sharding.shape,
        "dtype": sharding.spec.dtype or None,
        "mesh": dict(zip(sharding.mesh.axis_names, sharding.mesh.shape, strict=True)),
        "dims": sharding.dims,
        "shard_shape": sharding.shard_shape,
        "parts": sharding.parts,
        "blocks": {str(device): block for device, block in sharding.blocks.items()},
        # By device and dimension begin and end, without padding; symbolic sizes have none.
        "indices": {
            str(device): [[each.start, each.stop] for each in slices]
            for device, slices in sharding.indices.items()
        }
        if is_known
        else None,
    }
