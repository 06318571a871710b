"""Plots of estimates have the figures of the estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.programs import function, megatron
from tvm.relax import op

import distir_ext as dx

DEVICE = dx.Device(
    "test", {"float32": 1e12, "float16": 2e12}, memory=1.5e6, bandwidth=1e11, launch=1e-6
)
CLUSTER = dx.Cluster.uniform(device=DEVICE)


@pytest.fixture(scope="module")
def estimate():
    return dx.analysis.estimate(megatron(layers=3, rows=64, hidden=128, width=512), CLUSTER)


def test_kernels_stand_under_the_roofline(estimate):
    (program,) = estimate.programs
    (axes,) = estimate.plot("roofline").axes
    drawn = {}
    for points in axes.collections:
        for (x, y), size in zip(points.get_offsets(), points.get_sizes(), strict=True):
            drawn[round(float(x), 6)] = (float(y), float(size), points.get_label())
    for each in program.kernels:
        cost = each.cost
        y, _, label = drawn[round(cost.flops / cost.bytes_accessed, 6)]
        assert y == pytest.approx(cost.flops / cost.seconds)
        assert y <= min(1e12, cost.flops / cost.bytes_accessed * 1e11) * (1 + 1e-9)
        assert label == f"bound by {each.bound}"
    roof = {tuple(np.round(line.get_ydata(), 3)) for line in axes.lines}
    assert {(1e12, 1e12), (2e12, 2e12)} <= roof
    assert axes.get_xlabel() == "operations per byte of memory traffic (FLOP/B)"
    assert axes.get_ylabel() == "operations per second (FLOP/s)"


def test_caches_have_roofs_of_their_own():
    device = replace(DEVICE, caches={1e6: 4e11, 1e5: 8e11})
    mod = function({"x": (8, 16)}, lambda emit, x: op.exp(x))
    mod = dx.annotate(mod, dx.Mesh(tp=2), {"x": ("tp", None)})
    cluster = dx.Cluster.uniform(device=device)
    (axes,) = dx.analysis.estimate(mod, cluster).plot().axes
    slopes = [line.get_ydata()[0] / line.get_xdata()[0] for line in axes.lines[:3]]
    assert slopes == pytest.approx([1e11, 4e11, 8e11])
    texts = [text.get_text() for text in axes.texts]
    assert "up to 1 MB in caches, 400 GB/s" in texts


def test_what_runs_several_times_counts_so_often(estimate):
    (program,) = estimate.programs
    kernel = program.kernels[0]
    other = replace(kernel.cost, flops=kernel.cost.flops / 2)
    ran = [replace(kernel, count=5), replace(kernel, cost=other)]
    sent = [replace(each, count=4) for each in program.collectives]
    changed = replace(program, kernels=tuple(ran), collectives=tuple(sent))
    several = replace(estimate, programs=(changed,))
    cost = changed.cost
    (points,) = (each for each in several.plot().axes[0].collections if len(each.get_offsets()))
    assert points.get_offsets().tolist() == [
        [pytest.approx(cost.flops / cost.bytes_accessed), pytest.approx(cost.flops / cost.seconds)]
    ]
    (total,) = changed.by_axis().values()
    panels = several.plot("collectives").axes
    widths = [sum(bar.get_width() for bar in axes.patches) for axes in panels]
    assert widths == pytest.approx([total.bytes_per_device, total.seconds])
    seconds = sum(seconds for seconds, _ in changed.memory.held)
    assert several.plot("memory").axes[0].get_xlim()[1] == pytest.approx(seconds)


def test_the_longest_kernels_are_named_with_their_share(estimate):
    (program,) = estimate.programs
    text = estimate.plot("roofline").get_supxlabel()
    total = sum(each.count * each.cost.seconds for each in program.kernels)
    longest = max(
        {each.kernel for each in program.kernels},
        key=lambda name: sum(e.count * e.cost.seconds for e in program.kernels if e.kernel == name),
    )
    share = sum(e.count * e.cost.seconds for e in program.kernels if e.kernel == longest) / total
    first = text.splitlines()[0]
    assert first.startswith(f"1  {longest}: ")
    assert f"{share:.0%} of all kernels" in first


def test_kernels_without_operations_are_counted():
    mod = function({"x": (8, 16)}, lambda emit, x: op.permute_dims(emit(op.exp(x))))
    mod = dx.annotate(mod, dx.Mesh(tp=2), {"x": ("tp", None)})
    text = dx.analysis.estimate(mod, CLUSTER).plot("roofline").get_supxlabel()
    assert "kernel" in text.splitlines()[-1]
    assert "without operations" in text


def test_memory_is_what_lives_while_a_kernel_runs(estimate):
    (program,) = estimate.programs
    memory = program.memory
    (axes,) = estimate.plot("memory").axes
    (stairs,) = [patch for patch in axes.patches if hasattr(patch, "get_data")]
    values, edges, baseline = stairs.get_data()
    base = memory.weights + memory.inputs + memory.constants
    assert baseline == pytest.approx(base)
    assert list(values) == pytest.approx([base + size for _, size in memory.held])
    assert list(np.diff(edges)) == pytest.approx([seconds for seconds, _ in memory.held])
    ran = [each for each in program.kernels if each.count]
    assert {each.live_bytes for each in ran} <= {size for _, size in memory.held}
    assert len(ran) + sum(each.count for each in program.collectives) == len(memory.held)
    assert max(values) == pytest.approx(memory.peak_memory)
    heights = [line.get_ydata()[0] for line in axes.lines]
    assert heights == pytest.approx([memory.peak_memory, DEVICE.memory])
    texts = " ".join(text.get_text() for text in axes.texts)
    assert all(name in texts for name, _ in memory.alive)
    assert f"in computing {memory.at}" in texts
    assert "a device has 1.5 MB" in texts
    assert axes.get_ylabel() == "memory of a device (B)"


def test_a_memory_that_is_far_larger_is_not_drawn():
    large = dx.Cluster.uniform(device=dx.DEVICES["H100"])
    (axes,) = dx.analysis.estimate(megatron(), large).plot("memory").axes
    assert len(axes.lines) == 1


def test_bars_are_the_collectives_of_each_axis():
    mesh = dx.Mesh(dp=2, tp=2)
    shapes = {"x": (8, 16), "w": (16, 16), "v": (16, 16)}
    plan = {"x": ("dp", None), "w": ("tp", None), "v": (None, "dp")}
    mod = function(shapes, lambda emit, x, w, v: op.matmul(emit(op.matmul(x, w)), v))
    estimate = dx.analysis.estimate(dx.annotate(mod, mesh, plan), CLUSTER)
    (program,) = estimate.programs
    expected = program.by_axis()
    assert len(expected) == 2
    figure = estimate.plot("collectives")
    for axes, value in zip(figure.axes, ("bytes_per_device", "seconds"), strict=True):
        names = [tick.get_text() for tick in axes.get_yticklabels()] or list(expected)
        totals = dict.fromkeys(expected, 0.0)
        for bars in axes.containers:
            for name, bar in zip(totals, bars, strict=True):
                totals[name] += bar.get_width()
        assert totals == pytest.approx(
            {name: getattr(total, value) for name, total in expected.items()}
        )
        assert set(names) == set(expected)
    kinds = {bars.get_label() for bars in figure.axes[0].containers}
    assert kinds == {each.kind for each in program.collectives}
    assert figure.axes[0].get_xlabel() == "sent by a device (B)"


def test_nothing_that_is_communicated_is_said():
    mod = function({"x": (8, 16)}, lambda emit, x: op.exp(x))
    mod = dx.annotate(mod, dx.Mesh(tp=2), {"x": ("tp", None)})
    figure = dx.analysis.estimate(mod, CLUSTER).plot("collectives")
    assert figure.get_suptitle() == "collectives of main: nothing is communicated"


def test_figures_are_shown_in_notebooks_and_need_no_screen(estimate, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    for kind in ("roofline", "memory", "collectives"):
        assert estimate.plot(kind)._repr_png_().startswith(b"\x89PNG")


def test_what_there_is_not_is_named(estimate):
    with pytest.raises(ValueError, match=r"no plot 'rooflines'.*did you mean 'roofline'"):
        estimate.plot("rooflines")
    with pytest.raises(KeyError, match="no program 'mian'"):
        estimate.plot("memory", program="mian")
    with pytest.raises(ValueError, match="no program"):
        dx.analysis.Estimate(CLUSTER, ()).plot()
