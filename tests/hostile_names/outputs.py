"""Every output about a program, and checks that Python, terminals and HTML read names as text."""

from __future__ import annotations

import ast
import functools
import html.parser
import io
import json
import re
import tokenize
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import tvm
from tests.hostile_names.entities import MARK
from tests.hostile_names.errors import CLUSTER, refused
from tvm import relax

import distir_ext as dx
from distir_ext.views.page import report_page
from distir_ext.views.tables.costs import collective_table, sharding_table


class Program:
    """A program, with what several outputs start from."""

    def __init__(self, mod: tvm.IRModule, folder: Path, name: str) -> None:
        self.mod = mod
        self.name = name
        self.folder = folder

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """Numbers for the sizes, by the names that these have in lowered modules."""
        return {str(each.name): 16 for each in self.sizes_of()}

    def sizes_of(self):
        for function in self.lowered.functions.values():
            if isinstance(function, relax.Function):
                yield from relax.analysis.free_symbolic_vars(function)
                yield from relax.analysis.defined_symbolic_vars(function)

    @functools.cached_property
    def propagated(self) -> tvm.IRModule:
        return dx.transform.PropagateSharding()(self.mod)

    @functools.cached_property
    def lowered(self) -> tvm.IRModule:
        return dx.lower(self.mod, dump_dir=self.folder / "dump")

    @functools.cached_property
    def estimate(self):
        return dx.analysis.estimate(self.lowered, CLUSTER, sizes=self.sizes)

    @functools.cached_property
    def timeline(self):
        return dx.analysis.simulate(self.lowered, CLUSTER, function=self.main[0], sizes=self.sizes)

    @functools.cached_property
    def reshards(self):
        return dx.analysis.reshards(self.mod, CLUSTER)

    @functools.cached_property
    def main(self) -> tuple[str, relax.Function]:
        """The function that calls the other one."""
        functions = [
            (gv.name_hint, function)
            for gv, function in self.propagated.functions.items()
            if isinstance(function, relax.Function)
        ]
        return max(functions, key=lambda each: len(each[1].params))

    @functools.cached_property
    def variables(self) -> list[relax.Var]:
        function = self.main[1]
        return [*function.params, *(each.var for each in function.body.blocks[0].bindings)]

    def pictures(self) -> list[dx.ShardingPicture]:
        return [dx.visualize(self.mod, str(each.name)) for each in self.variables[:2]]


def refusals(program: Program) -> Iterator[str]:
    """Errors that name what there is."""
    name, _ = program.main
    mesh = dx.meshes(program.mod)[0] if hasattr(dx, "meshes") else None
    attempts = (
        lambda: dx.explain(program.mod, "missing"),
        lambda: dx.visualize(program.mod, "missing"),
        lambda: dx.explain(program.mod, "missing", func="missing"),
        lambda: dx.annotate(program.mod, mesh, {"missing": (None, None)}, func=name),
        lambda: dx.annotate(program.mod, mesh, {".*": ("missing", None)}, func=name),
        lambda: dx.annotate(program.mod, mesh, {".*": (None,)}, func=name),
        lambda: dx.annotate(program.mod, mesh, {".*": (None, None)}, func="missing"),
    )
    for attempt in attempts:
        try:
            attempt()
        except (TypeError, ValueError) as error:
            yield str(error)
        else:
            raise AssertionError("nothing is refused")


def figures(program: Program) -> Iterator[str]:
    kinds = ("roofline", "memory", "collectives")
    plots = [program.timeline.plot(), *map(program.estimate.plot, kinds)]
    for plot in (*plots, program.pictures()[0].plot()):
        file = io.StringIO()
        plot.savefig(file, format="svg")
        yield file.getvalue()


def perfetto(program: Program) -> str:
    program.timeline.to_perfetto(program.folder / "trace.json")
    return (program.folder / "trace.json").read_text()


def dumped(program: Program, suffix: str) -> Iterator[str]:
    assert program.lowered
    for file in (program.folder / "dump").glob(f"*{suffix}"):
        yield file.read_text()


OUTPUTS: dict[str, tuple[str, Callable[[Program], object]]] = {
    "script, annotated": ("python", lambda it: dx.script(it.mod)),
    "script, propagated": ("python", lambda it: dx.script(it.propagated)),
    "script, lowered": ("python", lambda it: dx.script(it.lowered)),
    "script without comments": ("python", lambda it: dx.script(it.propagated, comments=False)),
    "dump": ("python", lambda it: dumped(it, ".py")),
    "page of the dump": ("html", lambda it: dumped(it, ".html")),
    "explain": ("terminal", lambda it: map(str, dx.explain(it.mod, it.variables))),
    "summary": ("terminal", lambda it: str(dx.summary(it.mod))),
    "summary as HTML": ("html", lambda it: dx.summary(it.mod)._repr_html_()),
    "estimate": ("terminal", lambda it: str(it.estimate)),
    "estimate as HTML": ("html", lambda it: it.estimate._repr_html_()),
    "estimate as JSON": ("json", lambda it: it.estimate.to_json()),
    "report": (
        "html",
        lambda it: report_page(it.main[0], it.estimate, dx.analysis.shardings(it.mod)),
    ),
    "timeline": ("terminal", lambda it: str(it.timeline)),
    "timeline as HTML": ("html", lambda it: it.timeline._repr_html_()),
    "timeline for Perfetto": ("json", perfetto),
    "reshards": ("terminal", lambda it: str(it.reshards)),
    "reshards, one by one": ("terminal", lambda it: map(str, it.reshards.reshards)),
    "reshards as HTML": ("html", lambda it: it.reshards._repr_html_()),
    "reshards as JSON": ("json", lambda it: it.reshards.to_json()),
    "difference": ("terminal", lambda it: str(dx.analysis.diff(it.estimate, it.estimate))),
    "pictures": ("terminal", lambda it: (each.text() for each in it.pictures())),
    "pictures as SVG": ("xml", lambda it: (each._repr_svg_() for each in it.pictures())),
    "pictures as HTML": ("html", lambda it: (each._repr_html_() for each in it.pictures())),
    "figures": ("xml", figures),
    "graph": ("dot", lambda it: dx.analysis.graph(it.propagated).to_dot()),
    "shardings": (
        "table",
        lambda it: sharding_table(dx.analysis.shardings(it.mod)),
    ),
    "collectives": ("table", lambda it: collective_table(dx.analysis.collectives(it.lowered))),
    "errors": ("terminal", refusals),
    "errors of every entry": ("terminal", lambda it: refused(it, it.name)),
}


_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode: what terminals obey, what nobody sees, halves of characters, lines."""


def check_characters(text: str) -> None:
    """Has new lines, tabs and what is seen; joiners belong to words of some languages."""
    for character in set(text) - set("\n\t\u200c\u200d"):
        assert unicodedata.category(character) not in _INVISIBLE, ascii(character)
        assert ord(character) & 0xFFFE != 0xFFFE, ascii(character)


def check_python(text: str) -> None:
    """It is a program, and the marked word is in comments, strings and longer names only."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        names = [getattr(node, each, None) for each in ("id", "attr", "arg", "name")]
        assert MARK not in names
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            check_characters(token.string)


def check_terminal(text: str) -> None:
    """Nothing that a terminal obeys, and no name begins a line."""
    check_characters(text)
    assert not re.search(rf"(?m)^[ │]*{MARK}", text), text


class _Elements(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
        assert tag != "evil"
        assert all(name.isprintable() for name, _ in attrs)


def check_html(text: str) -> None:
    check_characters(text)
    _Elements(convert_charrefs=True).feed(text)
    assert "<evil" not in text


def check_xml(text: str) -> None:
    tree = ElementTree.fromstring(text)
    assert not [each for each in tree.iter() if "evil" in each.tag]


def check_dot(text: str) -> None:
    """Strings end where they should: what is between them is of the language."""
    check_characters(text)
    rest = re.sub(r'"(?:[^"\\\n]|\\.)*"', "", text)
    assert MARK not in rest
    assert '"' not in rest


def check_table(table) -> None:
    from distir_ext.text.tables import as_html, as_text

    check_terminal(as_text([table]))
    check_html(as_html([table]))


CHECKS: dict[str, Callable] = {
    "python": check_python,
    "terminal": check_terminal,
    "html": check_html,
    "xml": check_xml,
    "dot": check_dot,
    "json": json.loads,
    "table": check_table,
}
