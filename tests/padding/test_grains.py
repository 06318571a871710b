"""Grains: dimensions that a reshape splits or merges are cut between heads, not within."""

import pytest
import tvm
from tests.meshes import meshes
from tests.padding.checks import padded
from tests.padding.heads import PLAN, Attention
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


def _shape(var: relax.Var) -> list[int]:
    return [int(dim) for dim in var.ty.tensor_ty.shape.values]


def _params(mod: tvm.IRModule, function: str = "main") -> dict[str, list[int]]:
    return {param.name: _shape(param) for param in mod[function].params}


@pytest.mark.parametrize("devices", range(2, 9))
@pytest.mark.parametrize("repeats", [False, True])
def test_heads_are_whole(devices, repeats):
    """Keys are padded to a multiple of the devices, queries to two for each of them."""
    attention = Attention(repeats=repeats)
    mesh = dx.Mesh(tp=devices)
    annotated = dx.annotate(attention.module(), mesh, PLAN, inputs=["x"])
    params = _params(padded(dx.transform.PropagateSharding()(annotated)))
    heads = -(-8 // devices) * devices
    assert params["wk0"] == params["wv0"] == [10, heads * 4]
    assert params["wq0"] == [10, heads * 2 * 4]
    assert params["wo0"] == [heads * 2 * 4, 10]
    assert params["up0"] == [10, -(-11 // devices) * devices]


@pytest.mark.parametrize("devices", [3, 4, 5, 6, 7, 8])
def test_two_reductions_per_layer(devices):
    mod = Attention(layers=2).module()
    lowered = dx.lower(dx.annotate(mod, dx.Mesh(tp=devices), PLAN, inputs=["x"]))
    found = dx.analysis.collectives(lowered)
    assert [(each.kind, each.count) for each in found] == [("all_reduce", 4)]


@pytest.mark.parametrize(
    ("heads", "key_heads", "held"),
    [
        (64, 8, {3: 3, 5: 2, 6: 2, 7: 2}),  # Llama 70B
        (40, 8, {3: 3, 5: 2, 6: 2, 7: 2}),  # Qwen3 14B
        (28, 4, {3: 2, 5: 4, 6: 4, 7: 4}),  # Qwen2 7B: fewer heads than devices, which share none
    ],
)
def test_heads_of_models(heads, key_heads, held):
    """The largest device has ceil(heads of keys / devices), and the queries of these."""
    mod = Attention(heads=heads, kv_heads=key_heads).module()
    for devices, keys in held.items():
        lowered = dx.lower(dx.annotate(mod, dx.Mesh(tp=devices), PLAN, inputs=["x"]))
        local = {param.name: int(param.ty.shape[1]) // 4 for param in lowered["main"].params[1:4]}
        few = key_heads < devices
        queries = -(-heads // devices) if few else keys * heads // key_heads
        assert local == {"wq0": queries, "wk0": keys, "wv0": keys}
        found = dx.analysis.collectives(lowered)
        assert [(each.kind, each.count) for each in found] == [("all_reduce", 2)]


def test_largest_device_holds_few_keys():
    """The signature says what a device has of the weight; the last one has less."""
    mod = Attention().module()
    lowered = dx.lower(dx.annotate(mod, dx.Mesh(tp=3), PLAN, inputs=["x"]))
    params = lowered.attrs["distir.signature"]["functions"]["main"]["params"]
    assert "wk0: float32[10, 32:12] S[1]" in params
    assert "wq0: float32[10, 64:24] S[1]" in params


@pytest.mark.parametrize("devices", [3, 5, 6, 7])
def test_fewer_keys_than_devices(devices):
    """Queries stay in whole heads; each device has all of the few keys and values."""
    mod = Attention(heads=8, kv_heads=2).module()
    annotated = dx.annotate(mod, dx.Mesh(tp=devices), PLAN, inputs=["x"])
    params = _params(padded(dx.transform.PropagateSharding()(annotated)))
    assert params["wq0"] == [10, -(-8 // devices) * devices * 4]
    assert params["wk0"] == params["wv0"] == [10, 8]


def test_what_divides_is_padded_with_what_does_not():
    """24 columns divide into 4 shards, 6 heads do not."""

    @I.ir_module
    class Program:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((2, 24), "float32", "mesh[0]", "S[1]")):
            y = R.reshape(x, R.shape([2, 6, 4]))
            return y

    mod = padded(dx.transform.PropagateSharding()(Program))
    assert _params(mod) == {"x": [2, 32]}
    assert [int(each) for each in mod["main"].attrs["distir.true_extents"][0]] == [-1, 24]


def test_minor_part_is_no_grain():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((3,)))

        @R.function
        def main(x: R.DTensor((2, 4), "float32", "mesh[0]", "S[1]")):
            y = R.reshape(x, R.shape([8]))
            return y

    mod = dx.transform.PropagateSharding()(Program)
    assert "R.dist.redistribute(x" in mod.script()
    assert _params(padded(mod)) == {"x": [2, 6]}


def test_nothing_in_common_is_cut_anew():
    """24 elements as 4 of 6 and as 6 of 4 have 2 units in common, too few for 3 devices."""

    @I.ir_module
    class Program:
        I.module_global_infos(meshes((3,)))

        @R.function
        def main(x: R.DTensor((24,), "float32", "mesh[0]", "S[0]")):
            y = R.exp(x)
            a = R.reshape(y, R.shape([4, 6]))
            b = R.reshape(y, R.shape([6, 4]))
            return (a, b)

    mod = padded(dx.transform.PropagateSharding()(Program))
    assert _params(mod) == {"x": [36]}
    # Neighbours exchange what is cut as 6 of 4.
    assert mod.script().count("R.dist.redistribute(") == 1
    assert mod.script().count("R.dist.segment_exchange(") == 1


def test_callees_share_the_grains_of_their_callers():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((3,)))

        @R.function(private=True)
        def double(x: R.Tensor((2, 32), "float32")):
            y = R.add(x, x)
            return y

        @R.function
        def main(x: R.Tensor((2, 32), "float32")):
            cls = Program
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
            y = cls.double(x0)
            z = R.reshape(y, R.shape([2, 8, 4]))
            return z

    mod = padded(dx.transform.PropagateSharding()(Program))
    assert _params(mod)["x"] == _params(mod, "double")["x"] == [2, 36]


def test_sabotage_ceiling_of_columns_is_found():
    """The cut of a weight without grains, as it would be by its type alone."""
    mod = Attention().module()
    propagated = dx.transform.PropagateSharding()(
        dx.annotate(mod, dx.Mesh(tp=3), PLAN, inputs=["x"])
    )
    lowered = dx.lower(propagated)
    wrong = lowered.script().replace("float32[10, 32:12]", "float32[10, 32]")
    with pytest.raises(ValueError, match="wk0"):
        dx.build(tvm.script.from_source(wrong))


def test_kernels_have_grains():
    """A reshape that is a kernel, where remainders say the sizes of dimensions, is cut alike."""

    @I.ir_module
    class Program:
        @R.function
        def main(x: R.Tensor((3, 2, 24), "float32")):
            y = R.permute_dims(R.reshape(R.exp(x), R.shape([3, 2, 6, 4])), [2, 0, 1, 3])
            z = R.reshape(R.exp(y), R.shape([3, 2, 3, 8]))
            return z

    passes = relax.transform
    fuse = [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FuseOps(), passes.FuseTIR()]
    plan = {"x": (None, None, "tp")}
    for order in (fuse[:1], fuse):
        mod = dx.annotate(tvm.transform.Sequential(order)(Program), dx.Mesh(tp=4), plan)
        params = _params(padded(dx.transform.PropagateSharding()(mod)))
        assert params == {"x": [3, 2, 32]}
