"""Fusions that users register: matches, replacements, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.pipelines.test_configured import run, tensor_parallel
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext import pipelines


def norm_of_a_sum(rows, residual=False):
    """A norm of a sum over 4 workers; with a residual that reads the sum, too."""
    builder = relax.BlockBuilder()
    shapes = {"x": (rows, 32), "up": (32, 64), "down": (64, 32), "gain": (32,)}
    x, up, down, gain = (
        relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items()
    )
    with builder.function("main", [x, up, down, gain], {"num_input": 1}):
        hidden = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, up))))
        total = builder.emit(relax.op.matmul(hidden, down))
        result = builder.emit(relax.op.nn.rms_norm(total, gain, axes=[-1]))
        if residual:
            result = builder.emit(relax.op.add(total, result))
        builder.emit_func_output(result)
    plan = {"up": (None, "tp"), "down": ("tp", None)}
    return dx.annotate(builder.get(), dx.Mesh(tp=4), plan)


def register_norm(**options):
    """The norm of each worker's own rows, between a reduce-scatter and an all-gather."""
    partial, weight = wildcard(), wildcard()
    total = is_op("relax.ccl.all_reduce")(partial)
    counts = []

    def norm_of_own_rows(norm, matched, extra=None, *, least: int = 1):
        """A sum over workers and its norm: each worker takes the norm of its rows."""
        counts.append(extra and extra[total])
        groups = matched[total].attrs["groups"]
        if int(norm.ty.shape[0]) % len(groups[0]) or norm.ty.shape[0] < least:
            return pipelines.Skip("its rows do not divide")
        mine = R.ccl.reduce_scatter(matched[partial], groups=groups, dim=0, reduction="sum")
        norms = relax.op.nn.rms_norm(mine, matched[weight], axes=[-1])
        return R.ccl.all_gather(norms, groups=groups, dim=0)

    pattern = is_op("relax.nn.rms_norm")(total, weight)
    pipelines.register_fusion("norm_of_own_rows", pattern, phase="lowered", **options)(
        norm_of_own_rows
    )
    return counts


def lowered(mod, configuration=None):
    """The programs, and the report of the fusion."""
    with dx.pass_reports() as reports:
        result = dx.lower(mod, pipeline=pipelines.load(configuration or {}))
    (report,) = [each for each in reports if each.name == "norm_of_own_rows"]
    return result, report


def bytes_sent(mod):
    return dx.analysis.estimate(mod, dx.Cluster.preset("H100")).bytes_sent


@pytest.mark.parametrize(("rows", "matches"), [(8, 1), (6, 0)])
def test_a_fusion_of_a_collective(registered, rows, matches):
    register_norm()
    mod = norm_of_a_sum(rows)
    pipeline = pipelines.load()
    assert pipeline["norm_of_own_rows"].registered.summary.startswith("A sum over workers")
    programs, report = lowered(mod)
    assert report.matches == matches
    assert report.skips == 1 - matches
    assert str(programs).count("R.ccl.reduce_scatter") == matches
    if matches:  # what LowerDistIR noted of old variables is not said of new ones
        (norm,) = re.findall(r"(\w+): .* = R.nn.rms_norm", programs.script())
        assert "the module does not say how it is sharded" in str(dx.explain(programs, norm))
    found = run(dx.build(programs, pipeline=pipeline), 4, mod)
    np.testing.assert_allclose(found, run(dx.build(mod), 4, mod), rtol=1e-5, atol=1e-5)


def test_what_is_read_elsewhere_is_not_fused(registered):
    """The residual would need the all-reduce beside the reduce-scatter: more bytes than before."""
    mod = norm_of_a_sum(8, residual=True)
    plain = dx.lower(mod)
    counts = register_norm()
    programs, report = lowered(mod)
    assert (report.matches, counts) == (0, [])
    assert report.skipped == {"matches": {"a value within the match is read elsewhere, too": 1}}
    sent = [bytes_sent(each) for each in (plain, programs)]
    assert sent[0] == sent[1]
    pipelines.unregister_pass("norm_of_own_rows")
    counts = register_norm(extra_uses=True)
    programs, report = lowered(mod)
    assert (report.matches, counts) == (1, [1])
    assert bytes_sent(programs) > sent[0]
    pipeline = pipelines.load()
    found = run(dx.build(programs, pipeline=pipeline), 4, mod)
    np.testing.assert_allclose(found, run(dx.build(mod), 4, mod), rtol=1e-5, atol=1e-5)


def test_readers_are_counted_by_value_and_through_other_names(registered):
    """Each relu of three is read by the next one; the last two only are read once."""
    value = wildcard()
    inner = is_op("relax.nn.relu")(value)
    seen = []

    @pipelines.register_fusion(
        "relus", is_op("relax.nn.relu")(inner), phase="annotated", extra_uses=True
    )
    def relus(call, matched, extra):
        seen.append((matched[inner].args[0].name, extra[inner]))
        return pipelines.Skip("only looks")

    x = relax.Var("x", relax.TensorType((8,), "float32"))
    y = relax.Var("y", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        first = builder.emit(relax.op.nn.relu(x))
        second = builder.emit(relax.op.nn.relu(first))
        again = builder.emit(second)
        sums = builder.emit(relax.op.add(builder.emit(relax.op.nn.relu(again)), second))
        other = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.relu(y))))
        builder.emit_func_output(relax.Tuple([sums, first, other]))
    dx.lower(
        dx.annotate(builder.get(), dx.Mesh(x=2), {"x": ("x",)}),
        until="annotated",
        pipeline=pipelines.load(),
    )
    # Of first: the result; of second: the sum; of the relu of y nothing.
    assert sorted(count for _, count in seen) == [0, 1, 1]


def test_a_fusion_has_options(registered):
    register_norm()
    mod = norm_of_a_sum(8)
    for least, matches in ((8, 1), (9, 0)):
        configuration = {"passes": {"norm_of_own_rows": {"least": least}}}
        assert lowered(mod, configuration)[1].matches == matches
    with pytest.raises(ValueError, match="least: expected int, got str"):
        pipelines.load({"passes": {"norm_of_own_rows": {"least": "x"}}})
    with pytest.raises(ValueError, match="no such option, it has least; did you mean 'least'"):
        pipelines.load({"passes": {"norm_of_own_rows": {"lest": 1}}})


def boom(call, matched):
    raise KeyError("boom")


WRONG = {
    "another dtype": (
        lambda call, matched: relax.op.astype(call, "float16"),
        TypeError,
        r"fusion 'wrong', at `\w+` in `main`, replaces .*float32.* by one of .*float16",
    ),
    "another shape": (
        lambda call, matched: relax.op.sum(call, axis=[0]),
        TypeError,
        r"fusion 'wrong', .* replaces a value of the type .*\(8, \d+\).* by one of .*\(\d+,\)",
    ),
    "a tuple": (
        lambda call, matched: relax.Tuple([call]),
        TypeError,
        r"fusion 'wrong', .* replaces a value of the type .* by one of .*Tuple",
    ),
    "what has no type": (
        lambda call, matched: relax.op.add(call, relax.const(np.zeros(3, "float32"))),
        (ValueError, RuntimeError),  # of tensors, and of DTensors
        "fusion 'wrong', .* returns what has no type: .*(not broadcastable|must take DTensor)",
    ),
    "a variable of its own": (
        lambda call, matched: relax.op.exp(relax.Var("z", call.ty)),
        ValueError,
        r"fusion 'wrong', at `\w+` in `main`, returns an expression of `z`, which `main` does not",
    ),
    "nothing": (
        lambda call, matched: None,
        TypeError,
        "fusion 'wrong', .* returns an expression or Skip, not a NoneType",
    ),
    "an exception": (boom, RuntimeError, r"fusion 'wrong', at .*: KeyError: 'boom'"),
}


def test_wrong_replacements_name_the_fusion(registered):
    mod = tensor_parallel()
    pattern = is_op("relax.nn.relu")(wildcard())
    for rewrite, error, message in WRONG.values():
        for phase in ("annotated", "propagated", "lowered"):
            pipelines.register_fusion("wrong", pattern, phase=phase)(rewrite)
            with pytest.raises(error, match=message):
                dx.lower(mod, pipeline=pipelines.load())
            pipelines.unregister_pass("wrong")
    with pytest.raises(TypeError, match="pattern of the fusion 'wrong' is a str, not a pattern"):
        pipelines.register_fusion("wrong", "relax.nn.relu", phase="lowered")


def test_a_fusion_that_makes_what_it_matches_ends(registered):
    value = wildcard()

    @pipelines.register_fusion("again", is_op("relax.nn.relu")(value), phase="annotated")
    def again(call, matched):
        return relax.op.nn.relu(relax.op.negative(matched[value]))

    with pytest.raises(ValueError, match="'again' makes what its pattern matches again"):
        dx.lower(tensor_parallel(), pipeline=pipelines.load())

    pipelines.unregister_pass("again")
    inner = is_op("relax.nn.relu")(value)

    @pipelines.register_fusion("twice", is_op("relax.negative")(inner), phase="annotated")
    def twice(call, matched):
        return relax.op.negative(relax.op.nn.relu(relax.op.exp(matched[value])))

    x = relax.Var("x", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.negative(relax.op.nn.relu(x))))
    mod = dx.annotate(builder.get(), dx.Mesh(x=2), {"x": ("x",)})
    with pytest.raises(ValueError, match="'twice' makes what its pattern matches again"):
        dx.lower(mod, pipeline=pipelines.load())
