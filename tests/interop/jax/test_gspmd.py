"""StableHLO whose shardings are GSPMD's, as torch-xla and JAX without Shardy write it."""

import re

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx
from distir_ext.interop import shardy

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from_stablehlo = dx.interop.jax.from_stablehlo


def hlo(text):
    return f'mhlo.sharding = "{text}"'


def module(x, w="", result="", lines="", shape="8x16", given="%sum", attrs=""):
    """The sum of two arguments, and what lines make of it."""
    return f"""module attributes {{{attrs}}} {{
      sdy.mesh @empty = <[]>
      func.func public @main(%x: tensor<{shape}xf32> {{{x}}} loc("x"),
          %w: tensor<{shape}xf32> {{{w}}} loc("w")) -> (tensor<{shape}xf32> {{{result}}}) {{
        %sum = stablehlo.add %x, %w : tensor<{shape}xf32>
        {lines}
        return {given} : tensor<{shape}xf32>
      }}
    }}"""


def stated(text, **options):
    """Shardings that a program states, in Shardy's notation, and its meshes."""
    meshes, found = shardy.shardings(from_stablehlo(text, **options))
    return {name: str(each) for name, each in found.items()}, meshes


def propagated(text):
    """Shardings of all values after propagation, in Shardy's notation, and the meshes."""
    mod = dx.transform.PropagateSharding()(from_stablehlo(text))
    meshes, found = shardy.shardings(mod)
    return {name: str(each) for name, each in found.items()}, meshes


def body(text):
    return str(shardy.parse(f"<@mesh, {text}>"))


# What torch-xla writes on a mesh of x=2 and y=4 for a spec, in both versions, and Shardy's words.
SPECS = [
    ("devices=[2,4]0,1,2,3,4,5,6,7", "devices=[2,4]<=[8]", '[{"x"}, {"y"}]'),
    ("devices=[4,2]0,4,1,5,2,6,3,7", "devices=[4,2]<=[2,4]T(1,0)", '[{"y"}, {"x"}]'),
    (
        "devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate",
        "devices=[2,1,4]<=[8] last_tile_dim_replicate",
        '[{"x"}, {}]',
    ),
    (
        "devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate",
        "devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate",
        '[{"y"}, {}]',
    ),
    (
        "devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate",
        "devices=[1,2,4]<=[8] last_tile_dim_replicate",
        '[{}, {"x"}]',
    ),
    (
        "devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate",
        "devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate",
        '[{}, {"y"}]',
    ),
    ("devices=[8,1]0,1,2,3,4,5,6,7", "devices=[8,1]<=[8]", '[{"x", "y"}, {}]'),
    ("devices=[8,1]0,4,1,5,2,6,3,7", "devices=[8,1]<=[2,4]T(1,0)", '[{"y", "x"}, {}]'),
    ("devices=[1,8]0,1,2,3,4,5,6,7", "devices=[1,8]<=[8]", '[{}, {"x", "y"}]'),
    ("devices=[1,8]0,4,1,5,2,6,3,7", "devices=[1,8]<=[2,4]T(1,0)", '[{}, {"y", "x"}]'),
]


def test_both_versions_are_annotations_and_shardy_again():
    grid = hlo("{devices=[2,4]<=[8]}")
    for v1, v2, words in SPECS:
        for text in (v1, v2):
            found, meshes = stated(module(hlo(f"{{{text}}}"), w=grid))
            assert found["x"] == body(words), text
            assert list(map(str, meshes.values())) == ['#sdy.mesh<["x"=2, "y"=4]>']
    found, _ = propagated(module(hlo("{replicated}"), result=grid))
    assert (found["x"], found["return"]) == (body("[{}, {}]"), body('[{"x"}, {"y"}]'))


def test_the_mesh_is_the_users_or_the_modules():
    text = "{devices=[4,2]<=[2,4]T(1,0)}"
    found, _ = stated(module(hlo(text)), mesh=dx.Mesh(dp=2, tp=4))
    assert found["x"] == body('[{"tp"}, {"dp"}]')
    found, _ = stated(module(hlo("{devices=[4,2]<=[8]}")), mesh=dx.Mesh(dp=2, tp=4))
    assert found["x"] == body('[{"dp", "tp":(1)2}, {"tp":(2)2}]')
    named = module(hlo(text)).replace("@empty = <[]>", '@known = <["a"=2, "b"=4]>')
    assert stated(named)[0]["x"] == body('[{"b"}, {"a"}]')
    other = named.replace('["a"=2, "b"=4]', '["a"=3]')  # another mesh, over other devices
    assert stated(other)[0]["x"] == body('[{"y"}, {"x"}]')


def test_every_form_of_a_text():
    for text, words in (
        ("{replicated}", "[{}, {}]"),
        ("{devices=[1,1,8]<=[8] last_tile_dim_replicate}", "[{}, {}]"),
        ("{devices=[2,1,2,2]<=[8] last_tile_dims={replicated, replicated}}", '[{"x"}, {}]'),
        ("{mesh['x'=2,'y'=4], [{'y'}, {?}]}", '[{"y"}, {?}]'),
        ("{replicated metadata={op_name=\\22a\\22}}", "[{}, {}]"),
    ):
        assert stated(module(hlo(text), w=hlo("{devices=[2,4]<=[8]}")))[0]["x"] == body(words)
    assert "x" not in stated(module(hlo("{unknown}"), w=hlo("{devices=[2,4]<=[8]}")))[0]
    found, meshes = stated(module(hlo("{maximal device=3}")))
    assert found["x"] == "#sdy.sharding<@mesh, []>"
    assert meshes["mesh"].device_ids == (3,)
    found, meshes = stated(module(hlo("{replicated}"), attrs="mhlo.num_partitions = 6 : i32"))
    assert (found["x"], meshes["mesh"].size) == (body("[{}, {}]"), 6)
    assert stated(module(hlo("{replicated}")))[0] == {}  # without a mesh there is nothing to say


def test_constraints_leave_dimensions_open_and_tie_values():
    lines = f"""%kept = stablehlo.custom_call @Sharding(%sum) {{
        backend_config = "unspecified_dims=[1]",
        {hlo("{devices=[2,1,4]<=[8] last_tile_dim_replicate}")}}}
        : (tensor<8x16xf32>) -> tensor<8x16xf32>
      %out = stablehlo.sine %kept {{
        {hlo("{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}")}}} : tensor<8x16xf32>"""
    mod = from_stablehlo(module("", lines=lines, given="%out"))
    assert 'open=[1], placement="S[0], R"' in mod.script()
    found, _ = propagated(module("", lines=lines, given="%out"))
    assert found["return"] == body('[{}, {"y"}]')

    for tie, words in (("{unknown shard_like 7}", '[{"x"}, {"y"}]'), ("{unknown}", "[{}, {}]")):
        text = f"""func.func @main(
            %x: tensor<8x8xf32> {{{hlo("{devices=[2,4]<=[8] shard_as 7}")}}} loc("x"),
            %w: tensor<8x8xf32> {{{hlo(tie)}}} loc("w")) -> (tensor<8x8xf32>, tensor<8xf32>) {{
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %0 = stablehlo.sine %x : tensor<8x8xf32>
          %1 = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0]
            : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
          return %0, %1 : tensor<8x8xf32>, tensor<8xf32>
        }}"""
        assert propagated(text)[0].get("w", body("[{}, {}]")) == body(words)


WHOLE = "{devices=[3,2]<=[2,3]T(1,0)}"


def manual(body_lines, result, leaves, part="4x3"):
    call = "stablehlo.custom_call"
    return f"""%0 = {call} @Sharding(%sum) {{{hlo(WHOLE)}}} : (tensor<12x6xf32>) -> tensor<12x6xf32>
      %1 = {call} @SPMDFullToShardShape(%0) {{{hlo("{manual}")}}}
        : (tensor<12x6xf32>) -> tensor<4x3xf32>
      {body_lines}
      %3 = {call} @Sharding(%2) {{{hlo("{manual}")}}} : (tensor<{part}xf32>) -> tensor<{part}xf32>
      %4 = {call} @SPMDShardToFullShape(%3) {{{hlo(leaves)}}}
        : (tensor<{part}xf32>) -> tensor<{result}xf32>"""


def ran(text, *arrays, workers):
    with dx.Session(workers) as session:
        return session.load(dx.build(from_stablehlo(text), target=QUICK))["main"](*arrays).numpy()


def test_manual_regions_run_as_numpy():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((12, 6)).astype("float32") for _ in range(2))
    total = x + w
    largest = """%c = stablehlo.constant dense<2.0> : tensor<4x3xf32>
      %m = stablehlo.multiply %1, %c : tensor<4x3xf32>
      %2 = "stablehlo.all_reduce"(%m) <{channel_handle = #stablehlo.channel_handle<handle = 1,
        type = 1>, replica_groups = dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi64>,
        use_global_device_ids}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %t = stablehlo.maximum %a, %b : tensor<f32>
          %s = stablehlo.custom_call @Sharding(%t) {mhlo.sharding = "{manual}"}
            : (tensor<f32>) -> tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) : (tensor<4x3xf32>) -> tensor<4x3xf32>"""
    lines = manual(largest, "4x6", "{devices=[1,2,3]<=[6] last_tile_dim_replicate}")
    text = module("", lines=lines, given="%4", shape="12x6").replace(
        "-> (tensor<12x6xf32>", "-> (tensor<4x6xf32>"
    )
    text = text.replace("return %4 : tensor<12x6xf32>", "return %4 : tensor<4x6xf32>")
    expected = 2 * total.reshape(3, 4, 6).max(axis=0)
    np.testing.assert_allclose(ran(text, x, w, workers=6), expected, rtol=1e-6)

    # The number of a device along x, which nothing that has entered gives; and constants.
    lines = (
        manual("%2 = stablehlo.add %1, %1 : tensor<4x3xf32>", "12x6", WHOLE)
        + """
      %id = func.call @number() : () -> tensor<1x1xf32>
      %5 = stablehlo.custom_call @Sharding(%id) {mhlo.sharding = "{manual}"}
        : (tensor<1x1xf32>) -> tensor<1x1xf32>
      %6 = stablehlo.custom_call @SPMDShardToFullShape(%5) {mhlo.sharding =
        "{devices=[2,3]<=[6]}"} : (tensor<1x1xf32>) -> tensor<2x3xf32>
      %7 = stablehlo.reshape %6 : (tensor<2x3xf32>) -> tensor<6xf32>
      %8 = stablehlo.broadcast_in_dim %7, dims = [1] : (tensor<6xf32>) -> tensor<12x6xf32>
      %9 = stablehlo.add %4, %8 : tensor<12x6xf32>"""
    )
    number = """func.func private @number() -> tensor<1x1xf32> {
        %p = stablehlo.partition_id : tensor<ui32>
        %f = stablehlo.convert %p : (tensor<ui32>) -> tensor<f32>
        %r = stablehlo.reshape %f : (tensor<f32>) -> tensor<1x1xf32>
        return %r : tensor<1x1xf32>
      }
      func.func public @main"""
    text = module("", lines=lines, given="%9", shape="12x6").replace(
        "func.func public @main", number
    )
    np.testing.assert_allclose(ran(text, x, w, workers=6), 2 * total + np.arange(6), rtol=1e-6)


def test_automatic_axes_stay_beside_manual_ones():
    call, open_dims = "stablehlo.custom_call", 'backend_config = "unspecified_dims=[0,1]"'
    inner = hlo("{devices=[1,1,2,3]<=[6] last_tile_dims={manual, replicated}}")
    rows = hlo("{devices=[2,1,3]<=[6] last_tile_dim_replicate}")
    lines = f"""%0 = {call} @Sharding(%sum) {{{open_dims}, {rows}}}
        : (tensor<12x6xf32>) -> tensor<12x6xf32>
      %1 = {call} @SPMDFullToShardShape(%0) {{{open_dims}, {inner}}}
        : (tensor<12x6xf32>) -> tensor<6x6xf32>
      %t = stablehlo.transpose %1, dims = [1, 0] : (tensor<6x6xf32>) -> tensor<6x6xf32>
      %2 = stablehlo.dot_general %1, %t, contracting_dims = [1] x [0]
        : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>
      %3 = {call} @Sharding(%2) {{{open_dims}, {inner}}} : (tensor<6x6xf32>) -> tensor<6x6xf32>
      %4 = {call} @SPMDShardToFullShape(%3) {{{open_dims}, {rows}}}
        : (tensor<6x6xf32>) -> tensor<12x6xf32>"""
    text = module(
        hlo("{devices=[1,3,2]<=[2,3]T(1,0) last_tile_dim_replicate}"),
        lines=lines,
        given="%4",
        shape="12x6",
    )
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((12, 6)).astype("float32") for _ in range(2))
    halves = (x + w).reshape(2, 6, 6)
    expected = np.concatenate([half @ half.T for half in halves])
    np.testing.assert_allclose(ran(text, x, w, workers=6), expected, rtol=1e-5, atol=1e-5)


def test_one_error_names_what_cannot_be_taken():
    grid = "{devices=[2,4]<=[8]}"
    enter = """%1 = stablehlo.custom_call @SPMDFullToShardShape(%sum) {mhlo.sharding = "{manual}"}
        : (tensor<8x16xf32>) -> tensor<4x4xf32>"""
    leave = f"""%1 = stablehlo.custom_call @SPMDShardToFullShape(%sum) {{{hlo("{replicated}")}}}
        : (tensor<8x16xf32>) -> tensor<8x16xf32>"""
    config = f"""%1 = stablehlo.custom_call @Sharding(%sum) {{backend_config = "open=[1]",
        {hlo(grid)}}} : (tensor<8x16xf32>) -> tensor<8x16xf32>"""
    for text, said in (
        (
            module(hlo("{manual}")),
            "{manual} is over all devices, and the module does not say which",
        ),
        (module(hlo("{manual}"), w=hlo(grid)), 'is manual over "x", "y"'),
        (
            module(hlo("{devices=[2,1,4]<=[8] last_tile_dims={unreduced}}")),
            "is unreduced (partial)",
        ),
        (module(hlo("{devices=[8]<=[8]}")), "has 1 dimensions, and the tensor has 2"),
        (module(hlo("{devices=[2,4]<=[9]}")), "tile dims [2,4] have 8 devices, not 9"),
        (module(hlo("{{replicated}, {replicated}}")), "is a tuple of 2"),
        (module(hlo("replicated")), "expected '{'"),
        (
            module(f'{hlo(grid)}, sdy.sharding = #sdy.sharding<mesh<["a"=2]>, [{{"a"}}, {{}}]>'),
            "states both sdy.sharding and mhlo.sharding",
        ),
        (module(hlo(grid), lines=enter), "along which axes it is cut stands nowhere"),
        (module(hlo(grid), lines=leave), "that @SPMDFullToShardShape has not given"),
        (module(hlo(grid), lines=config), "'open=[1]', which says no unspecified_dims"),
        (
            module(hlo(grid), lines=config.replace("open=[1]", "unspecified_dims=[2]")),
            "dimension 2 is unspecified, of 2",
        ),
        (
            module(hlo(grid), lines=enter.replace("{manual}", grid)),
            "is to no manual axes: it states {devices=[2,4]<=[8]}",
        ),
    ):
        with pytest.raises(ValueError, match="(?s)1 operation of the module.*" + re.escape(said)):
            from_stablehlo(text)
    for text, said in (
        (
            module(hlo(grid), w=hlo("{devices=[4,1]<=[4]}")),
            "on no mesh: the sharding has 4 devices",
        ),
        (module(hlo(grid), attrs="mhlo.num_partitions = 4 : i32"), "mhlo.num_partitions = 4"),
        (
            module(hlo(grid), attrs='mhlo.spmd_output_sharding = "{replicated}"'),
            "states mhlo.spmd_output_sharding: GSPMD has partitioned it already",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            from_stablehlo(text)


SHARDED = 'stablehlo.custom_call @Sharding({}) {{mhlo.sharding = "{{replicated}}"}} : ({}) -> {}'


def region(lines, result):
    """A sum over rows by a region of %p and %q."""
    return f"""module attributes {{mhlo.num_partitions = 2 : i32}} {{
      func.func public @main(%x: tensor<8x4xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}})
          -> tensor<4xf32> {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%x init: %zero) across dimensions = [0]
            : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
          reducer(%p: tensor<f32>, %q: tensor<f32>) {{
            {lines}
            stablehlo.return {result} : tensor<f32>
          }}
        return %0 : tensor<4xf32>
      }}
    }}"""


def test_regions_may_state_shardings_of_arguments_and_results():
    f32 = "tensor<f32>"
    x = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
    of_result = SHARDED.format("%s", f32, f32)
    of_argument = SHARDED.format("%p", f32, f32)
    with dx.Session(2) as session:
        for lines, result in (
            (f"%s = stablehlo.add %p, %q : {f32}\n%r = {of_result}", "%r"),
            (f"%r = {of_argument}\n%s = stablehlo.add %r, %q : {f32}", "%s"),
        ):
            mod = from_stablehlo(region(lines, result))
            found = session.load(dx.build(mod, QUICK))["main"](x)
            np.testing.assert_allclose(found.numpy(), x.sum(0), rtol=1e-5)


def test_a_region_that_returns_an_argument_is_no_sum():
    mod = from_stablehlo(region("%s = stablehlo.add %p, %q : tensor<f32>", "%p"))
    assert "R.sum" not in mod["main"].script()
