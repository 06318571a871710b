"""Programs that a user's pass has changed: what the signature says of them is checked."""

import numpy as np
import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Weights:
    """Two weights of one type, of which a pass may take either for the other."""

    I.module_global_infos(meshes((2,)))

    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        w0: R.Tensor((8, 8), "float32"),
        w1: R.Tensor((8, 8), "float32"),
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            a = R.matmul(x0, R.permute_dims(w0))
            b = R.subtract(a, R.matmul(x0, w1))
            R.output(b)
        return b


@I.ir_module
class Uneven:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((7, 8), "float32"), y: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        z = R.exp(x0)
        return (z, y)


def with_params(mod, order):
    """The module with the parameters of its function in another order."""
    main = mod["main"]
    params = [main.params[index] for index in order]
    changed = relax.Function(params, main.body, main.ret_ty, main.is_pure, main.attrs)
    result = mod.clone()
    result.update_func(mod.get_global_var("main"), changed)
    return result


@pytest.fixture(scope="module")
def lowered():
    return dx.lower(Weights)


def test_weights_in_another_order_are_refused(lowered):
    swapped = with_params(lowered, [0, 2, 1, 3])  # the last one is sizes
    with pytest.raises(ValueError, match=r"parameter 1 of `main` is `w1`.*LowerDistIR left `w0`"):
        dx.build(swapped)


def test_lifted_weights_are_refused(lowered):
    lifted = relax.transform.LiftTransformParams()(lowered)
    with pytest.raises(ValueError, match=r"parameter 1 of `main`.*LiftTransformParams, before the"):
        dx.build(lifted)


def test_a_parameter_less_is_refused(lowered):
    bundled = relax.transform.BundleModelParams()(lowered)
    with pytest.raises(ValueError, match=r"`main` has 2 parameters .*, LowerDistIR left 4"):
        dx.build(bundled)


def test_another_type_is_refused(lowered):
    n = lowered["main"].params[-1].ty.values[0]
    bound = relax.transform.BindSymbolicVars({n: tvm.tirx.IntImm("int64", 4)})(lowered)
    with pytest.raises(
        ValueError, match=r"parameter 0 of `main` is `x`, float32\[2, 8\].*\[n, 8\]"
    ):
        dx.build(bound)


def test_a_function_that_is_gone_is_refused(lowered):
    without = tvm.IRModule({}, attrs=lowered.attrs, global_infos=lowered.global_infos)
    with pytest.raises(ValueError, match="the module has no function `main`"):
        dx.build(without)


def test_another_result_is_refused(lowered):
    main = lowered["main"]
    body = relax.SeqExpr(main.body.blocks, relax.Tuple([main.body.body, main.body.body]))
    pair = relax.Function(
        main.params, body, relax.TupleType([main.ret_ty] * 2), main.is_pure, main.attrs
    )
    changed = lowered.clone()
    changed.update_func(lowered.get_global_var("main"), pair)
    changed = relax.transform.Normalize()(changed)
    with pytest.raises(ValueError, match=r"`main` returns 2 values, LowerDistIR left 1"):
        dx.build(changed)


def test_names_may_change_as_printing_changes_them():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("fc.weight", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    mod = dx.annotate(builder.get(), dx.Mesh((2,), ("d",)), {r"fc\.weight": (None, "d")})
    parsed = tvm.script.from_source(dx.lower(mod).script())
    assert parsed["main"].params[1].name == "fc_weight"
    with dx.Session(2) as session:
        x, w = np.ones((4, 8), "float32"), np.arange(64, dtype="float32").reshape(8, 8)
        model = session.load(dx.build(parsed), params={"fc.weight": w})
        np.testing.assert_allclose(model["main"](x).numpy(), x @ w)


def test_padded_parameters_in_another_order_are_refused():
    padded = dx.transform.PadShards()(dx.transform.PropagateSharding()(Uneven))
    with pytest.raises(ValueError, match=r"`main` has other parameters .* that PadShards padded"):
        dx.lower(with_params(padded, [1, 0]))


@I.ir_module
class Alike:
    """Parameters of 15 and 9 rows, both padded to two rows on each of 8 devices."""

    I.module_global_infos(meshes((8,)))

    @R.function
    def main(x: R.Tensor((15, 4), "float32"), y: R.Tensor((9, 4), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        y0 = R.dist.annotate_sharding(y, "mesh[0]", "S[0]")
        a = R.sum(x0, axis=[0])
        b = R.sum(y0, axis=[0])
        return (a, b)


def test_parameters_that_only_names_tell_apart_are_refused_in_another_order():
    padded = dx.lower(Alike, until="PadShards")
    dx.lower(padded)
    with pytest.raises(ValueError, match=r"`main` has other parameters .* that PadShards padded"):
        dx.lower(with_params(padded, [1, 0]))


def test_names_are_kept_only_where_they_are_needed():
    of_one_size = tvm.script.from_source(
        Alike.script().replace("R.Tensor((9, 4)", "R.Tensor((15, 4)")
    )
    for mod, are_needed in ((Alike, True), (of_one_size, False), (Uneven, False)):
        attrs = dx.lower(mod, until="PadShards")["main"].attrs
        assert ("distir.padded_params" in attrs) == are_needed


@I.ir_module
class Grained:
    """24 columns are padded to 32 on 4 devices, being 6 heads; others to 24 and 32 as they must."""

    I.module_global_infos(meshes((4,)))

    @R.function
    def main(
        x: R.DTensor((2, 24), "float32", "mesh[0]", "S[1]"),
        y: R.DTensor((2, 21), "float32", "mesh[0]", "S[1]"),
        z: R.DTensor((2, 32), "float32", "mesh[0]", "S[1]"),
    ):
        a = R.exp(R.reshape(x, R.shape([2, 6, 4])))
        b = R.exp(y)
        c = R.exp(z)
        return (a, b, c)


@pytest.mark.parametrize("order", [[1, 0, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0]])
def test_parameters_in_whole_heads_are_refused_in_another_order(order):
    padded = dx.lower(Grained, until="PadShards")
    columns = [int(param.ty.tensor_ty.shape[1]) for param in padded["main"].params]
    assert columns == [32, 24, 32]
    dx.lower(padded)
    with pytest.raises(ValueError, match=r"`main` has other parameters .* that PadShards padded"):
        dx.lower(with_params(padded, order))
