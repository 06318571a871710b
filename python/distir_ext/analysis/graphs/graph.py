"""Draws a distributed module as a graph."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import relax

from distir_ext.analysis.graphs.dot import to_dot
from distir_ext.analysis.graphs.program_graph import (
    PARAMETER,
    RESULT,
    FunctionGraph,
    function_graphs,
)
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase, steps_until
from distir_ext.pipelines.lowering import run_steps
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

# Graphviz takes a second for some hundred operators; what takes longer is not a picture.
_SECONDS = 120


@dataclass(frozen=True)
class Graph:
    """Graph of a module: operators, shardings of their operands, and redistributions.

    Notebooks show it as a picture, where Graphviz is installed.
    """

    functions: tuple[FunctionGraph, ...]
    """Each is a frame of the picture."""

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language; needs nothing that is not installed."""
        return to_dot(self.functions)

    def to_svg(self, path: str | os.PathLike[str] | None = None) -> str:
        """The picture, which Graphviz's ``dot`` lays out.

        Args:
            path: A file to write it to, if any.

        Raises:
            RuntimeError: There is no ``dot``, or it failed.
            OSError: The file cannot be written.
        """
        dot = shutil.which("dot")
        if dot is None:
            raise RuntimeError(
                "a picture of a graph needs Graphviz's program dot, which is not on PATH: apt "
                "install graphviz, brew install graphviz or conda install graphviz; to_dot() gives "
                "the graph as text"
            )
        try:
            done = subprocess.run(
                [dot, "-Tsvg"],
                input=self.to_dot(),
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"dot has not drawn {self} in {_SECONDS} s; draw one function (func=)"
            ) from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"dot failed: {error.stderr.strip()}") from error
        # The XML header in front of the picture cannot be part of a page.
        picture = done.stdout[done.stdout.index("<svg") :]
        if path is not None:
            Path(path).write_text(picture, encoding="utf-8")
        return picture

    def _repr_svg_(self) -> str | None:
        return self.to_svg() if shutil.which("dot") else None

    def __str__(self) -> str:
        operators = sum(
            each.kind not in (PARAMETER, RESULT) for f in self.functions for each in f.nodes
        )
        functions = counted(len(self.functions), "function")
        return f"a graph of {functions} with {counted(operators, 'operator')}"

    def __repr__(self) -> str:
        return f"<{self}; to_dot() or to_svg() show it>"


@short_tracebacks
def graph(mod: tvm.IRModule, func: str | None = None) -> Graph:
    """The graph of a module: operators, shardings on edges, redistributions and collectives.

    Equal layers that follow each other are drawn once, in a frame that says how many there are;
    dashed edges lead to the next layer.

    Args:
        mod: A module in any phase before LowerCCL. One that is only annotated is propagated first.
        func: The function to draw; all Relax functions by default.

    Raises:
        ValueError: Nothing in the module is distributed, or there is no such function.
        TypeError: It is no module.
    """
    check_module(mod)
    if phase(mod) in (None, "annotated"):
        mod = run_steps(mod, None, steps_until("propagated"), tvm.transform.Sequential([]))
    names = [
        str(gv.name_hint)
        for gv, function in mod.functions_items()
        if isinstance(function, relax.Function)
    ]
    if func is not None and func not in names:
        raise ValueError(
            f"the module has no Relax function {func!r}{did_you_mean(func, names)}; it has: "
            f"{', '.join(sorted(names))}"
        )
    return Graph(tuple(function_graphs(mod, sorted(names) if func is None else [func])))
