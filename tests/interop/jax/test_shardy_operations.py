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


def test_shardings_of_results_of_shardy():
    """As of all operations: of constants, barriers and edges, too."""
    text = main(
        f"%x: {F} {ROWS}",
        [F, F, F],
        f'%0 = sdy.constant {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{"b"}}]>]>}} '
        f"dense<2.0> : {F}",
        "%1 = sdy.propagation_barrier %x allowed_direction=NONE "
        f'{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"b"}}, {{}}]>]>}} : {F}',
        f"%2 = func.call @sine(%x) : ({F}) -> {F}",
        "%3 = sdy.func_data_flow_edge %2 "
        f'{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{"a"}}]>]>}} : {F}',
        "%0, %1, %3",
    )
    text += f"""
func.func private @sine(%x: {F}) -> {F} {{
  %0 = stablehlo.sine %x : {F}
  return %0 : {F}
}}"""
    found, dims = run(text, X)
    np.testing.assert_allclose(found, [0 * X + 2, X, np.sin(X)], rtol=1e-5, atol=1e-6)
    assert dims == [(None, "b"), ("b", None), (None, "a")]
    with pytest.raises(ValueError, match=r"sdy\.constant .* unreduced \(partial\) over \"a\""):
        run(text.replace('[{}, {"b"}]>', '[{}, {"b"}], unreduced={"a"}>'), X)


def test_every_collective_keeps_the_value():
    text = main(
        f"%x: {F} {ROWS}",
        [F],
        f'%0 = sdy.collective_permute %x out_sharding=<@mesh, [{{"b"}}, {{}}]> : {F}',
        f'%1 = sdy.all_slice [{{}}, {{"a"}}] %0 out_sharding=<@mesh, [{{"b"}}, {{"a"}}]> : {F}',
        f'%2 = sdy.all_gather [{{"b"}}, {{}}] %1 out_sharding=<@mesh, [{{}}, {{"a"}}]> : {F}',
        f'%3 = sdy.all_to_all [{{"a"}}: 1->0] %2 out_sharding=<@mesh, [{{"a"}}, {{}}]> : {F}',
        "%3",
    )
    reduced = main(
        f"%x: {F} {ROWS}",
        [F],
        "%0 = stablehlo.dot %x, %x "
        '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} '
        f": ({F}, {F}) -> {F}",
        f'%1 = sdy.all_reduce {{"b"}} %0 out_sharding=<@mesh, [{{"a"}}, {{}}]> : {F}',
        '%2 = sdy.reduce_scatter [{}, {"b"}] %1 '
        f'out_sharding=<@mesh, [{{"a"}}, {{"b"}}]> : {F}',
        "%2",
    )
    for program, wanted, sharding in ((text, X, ("a", None)), (reduced, X @ X, ("a", "b"))):
        (found,), dims = run(program, X)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        assert dims == [sharding]


def test_groups_that_cannot_be():
    inside = (
        '%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>] '
        'out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a"} (%p: tensor<4x8xf32>) {',
        "sdy.sharding_group %p group_id = 1 : tensor<4x8xf32>",
        "sdy.return %p : tensor<4x8xf32>",
        f"}} : ({F}) -> {F}",
    )
    for lines, reason in (
        (inside, "group 1 with a value beyond the edge of a manual computation"),
        (
            (
                "%0 = stablehlo.slice %x [0:4, 0:8] : (tensor<8x8xf32>) -> tensor<4x8xf32>",
                "sdy.sharding_group %0 group_id = 1 : tensor<4x8xf32>",
            ),
            r"another shape: \(8, 8\) and \(4, 8\)",
        ),
    ):
        group = f"sdy.sharding_group %x group_id = 1 : {F}"
        with pytest.raises(ValueError, match=reason):
            dx.interop.jax.from_stablehlo(main(f"%x: {F} {ROWS}", [F], group, *lines, "%x"))


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


def test_places_of_memory_barriers_and_partial_reductions():
    options = "{k = 3 : i64, reduction_dim = 1 : i64, aggregate_to_topk = true}"
    reduce = (
        "stablehlo.custom_call @PartialReduce(%x, %y, %z, %z) "
        f"{{called_computations = [@larger], mhlo.backend_config = {options}}} : "
        f"({F}, {F}, tensor<f32>, tensor<f32>) -> (tensor<8x3xf32>, tensor<8x3xf32>)"
    )
    text = main(
        f"%x: {F} {ROWS}, %y: {F}",
        [F, F, F, "tensor<8x3xf32>", "tensor<8x3xf32>"],
        *(
            f"%{name} = stablehlo.custom_call @{target}(%x) : ({F}) -> {F}"
            for name, target in (("h", "MoveToHost"), ("d", "MoveToDevice"))
        ),
        f"%l = stablehlo.custom_call @LayoutConstraint(%x) : ({F}) -> {F}",
        f"%b:2 = stablehlo.optimization_barrier %l, %y : {F}, {F}",
        "%z = stablehlo.constant dense<0.0> : tensor<f32>",
        f"%r:2 = {reduce}",
        "%h, %d, %b#0, %r#0, %r#1",
    )
    scalars = ", ".join(f"%{name}: tensor<f32>" for name in "abcd")
    text += f"""
func.func private @larger({scalars}) -> tensor<i1> {{
  %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  return %0 : tensor<i1>
}}"""
    found, dims = run(text, X, X * 2)
    order = np.argsort(-X, 1)[:, :3]
    largest = np.take_along_axis(X, order, 1)
    for ours, wanted in zip(found, (X, X, X, largest, 2 * largest), strict=True):
        np.testing.assert_array_equal(ours, wanted)
    assert dims[0] == dims[2] == ("a", None)
    with pytest.raises(ValueError, match="'PartialReduce' by @absent, which the module has not"):
        run(text.replace("[@larger]", "[@absent]"), X, X)


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
