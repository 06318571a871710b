"""Calls public functions with a hostile name in each argument; collects texts of their errors."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tvm import relax, tirx
from tvm.script import relax as R

import distir_ext as dx
import distir_ext.interop.gspmd
import distir_ext.interop.shardy

if TYPE_CHECKING:
    from tests.hostile_names.outputs import Program

CLUSTER = dx.Cluster.preset("H100")
LONGEST = 20_000
"""Of a message, whatever names have, in characters."""


def _ill_formed(name: str):
    """A function that reads a variable of another one; TVM has checked nothing."""
    x, y = (relax.Var(each, R.Tensor((4, 4), "float32")) for each in (name, f"free {name}"))
    mod = relax.BlockBuilder().get()
    body = relax.SeqExpr([], relax.op.add(x, y))
    mod[name] = relax.Function([x], body, R.Tensor((4, 4), "float32"))
    return mod


def _unknown_size(name: str):
    """A program of a size that nobody states."""
    size = tirx.Var(name, "int64")
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((size, 8), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return dx.annotate(builder.get(), dx.Mesh(tp=2), {"x": (None, "tp")})


def _dx(it: Program, name: str) -> dict[str, Callable[[], Any]]:
    analysis, transform = dx.analysis, dx.transform
    return {
        "annotate": lambda: dx.annotate(it.mod, dx.Mesh(tp=2), {name: ("no",)}, func=name),
        "lower, pipeline": lambda: dx.lower(it.mod, pipeline=name),
        "lower, not annotated": lambda: dx.lower(_ill_formed(name)),
        "lower, until": lambda: dx.lower(it.mod, until=name),
        "build, pipeline": lambda: dx.build(it.mod, pipeline=name),
        "build, not annotated": lambda: dx.build(_ill_formed(name)),
        "build, target": lambda: dx.build(it.mod, target=name),
        "build, option": lambda: dx.build(it.mod, **{name: 1}),
        "explain": lambda: dx.explain(it.mod, name + "?"),
        "explain, function": lambda: dx.explain(it.mod, "x", func=name + "?"),
        "visualize": lambda: dx.visualize(it.mod, name + "?"),
        "summary": lambda: dx.summary(name),
        "load": lambda: dx.load(name),
        "save": lambda: dx.save(it.folder / name, {name: object()}),
        "estimate": lambda: analysis.estimate(_unknown_size(name), CLUSTER),
        "estimate, size": lambda: analysis.estimate(it.mod, CLUSTER, sizes={name + "?": 0}),
        "simulate": lambda: analysis.simulate(it.lowered, CLUSTER, function=name + "?"),
        "time_kernels": lambda: analysis.time_kernels(_unknown_size(name), CLUSTER),
        "shardings": lambda: analysis.shardings(_ill_formed(name)),
        "collectives": lambda: analysis.collectives(_ill_formed(name)),
        "graph": lambda: analysis.graph(it.mod, func=name + "?"),
        "diff": lambda: analysis.diff(_ill_formed(name), it.mod, CLUSTER),
        "reshards": lambda: analysis.reshards(_ill_formed(name), CLUSTER),
        "redistribution": lambda: analysis.redistribution(
            dx.Mesh((2,), (name,)), (name,), (f"{name}?",), (4,)
        ),
        "sweep": lambda: analysis.sweep(
            it.mod, [dx.Mesh(tp=2)], {name: {name: (name,)}}, CLUSTER, func=name + "?"
        ),
        "pass": lambda: transform.PropagateSharding()(_ill_formed(name)),
        "pass of another phase": lambda: transform.LowerCCL()(it.mod),
        "pass with options": lambda: transform.OptimizeCollectives(disable=[name]),
        "device": lambda: dx.Device(name, {name: -1.0}, memory=1, bandwidth=1, launch=0),
        "cluster": lambda: dx.Cluster(dx.Mesh((2,), (name,)), {f"{name}?": dx.Link(0, 1)}),
        "cluster, preset": lambda: dx.Cluster.preset(name),
        "mesh": lambda: dx.Mesh((2, 2), (name, name)),
        "dims": lambda: dx.dims(name),
        "rule": lambda: dx.register_rule(name, name),
        "GSPMD": lambda: dx.interop.gspmd.parse(name),
        "GSPMD, annotate": lambda: dx.interop.gspmd.annotate(it.mod, {name: name}),
        "Shardy": lambda: dx.interop.shardy.parse(f"<@{name}, [{{}}]>"),
        "Shardy, mesh": lambda: dx.interop.shardy.parse_mesh(name),
        "Shardy, annotate": lambda: dx.interop.shardy.annotate(it.mod, {name: name}),
        "pass with names": lambda: transform.AssignStages(name)(it.mod),
        "pipelines": lambda: dx.pipelines.load({"passes": {name: {}}}),
        "hints": lambda: dx.hints.load(name),
        "Session": lambda: dx.Session(dx.Mesh((2,), (name,)), workers=name),
    }


def _chain(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


def refused(it: Program, name: str) -> Iterator[str]:
    """The texts of errors, of what led to them, of notes, warnings and logs."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("distir_ext")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    number = 0
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for entry, attempt in _dx(it, name).items():
                try:
                    attempt()
                except Exception as error:
                    number += 1
                    for each in _chain(error):
                        assert len(str(each)) < LONGEST, entry
                        yield str(each)
                        yield from getattr(each, "__notes__", [])
            dx.lower(it.mod, reshards="warn")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert number > 20
    for each in warned:
        if issubclass(each.category, UserWarning):
            yield str(each.message)
    yield from written.getvalue().splitlines()
