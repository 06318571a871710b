"""Tests of the importer: names, shardings, texts, and errors."""

import doctest
import re
import sys

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx
from distir_ext.annotate.annotations import Mark

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from jax.sharding import AbstractMesh, AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

jnp, lax = jax.numpy, jax.lax
from_exported = dx.interop.jax.from_exported
from_stablehlo = dx.interop.jax.from_stablehlo
MESH = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def like(*shape, spec=None, dtype="float32"):
    sharding = spec and NamedSharding(MESH, spec)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def exported(function, *arguments):
    return jax.export.export(jax.jit(function), platforms=["cpu"])(*arguments)


def called(name, mod):
    calls = []
    for function in mod.functions.values():
        relax.analysis.post_order_visit(function, lambda node: calls.append(node))
    ops = [getattr(each, "op", None) for each in calls]
    return sum(getattr(op, "name", "") == name for op in ops)


# ---- names and weights


def linear(params, x, unused):
    return x @ params["layers"][0]["w"] + params["b"]


PARAMS = {"layers": [{"w": like(16, 8, spec=P(None, "tp"))}], "b": like(8)}


def test_parameters_are_called_by_their_paths():
    mod = from_exported(exported(linear, PARAMS, like(4, 16, spec=P("dp")), like(2)))
    assert [each.name for each in mod["main"].params] == ["params.b", "params.layers.0.w", "x"]


def gated(params, x):
    gate, up = jnp.split(x @ params["both"], 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ params["down"]


def test_fused_weights_are_cut_by_a_pass():
    """The shardings come with the model, so no plan is annotated that would cut them."""
    weights = {
        "both": like(16, 48, spec=P(None, "tp")),
        "down": like(24, 16, spec=P("tp", None)),
    }
    imported = from_exported(exported(gated, weights, like(4, 16)), weights=["params"])
    mod = dx.transform.CutFusedWeights()(imported)
    assert [each.name for each in mod["main"].params] == [
        "x",
        "params.both_0",
        "params.both_1",
        "params.down",
    ]
    assert len(dx.analysis.collectives(dx.lower(imported))) > 1
    (reduction,) = dx.analysis.collectives(dx.lower(mod))
    assert (reduction.kind, reduction.axes) == ("all_reduce", ("tp",))
    rng = np.random.default_rng(0)
    arrays = {key: rng.random(each.shape, "float32") for key, each in weights.items()}
    x = rng.random((4, 16), "float32")
    with dx.Session(8) as session:
        model = session.load(
            dx.build(mod, QUICK), params=dx.interop.jax.named_leaves(params=arrays)
        )
        np.testing.assert_allclose(model(x).numpy(), gated(arrays, x), rtol=1e-5, atol=1e-5)


def test_weights_come_last():
    mod = from_exported(exported(linear, PARAMS, like(4, 16), like(2)), weights=["params"])
    assert [each.name for each in mod["main"].params] == ["x", "params.b", "params.layers.0.w"]
    assert int(mod["main"].attrs["num_input"]) == 1


def test_a_weight_may_be_one_leaf():
    mod = from_exported(exported(linear, PARAMS, like(4, 16), like(2)), weights=["params.layers"])
    assert [each.name for each in mod["main"].params][-1] == "params.layers.0.w"


def test_weights_that_are_no_argument():
    program = exported(linear, PARAMS, like(4, 16), like(2))
    with pytest.raises(ValueError, match=r"no argument is called 'parms'; .*did you mean 'params'"):
        from_exported(program, weights=["parms"])
    with pytest.raises(TypeError, match=r"weights are a list of names, \('params',\)"):
        from_exported(program, weights="params")


def test_a_lowered_function_is_imported_too():
    mod = from_exported(
        jax.jit(linear).lower({**PARAMS, "layers": [{"w": like(16, 8)}]}, like(4, 16), like(2))
    )
    assert "params.layers.0.w" in [each.name for each in mod["main"].params]


# ---- shardings


def sharding(text, shape="8x16", mesh='["dp"=2, "tp"=4]'):
    return f"""module {{
      sdy.mesh @mesh = <{mesh}>
      func.func public @main(%x: tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<{text}>}})
          -> tensor<{shape}xf32> {{
        %0 = stablehlo.tanh %x : tensor<{shape}xf32>
        return %0 : tensor<{shape}xf32>
      }}
    }}"""


def annotations(mod):
    found = []
    relax.analysis.post_order_visit(mod["main"], lambda node: found.append(node))
    calls = [each for each in found if isinstance(each, relax.Call)]
    marks = [each for each in calls if each.op.name == "relax.dist.annotate_sharding"]
    return [str(Mark.of(each).placement).strip('"') for each in marks]


@pytest.mark.parametrize(
    ("text", "placements"),
    [
        ('@mesh, [{"dp"}, {"tp"}]', ["S[0], S[1]"]),
        ('@mesh, [{"dp", "tp"}, {}]', ["S[0], S[0]"]),
        ("@mesh, [{}, {}]", ["R, R"]),
        ("@mesh, [{?}, {?}]", []),
        ('@mesh, [{"dp", ?}, {?}]', ["S[0], R"]),
        ('mesh<["a"=4]>, [{}, {"a"}]', ["S[1]"]),
    ],
)
def test_shardings_become_annotations(text, placements):
    assert annotations(from_stablehlo(sharding(text))) == placements


def test_meshes_keep_names_and_devices():
    devices = [0, 2, 4, 6, 1, 3, 5, 7]
    mod = from_stablehlo(
        sharding('@mesh, [{"x"}, {}]', mesh=f'["x"=2, "y"=2, "z"=2], device_ids={devices}')
    )
    assert dx.meshes(mod) == (dx.Mesh((2, 2, 2), ("x", "y", "z"), devices),)


def test_a_mesh_without_axes_says_nothing():
    assert annotations(from_stablehlo(sharding("@mesh, [{}, {}]", mesh="[]"))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('@mesh, [{}, {}], unreduced={"tp"}', "unreduced"),
        ('@mesh, [{"dp", "tp"}, {}]', "fewer elements than the 8 shards of mesh axis 'dp', 'tp'"),
    ],
)
def test_shardings_that_cannot_be(text, message):
    with pytest.raises(ValueError, match=r"parameter arg0") as caught:
        from_stablehlo(sharding(text, "4x16"))
    assert message in str(caught.value)


PARTS = """module {
  sdy.mesh @mesh = <["dp"=2, "tp"=4]>
  func.func public @main(
      %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp":(1)2}, {"dp"}]>} loc("x"),
      %w: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>} loc("w"))
      -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {"tp":(2)2}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"tp":(2)2}, {}]> : tensor<8x8xf32>
    return %1 : tensor<8x8xf32>
  }
}"""


def test_parts_of_axes_cut_the_mesh_for_the_whole_module():
    mod = from_stablehlo(PARTS)
    assert dx.meshes(mod)[0] == dx.Mesh(dp=2, tp=4)
    assert annotations(mod) == ["S[1], S[0], R", "R, S[1], S[1]", "R, R, S[0]", "S[0], R, S[1]"]
    propagated = dx.lower(mod, until="propagated")
    x, w = propagated["main"].params
    assert dx.dims(propagated, x) == ("tp:(1)2", "dp")
    assert dx.dims(propagated, w) == (None, "tp")


def test_values_sharded_by_parts_of_axes_are_computed():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((8, 16), (16, 8)))
    with dx.Session(8) as session:
        found = session.load(dx.build(from_stablehlo(PARTS), target=QUICK))["main"](x, w)
    assert found.sharding.dims == ("dp", "tp:(2)2")
    np.testing.assert_allclose(found.numpy(), x @ w, rtol=1e-5, atol=1e-5)


def test_constraints_and_results_are_annotated():
    def function(x):
        x = lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P("dp", "tp")))
        return x + 1

    out = NamedSharding(MESH, P(None, "tp"))
    jitted = jax.jit(function, out_shardings=out)
    program = jax.export.export(jitted, platforms=["cpu"])(like(8, 16, spec=P("dp")))
    assert annotations(from_exported(program)) == ["S[0], R", "S[0], S[1]", "R, S[1]"]


# ---- loops and calls


def test_a_short_loop_is_written_out_and_a_long_one_calls_itself():
    def function(x):
        return lax.fori_loop(0, 10, lambda _, value: jnp.tanh(value), x)

    program = exported(function, like(8))
    assert called("relax.tanh", from_exported(program)) == 10
    mod = from_exported(program, unroll_limit=9)
    assert called("relax.tanh", mod) == 1
    assert "loop" in [each.name_hint for each in mod.get_global_vars()]


def test_iterations_that_are_given_up_leave_no_functions():
    def step(_, value):
        return lax.cond(value.sum() > 0, jnp.tanh, lambda v: v - 1, value)

    def function(x):
        return lax.fori_loop(0, 100, step, x)

    mod = from_exported(exported(function, like(8)))
    names = " ".join(sorted(each.name_hint for each in mod.get_global_vars()))
    assert names == "body branch_0 branch_1 choose closed_call condition loop main run twice"


def test_a_layer_stays_one_function():
    @jax.jit
    def layer(x, w):
        for _ in range(10):
            x = jnp.tanh(x @ w) + x
        return x

    def function(x, w):
        return layer(layer(x, w), w)

    mod = from_exported(exported(function, like(8, 8), like(8, 8)))
    assert sorted(each.name_hint for each in mod.get_global_vars()) == ["layer", "main"]
    assert called("relax.matmul", mod) == 10


def test_named_leaves_are_called_like_parameters():
    mod = from_exported(exported(linear, PARAMS, like(4, 16), like(2)), weights=["params"])
    names = [each.name for each in mod["main"].params][1:]
    assert sorted(dx.interop.jax.named_leaves(params=PARAMS)) == names
    doctests = doctest.testmod(sys.modules[from_exported.__module__])
    assert doctests.attempted
    assert not doctests.failed


# ---- what is refused


def test_functions_that_call_themselves():
    text = """module {
      func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
      func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
    }"""
    with pytest.raises(ValueError, match="@f calls itself"):
        from_stablehlo(text)


def test_all_operations_without_translation_are_listed():
    def function(x):
        noise = lax.rng_uniform(jnp.float32(0), jnp.float32(1), (4,))
        return noise + lax.linalg.hessenberg(jnp.eye(4) + x)[0][0]

    with pytest.raises(ValueError, match=r"^2 operations of the module cannot") as error:
        from_exported(jax.jit(function).lower(like(4)))
    for operation in ("stablehlo.rng", "stablehlo.custom_call of 'lapack_sgehrd_ffi'"):
        where = r" has no translation.* \(jit.* at .*test_import.py:\d+\)"
        assert re.search(operation + where, str(error.value))


def test_near_matches_and_lines_are_said():
    text = sharding("@mesh, [{}, {}]").replace("stablehlo.tanh %x", "chlo.conj %x")
    text = text.replace("%x : tensor<8x16xf32>\n", "%x : tensor<8x16xf32> -> tensor<8x16xf32>\n")
    with pytest.raises(ValueError, match=r"chlo.conj has no translation.* \(line 5\)"):
        from_stablehlo(text)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (
            lambda x: lax.reduce(x, 0.0, lambda a, b: lax.reduce_precision(a + b, 4, 3), (0,)),
            (like(4),),
            "has a region with stablehlo.reduce_precision, which kernels do not compute",
        ),
    ],
)
def test_forms_that_have_no_translation(function, arguments, message):
    with pytest.raises(ValueError, match="cannot be imported") as error:
        from_exported(exported(function, *arguments))
    assert message in str(error.value)


def test_dtypes_that_are_not_imported_are_named_once_with_a_line():
    for function, dtype, name in [
        (lambda x: jnp.fft.fft(x).real, "float32", "complex64"),
        (lambda x: x.real, "complex64", "complex64"),
        (lambda x: x.astype("int4") + 1, "float32", "int4"),
        (lambda x: x.astype("float32"), "uint4", "uint4"),
        (lambda x: x.astype("float8_e3m4"), "float32", "float8_e3m4"),
    ]:
        with pytest.raises(ValueError, match="the program computes in") as error:
            from_exported(exported(function, jax.ShapeDtypeStruct((4,), dtype)))
        text = str(error.value)
        assert re.search(rf"in {name} \(.*test_import.py:\d+\), which is not", text), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module {", "no StableHLO module that jaxlib reads"),
        ("", "the module has no function main"),
        ("module { func.func @f() { return } }", "no function main; it has f"),
        ("\x00\xff", "no StableHLO module that jaxlib reads"),
        (b"ML\xefR\x01", "no StableHLO module that jaxlib reads"),
    ],
)
def test_texts_that_are_no_program(text, message):
    with pytest.raises(ValueError, match=message):
        from_stablehlo(text)


def test_other_things_than_programs():
    with pytest.raises(TypeError, match="expected StableHLO, a text or a module, got int"):
        from_stablehlo(3)
    with pytest.raises(TypeError, match=r"jax.export.export\(jax.jit\(f\)\)\(\*args\)"):
        from_exported(linear)
