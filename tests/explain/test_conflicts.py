"""Explanations of redistributions: both sides, their costs, and annotations that avoid them."""

import dataclasses
import re

import pytest
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((4,), ("tp",))


@I.ir_module
class Sum:
    @R.function
    def main(x: R.Tensor((64, 32), "float32"), other: R.Tensor((64, 32), "float32")) -> R.Tensor(
        (64, 32), "float32"
    ):
        with R.dataflow():
            hidden = R.nn.relu(x)
            total = R.add(hidden, other)
            R.output(total)
        return total


@I.ir_module
class Transposed:
    @R.function
    def main(x: R.Tensor((32, 64), "float32"), other: R.Tensor((64, 32), "float32")) -> R.Tensor(
        (64, 32), "float32"
    ):
        with R.dataflow():
            turned = R.permute_dims(x)
            total = R.add(turned, other)
            R.output(total)
        return total


@I.ir_module
class Sorted:
    @R.function
    def main(x: R.Tensor((64, 32), "float32")) -> R.Tensor((64, 32), "float32"):
        with R.dataflow():
            in_order = R.unique(R.reshape(x, R.shape([2048])), axis=0)
            R.output(in_order)
        return in_order


def propagated(mod, plan):
    return dx.transform.PropagateSharding()(dx.annotate(mod, MESH, plan))


def redistributions(mod):
    calls = (
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    )
    return sum(getattr(call.op, "name", "") == "relax.dist.redistribute" for call in calls)


def bytes_of(line):
    return int(re.search(r"([\d,]+) bytes per device", line)[1].replace(",", ""))


PLAN = {"x": ("tp", None), "other": (None, "tp")}


@pytest.mark.parametrize("name", ["other", "other_1"])
def test_both_sides_have_their_cost(name):
    lines = dx.explain(propagated(Sum, PLAN), name).lines
    moved, chosen, alternative, advice = lines[-4:]
    assert moved.startswith(
        "`other` is redistributed from (None, 'tp') to ('tp', None) for `total`: "
    )
    assert chosen.startswith("  `total` (relax.add) as it is computed: ")
    assert chosen.endswith("`other` moves")
    assert alternative.startswith("  `total` (relax.add) with `other` as it is: ")
    # A device receives three quarters of its quarter of 64 x 32 floats, in each of two moves.
    assert bytes_of(chosen) == bytes_of(moved) == 64 * 32 * 4 * 3 // 16
    assert bytes_of(alternative) == 2 * bytes_of(chosen)
    assert advice == "  to avoid it, state `other` as ('tp', None), or `x` as (None, 'tp')"


@pytest.mark.parametrize(
    ("mod", "plan"),
    [
        (Sum, PLAN),
        (Transposed, {"x": (None, "tp"), "other": (None, "tp")}),
    ],
)
def test_the_advice_avoids_the_redistribution(mod, plan):
    before = propagated(mod, plan)
    assert redistributions(before) == 1
    advice = next(
        line
        for name in ("other", "turned")
        for line in dx.explain(before, name).lines
        if "to avoid it" in line
    )
    stated = re.findall(r"`(\w+)` as (\([^)]*\))", advice)
    assert len(stated) == 2
    for name, dims in stated:
        followed = {**plan, name: eval(dims)}
        assert redistributions(propagated(mod, followed)) == 0


def test_an_operator_that_needs_a_whole_dimension_says_so():
    mod = propagated(Sorted, {"x": ("tp", None)})
    texts = [str(dx.explain(mod, name)) for name in ("lv", "x")]
    assert any("cannot be computed with" in text for text in texts)


def test_the_clusters_links_are_what_costs_are_of():
    slow_link = dataclasses.replace(dx.NVLINK, latency=1e-3, bandwidth=1e6)
    slow = dx.transform.SetCluster(dx.Cluster(MESH, {"tp": slow_link}))
    mod = dx.transform.PropagateSharding()(slow(dx.annotate(Sum, MESH, PLAN)))
    line = next(each for each in dx.explain(mod, "other").lines if "is redistributed" in each)
    microseconds = float(re.search(r"([\d.e+]+) us", line)[1])
    assert microseconds > 1000


def test_a_view_of_the_mesh_is_said_beside_the_axes():
    mesh = dx.Mesh((2, 2), ("dp", "tp"))
    plan = {"x": (("tp", "dp"), None), "other": (None, "tp")}
    mod = dx.transform.PropagateSharding()(dx.annotate(Sum, mesh, plan))
    assert any(
        "from (None, 'tp') to (('tp', 'dp'), None) "
        '(placement "S[0], S[0]" on (x=2, y=2) of devices 0, 2, 1, 3) for `total`' in line
        for line in dx.explain(mod, "other").lines
    )


def test_what_moves_to_another_mesh_names_both():
    first, second = dx.Mesh((2,), ("dp",)), dx.Mesh((2,), ("tp",), device_ids=[2, 3])
    plan = {"x": ("dp", None), "other": (second, (None, "tp"))}
    mod = dx.transform.PropagateSharding()(dx.annotate(Sum, first, plan))
    (moved,) = (line for line in dx.explain(mod, "hidden").lines if " moves " in line)
    assert moved == (
        "`hidden` moves from ('dp', None) on (dp=2) of devices 0..1 to (None, 'tp') on (tp=2) "
        "of devices 2..3"
    )


@I.ir_module
class Gated:
    @R.function
    def main(
        x: R.Tensor((64, 1024), "float32"),
        w: R.Tensor((1024, 32), "float32"),
        gate: R.Tensor((64, 32), "float32"),
    ) -> R.Tensor((64, 32), "float32"):
        with R.dataflow():
            product = R.matmul(x, w)
            y = R.multiply(product, gate)
            R.output(y)
        return y


@pytest.mark.parametrize("lower", [lambda mod: mod, dx.lower])
def test_a_partial_value_that_disagrees_has_both_sides_too(lower):
    plan = {"x": (None, "tp"), "w": ("tp", None), "gate": ("tp", None)}
    mod = lower(dx.transform.PropagateSharding()(dx.annotate(Gated, MESH, plan)))
    # Devices take their parts of the sum in reducing it.
    assert "to avoid it" not in str(dx.explain(mod, "product"))
    mesh = dx.Mesh((2, 2), ("dp", "tp"))
    plan = {"x": ("dp", "tp"), "w": ("tp", None), "gate": (None, "dp")}
    mod = lower(dx.transform.PropagateSharding()(dx.annotate(Gated, mesh, plan)))
    moved, chosen, alternative, advice = dx.explain(mod, "product").lines[-4:]
    assert moved.startswith(
        "`product_1` is reduced and redistributed from ('dp', None), partial sum over 'tp' "
        "to (None, 'dp') for `y`: "
    )
    assert chosen.endswith("`product_1` moves")
    assert alternative.endswith("`product_1` (reduced), `gate` and the result move")
    assert bytes_of(moved) == bytes_of(chosen) < bytes_of(alternative)
    assert advice == "  to avoid it, state `gate` as ('dp', None)"


def uneven(rows, readers):
    """Tensors of so many rows, over 4 devices, whose sum is sharded along them."""
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((rows, 64), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            found = [builder.emit(relax.op.add(x, y), "total")]
            found += [builder.emit(relax.op.exp(y), f"reader_{i}") for i in range(readers)]
            result = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(result)
    plan = {"x": ("x", None), "y": (None, "x")}
    plan |= {f"return.{1 + i}": (None, "x") for i in range(readers)}
    annotated = dx.annotate(builder.finalize(), dx.Mesh(x=4), plan)
    return dx.explain(dx.transform.PropagateSharding()(annotated), "y").lines


def test_extents_that_do_not_divide_are_said():
    (line,) = (line for line in uneven(4099, 0) if "do not divide" in line)
    assert line == (
        "  dimension 0 of `y` has 4099 elements, which the 4 shards over 'x' do not divide; "
        "4096 or 4100 would"
    )
    assert not any("do not divide" in line for line in uneven(4096, 0))


def test_advice_says_what_it_moves_for_others():
    (line,) = (line for line in uneven(4096, 0) if "to avoid it" in line)
    assert "then it is moved" not in line
    (line,) = (line for line in uneven(4096, 1) if "to avoid it" in line)
    assert "`y` as ('x', None) (then it is moved for `reader_0`, 196,608 bytes per device" in line
