"""Prints graphs of programs in Graphviz's DOT language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distir_ext.analysis.graphs.program_graph import (
    CALL,
    COMPUTED,
    PARAMETER,
    RESULT,
    Edge,
    FunctionGraph,
    Node,
)
from distir_ext.reshards.reshards_result import (
    OPERATOR,
    REDUCTION,
    RESHARD,
    STATED,
    TRANSFER,
)
from distir_ext.text import palette
from distir_ext.text.printable import TextLines, printable, shown

# Colours of nodes without a colour of their own.
_PLAIN, _GIVEN = "#FFFFFF", "#E5E5E5"


@dataclass(frozen=True)
class Style:
    """Style in which a kind of node is drawn."""

    says: str
    """Name in the legend."""

    fill: str
    shape: str
    margin: str = "0.12,0.04"

    @property
    def text(self) -> str:
        """The colour of what is written on it."""
        return palette.text_on(self.fill)


# Shapes differ, too, for who does not see colours.
STYLES = {
    PARAMETER: Style("parameter", _GIVEN, "box"),
    COMPUTED: Style("operator", _PLAIN, "box"),
    CALL: Style("call of a function", palette.REDDISH_PURPLE, "component"),
    RESULT: Style("result", _GIVEN, "box"),
    RESHARD: Style("implicit redistribution", palette.VERMILION, "hexagon", "0,0"),
    STATED: Style("stated redistribution", palette.BLUISH_GREEN, "hexagon", "0,0"),
    REDUCTION: Style("reduction", palette.SKY_BLUE, "invtrapezium", "0,0"),
    OPERATOR: Style("sent by an operator", palette.ORANGE, "parallelogram", "0,0"),
    TRANSFER: Style("transfer between meshes", palette.BLUE, "cds"),
}
# An edge whose value is partial; as legible on white as others.
_PARTIAL = palette.BLUE
_EDGE = "#555555"
_FRAME = palette.GREY
# Legible on light and on dark pages.
_BACKGROUND = _PLAIN
_FONT = "Helvetica,Arial,sans-serif"


def to_dot(functions: Sequence[FunctionGraph]) -> str:
    """The text of a graph with a frame for each function and a legend."""
    return "\n".join(_lines(functions)) + "\n"


def _lines(functions: Sequence[FunctionGraph]) -> Iterator[str]:
    yield "digraph program {"
    yield f'  graph [bgcolor="{_BACKGROUND}", fontname="{_FONT}", fontsize=11, rankdir=TB, '
    yield "    ranksep=0.35, nodesep=0.25, compound=true]"
    yield f'  node [fontname="{_FONT}", fontsize=10, style=filled, height=0.3]'
    yield f'  edge [fontname="{_FONT}", fontsize=8, color="{_EDGE}", arrowsize=0.6]'
    for number, function in enumerate(functions):
        yield from _function(number, function)
    first = {function.name: function.nodes[0].key for function in functions if function.nodes}
    for function in functions:
        for node in function.nodes:
            if node.callee in first:
                yield (
                    f"  {_quoted(node.key)} -> {_quoted(first[node.callee])} "
                    f'[style=dotted, constraint=false, color="{STYLES[CALL].fill}"]'
                )
    yield from _legend(functions)
    yield "}"


def _function(number: int, function: FunctionGraph) -> Iterator[str]:
    yield f"  subgraph cluster_{number} {{"
    name = _quoted(shown(function.name))
    yield f'    label={name}; labeljust=l; color="{_FRAME}"; fontcolor="#000000"'
    inside: set[str] = set()
    by_key = {node.key: node for node in function.nodes}
    for index, (count, keys) in enumerate(function.layers):
        inside.update(keys)
        yield f"    subgraph cluster_{number}_{index} {{"
        yield f'      label="x {count}"; labeljust=r; style="dashed,rounded"; penwidth=1.5'
        yield from (f"      {_node(by_key[key])}" for key in keys)
        yield "    }"
    yield from (f"    {_node(node)}" for node in function.nodes if node.key not in inside)
    yield from (f"    {_edge(edge)}" for edge in function.edges)
    yield "  }"


def _node(node: Node) -> str:
    style = STYLES[node.kind]
    label = shown(node.label)
    if node.kind not in (PARAMETER, RESULT) and node.variable != node.label:
        label = TextLines([shown(node.label), shown(node.variable)])
    return (
        f"{_quoted(node.key)} [label={_quoted(label)}, shape={style.shape}, "
        f'fillcolor="{style.fill}", fontcolor="{style.text}", margin="{style.margin}"]'
    )


def _edge(edge: Edge) -> str:
    color = _PARTIAL if "partial" in edge.sharding else _EDGE
    attributes = [
        f"label={_quoted(shown(edge.sharding))}",
        f'color="{color}"',
        f'fontcolor="{color}"',
    ]
    if edge.to_next:
        attributes += ["style=dashed", "constraint=false"]
    return f"{_quoted(edge.source)} -> {_quoted(edge.target)} [{', '.join(attributes)}]"


def _legend(functions: Iterable[FunctionGraph]) -> Iterator[str]:
    used = {node.kind for function in functions for node in function.nodes}
    cells = "".join(
        f'<td bgcolor="{style.fill}"><font color="{style.text}">{style.says}</font></td>'
        for kind, style in STYLES.items()
        if kind in used
    )
    yield (
        f'  legend [shape=plain, fillcolor="{_BACKGROUND}", label=<<table border="0" '
        f'cellborder="1" cellspacing="4" cellpadding="4" color="{_FRAME}"><tr>{cells}</tr>'
        "</table>>]"
    )


def _quoted(text: str) -> str:
    r"""A string of DOT.

    Example:
        >>> print(_quoted('say "a"\nb'))
        "say \"a\"\nb"
    """
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
