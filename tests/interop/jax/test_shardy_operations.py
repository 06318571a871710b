"""Operations of Shardy's dialect and custom calls, as Shardy's own programs have them."""

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

MESH = 'sdy.mesh @mesh = <["a"=2, "b"=2]>\n'
X = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
F = "tensor<8x8xf32>"


def main(arguments, results, *lines):
    """A program of these arguments and lines, whose results are the values of the last one."""
    *body, last = lines
    kinds = ", ".join(results)
    joined = "\n".join(body)
    return (
        f"{MESH}func.func @main({arguments}) -> ({kinds}) {{\n{joined}\nreturn {last} : {kinds}\n}}"
    )


def run(text, *arguments):
    """The values and shardings of a program's results."""
    exe = dx.build(dx.interop.jax.from_stablehlo(text), target=QUICK)
    with dx.Session(4) as session:
        found = session.load(exe)["main"](*arguments)
        found = [found] if isinstance(found, dx.ShardedArray) else list(found)
        return [each.numpy() for each in found], [each.sharding.dims for each in found]


def test_collectives_and_reshards_are_constraints():
    text = main(
        f"%x: {F} {ROWS}",
        [F],
        f'%0 = sdy.reshard %x <@mesh, [{{}}, {{"b"}}]> : {F}',
        f'%1 = sdy.all_gather [{{}}, {{"b"}}] %0 out_sharding=<@mesh, [{{}}, {{}}]> : {F}',
        f'%2 = sdy.all_slice [{{"a"}}, {{}}] %1 out_sharding=<@mesh, [{{"a"}}, {{}}]> : {F}',
        f'%3 = sdy.all_to_all [{{"a"}}: 0->1] %2 out_sharding=<@mesh, [{{}}, {{"a"}}]> : {F}',
        f"%c = sdy.constant dense<2.0> : {F}",
        f"%4 = stablehlo.add %3, %c : {F}",
        "%4",
    )
    (found,), dims = run(text, X)
    np.testing.assert_allclose(found, X + 2, rtol=1e-6)
    assert dims == [(None, "a")]


def test_groups_and_barriers():
    text = main(
        f"%x: {F} {ROWS}, %y: {F}",
        [F, F],
        f"sdy.sharding_group %x group_id = 3 : {F}",
        f"sdy.sharding_group %y group_id = 3 : {F}",
        f"%0 = stablehlo.sine %y : {F}",
        f"%1 = sdy.propagation_barrier %x allowed_direction=NONE : {F}",
        f"%2 = stablehlo.cosine %1 : {F}",
        "%0, %2",
    )
    found, dims = run(text, X, X)
    np.testing.assert_allclose(found, [np.sin(X), np.cos(X)], rtol=1e-5, atol=1e-6)
    assert dims[0] == ("a", None)
    alone = text.replace("sdy.sharding_group %x group_id = 3", "sdy.sharding_group %x group_id = 4")
    assert run(alone, X, X)[1][0] == (None, None)
    assert dims[1] == (None, None)
    for direction, blocked in (("FORWARD", "backward"), ("BACKWARD", "forward"), ("NONE", "both")):
        script = dx.interop.jax.from_stablehlo(text.replace("=NONE", f"={direction}")).script()
        assert f'blocks="{blocked}"' in script


def test_named_computations_edges_and_tokens():
    text = main(
        f"%x: {F}, %t: !stablehlo.token",
        [F, "!stablehlo.token"],
        f'%0 = sdy.named_computation<"f">(%x) in_shardings=[<@mesh, [{{"a"}}, {{}}]>] '
        f'out_shardings=[<@mesh, [{{}}, {{"b"}}]>] (%p: {F}) {{',
        f"%1 = stablehlo.add %p, %p : {F}",
        f"sdy.return %1 : {F}",
        f"}} : ({F}) -> {F}",
        f'%e = sdy.data_flow_edge %0 sharding=<@mesh, [{{}}, {{"b"}}]> : {F}',
        "%k = stablehlo.after_all %t, %t : !stablehlo.token",
        "%e, %k",
    )
    (found, _), dims = run(text, X, np.array(False))
    np.testing.assert_allclose(found, 2 * X)
    assert dims[0] == (None, "b")


def test_custom_calls():
    u64, u32 = "tensor<8xui64>", "tensor<8xui32>"
    first = "{mhlo.attributes = {k = 2 : i64, largest = %s}, mhlo.version = 1 : i64}"
    kinds = "(tensor<8x2xf32>, tensor<8x2xi32>)"
    text = main(
        f"%x: {F} {ROWS}, %u: {u64}",
        ["tensor<8x2xf32>", "tensor<8x2xi32>", "tensor<8x2xf32>", u64],
        f"%0:2 = stablehlo.custom_call @mhlo.topk(%x) {first % 'true'} : ({F}) -> {kinds}",
        f"%1:2 = stablehlo.custom_call @mhlo.topk(%x) {first % 'false'} : ({F}) -> {kinds}",
        f"%2 = stablehlo.custom_call @X64SplitLow(%u) : ({u64}) -> {u32}",
        f"%3 = stablehlo.custom_call @X64SplitHigh(%u) : ({u64}) -> {u32}",
        f"%4 = stablehlo.custom_call @X64Combine(%2, %3) : ({u32}, {u32}) -> {u64}",
        f"%5 = stablehlo.custom_call @annotate_device_placement(%4) : ({u64}) -> {u64}",
        "%0#0, %0#1, %1#0, %5",
    )
    numbers = np.arange(8, dtype="uint64") * 2**31 + 7
    (largest, places, smallest, same), _ = run(text, X, numbers)
    order = np.sort(X, 1)
    np.testing.assert_array_equal(largest, order[:, :-3:-1])
    np.testing.assert_array_equal(np.take_along_axis(X, places, 1), largest)
    np.testing.assert_array_equal(smallest, order[:, :2])
    np.testing.assert_array_equal(same, numbers)


def test_products_and_linear_algebra():
    text = main(
        f"%x: {F} {ROWS}, %v: tensor<8xf32>",
        ["tensor<8xf32>", F, F],
        f"%0 = stablehlo.dot %x, %v : ({F}, tensor<8xf32>) -> tensor<8xf32>",
        f"%1 = stablehlo.cholesky %x, lower = true : {F}",
        '%2 = "stablehlo.triangular_solve"(%1, %x) {left_side = true, lower = true, '
        "unit_diagonal = false, transpose_a = #stablehlo<transpose TRANSPOSE>} : "
        f"({F}, {F}) -> {F}",
        "%0, %1, %2",
    )
    a = X @ X.T + np.eye(8, dtype="float32")
    (product, factor, solved), _ = run(text, a, X[0])
    lower = np.linalg.cholesky(a)
    np.testing.assert_allclose(product, a @ X[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(factor, lower, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(solved, np.linalg.solve(lower.T, a), rtol=1e-3, atol=1e-3)


def test_scatters_of_several_tensors():
    numbers = "update_window_dims = [1], inserted_window_dims = [0], "
    numbers += "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    scalars = ", ".join(f"%{name}: tensor<f32>" for name in "abcd")
    text = main(
        f"%x: {F} {ROWS}, %y: {F}, %i: tensor<2x1xi32>, %u: tensor<2x8xf32>",
        [F, F],
        '%0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %u) ({',
        f"^bb0({scalars}):",
        "%s = stablehlo.add %a, %c : tensor<f32>",
        "stablehlo.return %s, %d : tensor<f32>, tensor<f32>",
        f"}}) {{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}} : "
        f"({F}, {F}, tensor<2x1xi32>, tensor<2x8xf32>, tensor<2x8xf32>) -> ({F}, {F})",
        "%0#0, %0#1",
    )
    (added, replaced), _ = run(text, X, X * 2, np.array([[5], [1]], "int32"), X[:2])
    wanted_sum, wanted = X.copy(), X * 2
    wanted_sum[[5, 1]] += X[:2]
    wanted[[5, 1]] = X[:2]
    np.testing.assert_allclose(added, wanted_sum, rtol=1e-6)
    np.testing.assert_array_equal(replaced, wanted)


def test_batch_normalisation():
    v, attributes = "tensor<8xf32>", "{epsilon = 0.01 : f32, feature_index = 1 : i64}"
    vectors = f"({F}, {v}, {v}, {v}"
    text = main(
        f"%x: {F} {ROWS}, %s: {v}, %o: {v}, %g: {F}",
        [F, v, v, F, F, v, v],
        f'%0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {attributes} : '
        f"({F}, {v}, {v}) -> ({F}, {v}, {v})",
        f'%1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %s, %o) {attributes} : '
        f"{vectors}, {v}) -> {F}",
        f'%2:3 = "stablehlo.batch_norm_grad"(%x, %s, %0#1, %0#2, %g) {attributes} : '
        f"{vectors}, {F}) -> ({F}, {v}, {v})",
        "%0#0, %0#1, %0#2, %1, %2#0, %2#1, %2#2",
    )
    scale, offset = np.linspace(1, 2, 8, dtype="float32"), np.linspace(0.5, 3, 8, dtype="float32")
    given = X[::-1] * 3

    def normal(x, mean, variance):
        return (x - mean) / jax.numpy.sqrt(variance + 0.01)

    def training(x, scale, offset):
        return normal(x, x.mean(0), x.var(0)) * scale + offset

    wanted, back = jax.vjp(training, X, scale, offset)
    inference = normal(X, scale, offset) * scale + offset
    found, _ = run(text, X, scale, offset, given)
    for ours, theirs in zip(
        found, (wanted, X.mean(0), X.var(0), inference, *back(given)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
