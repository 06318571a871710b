"""Plans for weights with fewer heads than devices: annotations that would cut heads are dropped."""

import pytest
import tvm
from tests.meshes import meshes
from tests.optimize.dense_experts import DenseExperts
from tests.padding.heads import PLAN, Attention
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


def _text(placement):
    return str(placement).strip('"')


def placed(mod, plan, mesh):
    """Of each parameter of main its mesh's shape and its placement, as TVMScript prints it."""
    found = dx.transform.PropagateSharding()(dx.annotate(mod, mesh, plan))
    return {
        param.name: (tuple(map(int, param.ty.device_mesh.shape)), _text(param.ty.placement))
        for param in found["main"].params
    }


@pytest.mark.parametrize("layers", [1, 3])
def test_keys_follow_queries(layers):
    attention = Attention(heads=8, kv_heads=2, layers=layers)
    found = placed(attention.module(), PLAN, dx.Mesh(tp=4))
    for layer in range(layers):
        assert found[f"wq{layer}"] == ((4,), "S[1]")
        assert found[f"wk{layer}"] == found[f"wv{layer}"] == ((2, 2), "S[1], R")


def test_two_axes():
    """8 heads over both axes, 2 of keys over the first."""
    both = {name: tuple(("a", "b") if axis else None for axis in d) for name, d in PLAN.items()}
    found = placed(Attention(heads=8, kv_heads=2).module(), both, dx.Mesh((2, 2), ("a", "b")))
    assert found["wq0"] == ((2, 2), "S[1], S[1]")
    assert found["wk0"] == ((2, 2), "S[1], R")


@pytest.mark.parametrize("kv_heads", [4, 8])
def test_heads_for_all_stay_as_stated(kv_heads):
    found = placed(Attention(heads=8, kv_heads=kv_heads).module(), PLAN, dx.Mesh(tp=4))
    assert {found[name] for name in ("wq0", "wk0", "wv0")} == {((4,), "S[1]")}


def test_fully_sharded_weights_stay_as_stated():
    """The batch has the axis: weights are gathered for their products, and kept in shards."""
    mod = Attention(heads=8, kv_heads=1, length=4).module()
    plan = {"x": (None, "fsdp", None), "w.*|up.*|down.*": (None, "fsdp")}
    found = placed(mod, plan, dx.Mesh(fsdp=4))
    assert {found[name][1] for name in found} == {"S[1]"}


def test_explained_by_what_they_follow():
    mod = dx.annotate(Attention(heads=8, kv_heads=2).module(), dx.Mesh(tp=4), PLAN)
    mod = dx.transform.PropagateSharding()(mod)
    text = str(dx.explain(mod, "wk0"))
    assert "stated by an annotation or a type of `wq0` in `main`" in text
    for each in (mod, dx.lower(mod)):
        text = str(dx.explain(each, "wk0"))
        assert "  an annotation states 4 shards of dimension 1, which is taken back: " in text
        assert "taken back" not in str(dx.explain(each, "wq0"))


def test_explained_where_all_devices_have_all_heads():
    mod = dx.annotate(Attention(heads=8, kv_heads=2).module(), dx.Mesh(tp=3), PLAN)
    text = str(dx.explain(dx.transform.PropagateSharding()(mod), "wv0"))
    assert text.startswith("`wv0` in `main`: replicated")
    assert "  an annotation states 3 shards of dimension 1, which is taken back: " in text


def test_report():
    mod = dx.annotate(Attention(heads=8, kv_heads=2).module(), dx.Mesh(tp=4), PLAN)
    with dx.pass_reports() as reports:
        dx.transform.PropagateSharding()(mod)
    (report,) = (each for each in reports if each.name == "PropagateSharding")
    assert report.done["copied heads"] == 2


def test_annotations_of_other_values_are_not_taken_back():
    """The columns of the product are stated, not those of a weight."""

    @I.ir_module
    class Program:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.Tensor((3, 8), "float32"),
            wq: R.Tensor((8, 32), "float32"),
            wk: R.Tensor((8, 8), "float32"),
        ):
            wq0 = R.dist.annotate_sharding(wq, "mesh[0]", "S[1]")
            columns = R.dist.annotate_sharding(R.matmul(x, wk), "mesh[0]", "S[1]")
            q = R.permute_dims(R.reshape(R.matmul(x, wq0), R.shape([3, 8, 4])), [1, 0, 2])
            k = R.permute_dims(R.reshape(columns, R.shape([3, 2, 4])), [1, 2, 0])
            y = R.matmul(q, R.repeat(k, 4, axis=0))
            return y

    found = dx.transform.PropagateSharding()(Program)
    assert _text(found["main"].params[2].ty.placement) == "S[1]"


def test_what_is_propagated_stays():
    mod = dx.annotate(Attention(heads=8, kv_heads=2).module(), dx.Mesh(tp=4), PLAN)
    once = dx.transform.PropagateSharding()(mod)
    tvm.ir.assert_structural_equal(dx.transform.PropagateSharding()(once), once)


def test_ids_and_scores_of_experts_stay_as_stated():
    """They become columns of weights by no product, and meet the larger experts."""
    layer = DenseExperts()
    tokens = {"ids": ("ep", None), "scores": ("ep", None)}
    found = placed(layer.module(), {**layer.plan("ep", "ep"), **tokens}, dx.Mesh(ep=8))
    assert found["ids"] == found["scores"] == ((8,), "S[0]")
