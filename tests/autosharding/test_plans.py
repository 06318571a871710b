"""Plans that are searched: never slower than others, as fast as believed, numbers right."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .programs import arguments, decoder, random_program

CLUSTER = dx.Cluster.preset("H100")
MESHES = (dx.Mesh(a=2), dx.Mesh(a=4), dx.Mesh(a=2, b=2))
BELIEF = 0.01


def plans_of(mod, mesh, rng, most):
    """Plans that state the parameters: some of all, which are up to 81 on one axis."""
    axes = mesh.axis_names
    dims = [(None, None), *((axis, None) for axis in axes), *((None, axis) for axis in axes)]
    dims += list(itertools.permutations(axes)) if len(axes) == 2 else []
    names = [str(param.name) for param in mod["main"].params]
    every = list(itertools.product(dims, repeat=len(names)))
    for chosen in rng.sample(every, min(most, len(every))):
        yield dict(zip(names, chosen, strict=True))


def test_no_annotation_of_parameters_is_faster(sample):
    """Random programs; the search believes what the lowered program is estimated at."""
    off = []
    count, most = sample(6, 12, 400, 2_000), sample(20, 40, 81, 81)
    for seed in range(count):
        rng = random.Random(seed)
        mod, mesh = random_program(rng), MESHES[seed % len(MESHES)]
        found = dx.autoshard(mod, mesh, CLUSTER, gap=0)
        for plan in plans_of(mod, mesh, rng, most):
            try:
                annotated = dx.annotate(mod, mesh, plan)
            except ValueError:
                continue  # fewer elements than shards
            seconds = dx.analysis.estimate(annotated, CLUSTER).seconds
            assert found.seconds <= seconds * (1 + 1e-6), (seed, mesh, plan, dict(found.plan))
        if found.seconds and abs(found.searched_seconds / found.seconds - 1) > BELIEF:
            off.append((seed, found.searched_seconds / found.seconds))
    assert not off


def test_memory_moves_the_plan_from_data_to_tensor_parallel():
    """Less memory never makes a plan faster, and each is within its limit and its gap."""
    mod, mesh = decoder(hidden=4096, sequence=2048, batch=16), dx.Mesh(d=8)
    free = dx.autoshard(mod, mesh, CLUSTER)
    assert free.plan["x"] == ("d", None, None)
    assert not any(any(dims) for name, dims in free.plan.items() if "layers" in name)
    before = free
    for part in (0.8, 0.7, 0.6):
        found = dx.autoshard(mod, mesh, CLUSTER, memory_limit=part * free.memory)
        assert found.memory <= part * free.memory
        assert found.seconds >= before.seconds * (1 - found.gap - 1e-3)
        assert abs(found.searched_seconds / found.seconds - 1) < BELIEF
        assert found.gap <= 0.02
        before = found
    assert any(any(dims) for name, dims in before.plan.items() if "layers" in name)
    least = dx.autoshard(mod, mesh, CLUSTER, objective="memory")
    assert least.memory <= 0.8 * free.memory


def test_small_batches_are_tensor_parallel():
    """Megatron's plan: columns, then rows, of each pair of products; but for the last one, whose
    result may be sharded."""
    mod = decoder(layers=3, hidden=8192, sequence=1, batch=1)
    plan = dx.autoshard(mod, dx.Mesh(tp=4), CLUSTER).plan
    for layer in range(2):
        for name in ("q", "k", "v", "up"):
            assert plan[f"layers.{layer}.{name}"] == (None, "tp"), name
        for name in ("o", "down"):
            assert plan[f"layers.{layer}.{name}"] == ("tp", None), name


@pytest.mark.parametrize("objective", ["time", pytest.param("memory", marks=pytest.mark.large)])
def test_numbers(objective):
    """Those of the program that is not partitioned, on meshes that divide little."""
    mod = decoder(layers=1, batch=6, sequence=8, hidden=64)
    values = arguments(mod)
    whole = relax.VirtualMachine(tvm.compile(relax.transform.LegalizeOps()(mod), "llvm"), tvm.cpu())
    expected = whole["main"](*[tvm.runtime.tensor(value) for value in values]).numpy()
    for mesh in (dx.Mesh(a=2), dx.Mesh(a=3), dx.Mesh(a=3, b=2), dx.Mesh(a=2, b=2, c=2)):
        found = dx.autoshard(mod, mesh, CLUSTER, objective=objective)
        with dx.Session(mesh) as session:
            model = session.load(dx.build(found.mod), params=values[1:])
            np.testing.assert_allclose(
                np.asarray(model["main"](values[0])), expected, rtol=1e-4, atol=1e-5
            )


def test_what_is_annotated_stays():
    """Also where it costs more; and the search goes on around it."""
    mod, mesh = decoder(layers=1), dx.Mesh(a=4)
    stated = dx.annotate(mod, mesh, {"layers.0.up": ("a", None), "x": (None, "a", None)})
    found = dx.autoshard(stated, mesh, CLUSTER)
    rows = {row.name: row.sharding for row in dx.analysis.shardings(found.mod)}
    assert rows["x"] == "(None, 'a', None)"
    assert rows["layers.0.up"] == "('a', None)"
    assert found.seconds >= dx.autoshard(mod, mesh, CLUSTER).seconds


def test_ways_in():
    """The plan by name, the pass, and the sweep without plans find the same."""
    mod, mesh = decoder(layers=1), dx.Mesh(a=4)
    found = dx.autoshard(mod, mesh, CLUSTER)
    tvm.ir.assert_structural_equal(dx.annotate(mod, mesh, "auto"), found.mod)
    passes = [dx.transform.AutoShard(mesh, CLUSTER), dx.transform.PropagateSharding()]
    propagated = tvm.transform.Sequential(passes)(mod)
    tvm.ir.assert_structural_equal(propagated, dx.transform.PropagateSharding()(found.mod))
    swept = dx.analysis.sweep(mod, [mesh, dx.Mesh(a=2)], cluster=CLUSTER, progress=False)
    assert next(str(row) for row in swept.ranked) == "a=4, auto"
    # As a plan, it says the same.
    again = dx.annotate(mod, mesh, dict(found.plan))
    tvm.ir.assert_structural_equal(dx.lower(again), dx.lower(found.mod))


def test_a_build_for_a_number_of_devices():
    """It needs no annotation."""
    mod = decoder(layers=1, batch=4, sequence=8, hidden=64)
    values = arguments(mod)
    with dx.Session(4) as session:
        model = session.load(dx.build(mod, devices=4), params=values[1:])
        found = np.asarray(model["main"](values[0]))
    with dx.Session(1) as session:
        model = session.load(dx.build(mod, devices=1), params=values[1:])
        np.testing.assert_allclose(
            found, np.asarray(model["main"](values[0])), rtol=1e-4, atol=1e-5
        )


def test_devices_are_arranged():
    """All meshes of up to three axes, but for equal ones; the best is first."""
    found = dx.autoshard(decoder(layers=1), cluster=CLUSTER, devices=8)
    plans = (found, *found.others)
    assert {plan.mesh.shape for plan in plans} >= {(8,), (2, 4), (2, 2, 2)}
    times = [plan.seconds for plan in plans]
    assert times == sorted(times)
    assert json.loads(found.to_json())["others"][0]["seconds"] == times[1]


@I.ir_module
class Calls:
    """A function that is called twice, with other functions' values between."""

    @R.function(private=True)
    def layer(x: R.Tensor((64, 128), "float32"), w: R.Tensor((128, 128), "float32")) -> R.Tensor(
        (64, 128), "float32"
    ):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.nn.relu(a)
            R.output(b)
        return b

    @R.function
    def main(
        c: R.Tensor((), "bool"),
        x: R.Tensor(("n", 128), "float32"),
        t: R.Tuple(R.Tensor((128, 128), "float32"), R.Tensor((128, 128), "float32")),
    ) -> R.Tensor((64, 128), "float32"):
        cls = Calls
        fixed = R.match_cast(x, R.Tensor((64, 128), "float32"))
        w = t[0]
        v = t[1]
        if c:
            y = cls.layer(fixed, w)
        else:
            z = cls.layer(fixed, v)
            y = R.nn.gelu(z)
        return y


def test_calls_branches_tuples_and_symbolic_sizes():
    """All are planned; the result can be lowered."""
    for objective in ("time", "memory"):
        found = dx.autoshard(
            Calls, dx.Mesh(a=2, b=2), CLUSTER, objective=objective, sizes={"n": 64}
        )
        assert dx.phase(dx.lower(found.mod)) == "lowered"
        assert {"x", "t.0", "t.1"} <= set(found.plan)


def test_refusals():
    """One error each, in the words of the user."""
    mod, mesh = decoder(layers=1), dx.Mesh(a=4)
    annotated = dx.annotate(mod, mesh, {"x": ("a", None, None)})
    propagated = dx.lower(annotated, until="propagated")
    cases = [
        (lambda: dx.autoshard(dx.lower(annotated), mesh), "lowered already"),
        (
            lambda: dx.autoshard(dx.lower(annotated, until="propagated"), mesh),
            "distributed already",
        ),
        (lambda: dx.autoshard(annotated, dx.Mesh(q=2)), "another mesh"),
        (lambda: dx.autoshard(Calls, mesh), "symbolic sizes need values: sizes={'n'"),
        (lambda: dx.autoshard(mod, mesh, func="none"), "no Relax function named 'none'"),
        (lambda: dx.autoshard(mod, mesh, memory_limit=1e5), "at least"),
        (lambda: dx.autoshard(mod, mesh, memory_limit=-1), "positive number of bytes"),
        (lambda: dx.autoshard(mod, dx.Mesh(a=4099)), "axis 'a'"),
        (lambda: dx.autoshard(mod, mesh, objective="tme"), "did you mean 'time'"),
        (lambda: dx.autoshard(mod), "either a mesh or devices="),
        (lambda: dx.autoshard(mod, devices=0), "positive number"),
        (lambda: dx.autoshard(mod, devices=4, memory_limit=1e5), "at least"),
        (lambda: dx.autoshard(mod, devices=4, microbatches=[2]), "name it, as in batch="),
        (lambda: dx.autoshard(mod, devices=4, batch="n"), "no symbolic size 'n'"),
        (lambda: dx.autoshard(mod, mesh, microbatches=[2]), "chosen with devices="),
        (lambda: dx.autoshard(mod, mesh, dx.Cluster.uniform()), "device="),
        (lambda: dx.annotate(mod, mesh, "atuo"), "did you mean 'auto'"),
    ]
    for call, text in cases:
        with pytest.raises(
            ValueError, match=".*" + text.replace("'", ".").replace("{", ".")
        ) as caught:
            call()
        assert "\n" not in str(caught.value), caught.value
    for call in (lambda: dx.autoshard(mod["main"], mesh), lambda: dx.autoshard(mod, 3)):
        with pytest.raises(TypeError):
            call()


def test_it_can_be_stopped():
    """With the best so far, or an error of the callback's own."""
    mod, mesh = decoder(hidden=1024), dx.Mesh(a=2, b=2)
    limit = 0.5 * dx.autoshard(mod, mesh, CLUSTER).memory

    def interrupted(seconds, bound):
        raise KeyboardInterrupt

    def broken(seconds, bound):
        raise LookupError("mine")

    seen = []

    def watched(seconds, bound):
        seen.append((seconds, bound))
        return seconds is not None

    found = dx.autoshard(mod, mesh, CLUSTER, memory_limit=limit, gap=0, progress=watched)
    assert found.memory <= limit
    assert seen
    with pytest.raises(LookupError, match="mine"):
        dx.autoshard(mod, mesh, CLUSTER, memory_limit=limit, gap=0, progress=broken)
    with pytest.raises(ValueError, match="no plan was found"):
        dx.autoshard(mod, mesh, CLUSTER, memory_limit=limit, gap=0, progress=interrupted)


def test_it_prints():
    """Its tables name time, bound, memory, and a reason per weight."""
    found = dx.autoshard(decoder(hidden=4096), dx.Mesh(tp=4), CLUSTER, objective="memory")
    text = str(found)
    for part in ("time of a call", "gap", "no plan takes less than", "layers.*.down", "tp"):
        assert part in text, part
    assert "<table" in found._repr_html_()
    assert all(each.reason for each in found.weights)
    assert len(found.weights) == len(decoder()["main"].params)


def test_reasons_follow_what_is_permuted():
    """A weight of a linear layer of PyTorch: the product is named, not the transpose."""
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4096, 4096), "float32")) for name in "xw")
    with builder.function("main", [x, w], {"num_input": 1}):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w))
            result = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(result)
    mod = dx.annotate(builder.get(), dx.Mesh(tp=4), {"w": ("tp", None)})
    found = dx.autoshard(mod, dx.Mesh(tp=4), CLUSTER)
    reason = next(each.reason for each in found.weights if each.name == "w")
    assert "(matmul) along dimension 1" in reason, reason
