"""``distir explain``: prints why a variable is sharded as it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distir_ext.cli.shared.clusters import CLUSTER_FILES, UNSTATED, add_cluster, cluster_of
from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.output import add_json, new_file, print_json, show_tables, write_text
from distir_ext.cli.shared.parser import Commands
from distir_ext.cli.shared.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_sharded_program,
    devices_of,
    on_cluster,
    sharded_program,
)
from distir_ext.text.errors.spelling import did_you_mean

if TYPE_CHECKING:
    import tvm

    from distir_ext.explain.variables import VariableSharding

_GRAPHS = (".svg", ".dot")

EXAMPLE = "distir explain model.py hidden --mesh dp=2,tp=4 --shard 'up=-,tp'"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "explain",
        help="say why variables of a program are sharded as they are",
        description="Says why variables are sharded as they are: the chain of operators back to\n"
        "what states it, what is redistributed, what that costs, and what to state to avoid it\n"
        f"(docs/explain.md). Without names, it lists the variables.\n\n{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    parser.add_argument(
        "variables", nargs="*", metavar="VARIABLE", help="parameters and variables, as printed"
    )
    parser.add_argument(
        "--graph",
        type=new_file,
        metavar="FILE",
        help="also draw operators, shardings and what moves: FILE.svg, which needs Graphviz, or "
        "FILE.dot, its input",
    )
    add_cluster(parser, UNSTATED)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the explanations, or the list of variables."""
    import distir_ext as dx
    from distir_ext.views.tables.costs import variable_table

    if options.graph and not options.graph.endswith(_GRAPHS):
        raise UsageError(f"--graph {options.graph}: a graph is a file {' or '.join(_GRAPHS)}")
    mod = sharded_program(options)
    if options.cluster is not None:
        mod = on_cluster(mod, cluster_of(options.cluster, devices_of(mod)))
    if options.graph:
        graph = dx.analysis.graph(mod, options.func)
        is_dot = options.graph.endswith(".dot")
        write_text(options.graph, graph.to_dot() if is_dot else graph.to_svg())
    if options.variables:
        found = dx.explain(mod, options.variables, options.func)
        if options.json:
            data = [{"variable": each.variable, "lines": list(each.lines)} for each in found]
            print_json({"program": options.program, "explanations": data})
        else:
            print("\n\n".join(str(each) for each in found))
        return 0
    listed = _variables(mod, options.func)
    if options.json:
        data = [
            {"function": function, "variable": each.name, "sharding": each.sharding}
            for function, variables in listed.items()
            for each in variables
        ]
        print_json({"program": options.program, "variables": data})
    else:
        show_tables(variable_table(name, variables) for name, variables in listed.items())
    return 0


def _variables(mod: tvm.IRModule, func: str | None) -> dict[str, list[VariableSharding]]:
    """Returns the shardings of variables by function; an annotated module is propagated first."""
    from tvm import relax

    import distir_ext as dx
    from distir_ext.explain.variables import variable_shardings

    if dx.phase(mod) == "annotated":
        mod = dx.transform.PropagateSharding()(mod)
    functions = {
        str(name.name_hint): function
        for name, function in mod.functions_items()
        if isinstance(function, relax.Function)
    }
    if func is not None and func not in functions:
        raise ValueError(f"the program has no function {func!r}{did_you_mean(func, functions)}")
    names = functions if func is None else [func]
    return {name: variable_shardings(mod, functions[name]) for name in names}
