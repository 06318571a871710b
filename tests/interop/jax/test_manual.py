"""Imports of StableHLO text with sdy.manual_computation: odd meshes, automatic axes, errors."""

import re

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from_stablehlo = dx.interop.jax.from_stablehlo
MESH = '["dp"=3, "tp"=2]'
BY_DEVICES = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def module(body, result="12x8", shape="12x8", mesh=MESH, given=""):
    return f"""module {{
      sdy.mesh @mesh = <{mesh}>
      func.func public @main(%x: tensor<{shape}xf32>{given} loc("x")) -> tensor<{result}xf32> {{
        {body}
        return %0 : tensor<{result}xf32>
      }}
    }}"""


def region(lines, ins, outs, axes, part, shape="12x8", result=None, result_part=None):
    """A manual computation of %x, whose part is %p; what it returns is %r."""
    return f"""%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {ins}>]
      out_shardings=[<@mesh, {outs}>] manual_axes={axes} (%p: tensor<{part}xf32>) {{
        {lines}
        sdy.return %r : tensor<{result_part or part}xf32>
      }} : (tensor<{shape}xf32>) -> tensor<{result or shape}xf32>"""


def collective(name, groups, attrs, part, result, of="%p", reducer="stablehlo.add", ids=True):
    has_ids = ", use_global_device_ids" if ids else ""
    if name in ("all_to_all", "collective_permute", "collective_broadcast"):
        has_ids = ""
    key = "source_target_pairs" if name == "collective_permute" else "replica_groups"
    matrix = f"dense<{groups}> : tensor<{len(groups)}x{len(groups[0])}xi64>"
    attrs = ", ".join(filter(None, [attrs, f"{key} = {matrix}", BY_DEVICES]))
    body = ""
    if "reduce" in name:
        body = f"""({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %c = {reducer} %a, %b : tensor<f32>
            stablehlo.return %c : tensor<f32>
        }})"""
    return (
        f'%r = "stablehlo.{name}"({of}) <{{{attrs}{has_ids}}}> {body}'
        f" : (tensor<{part}xf32>) -> tensor<{result}xf32>"
    )


ROWS, COLUMNS = [[0, 2, 4], [1, 3, 5]], [[0, 1], [2, 3], [4, 5]]


def along_dp(name, attrs, result, groups=ROWS, **kwargs):
    """A collective of a third of the rows, of which all devices' results are joined."""
    return region(
        collective(name, groups, attrs, "4x8", result, **kwargs),
        '[{"dp"}, {}]',
        '[{"dp", "tp"}, {}]',
        '{"dp", "tp"}',
        "4x8",
        result=f"{int(result[:-2]) * 6}x8",
        result_part=result,
    )


def ran(mod, *arrays, workers=6):
    assert dx.phase(mod) == "annotated"
    with dx.Session(workers) as session:
        return session.load(dx.build(mod, target=QUICK))["main"](*arrays).numpy()


def rows(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


X = rows(12, 8)
PARTS = np.split(X, 3)


@pytest.mark.parametrize(
    ("name", "attrs", "result", "groups", "reducer", "expected"),
    [
        ("all_reduce", "", "4x8", ROWS, "stablehlo.add", [sum(PARTS)] * 6),
        ("all_reduce", "", "4x8", ROWS, "stablehlo.multiply", [np.prod(PARTS, 0)] * 6),
        ("all_gather", "all_gather_dim = 0 : i64", "12x8", ROWS, "", [X] * 6),
        (
            "all_to_all",
            "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64",
            "4x8",
            COLUMNS,
            "",
            [np.tile(half, (2, 1)) for each in PARTS for half in (each[:2], each[2:])],
        ),
        (
            "collective_permute",
            "",
            "4x8",
            [[0, 2], [1, 3], [4, 0], [5, 1]],
            "",
            [PARTS[2]] * 2 + [PARTS[0]] * 2 + [0 * X[:4]] * 2,
        ),
        ("collective_broadcast", "", "4x8", [[2, 0, 4], [3, 1, 5]], "", [PARTS[1]] * 6),
    ],
)
def test_collectives_on_an_odd_mesh(name, attrs, result, groups, reducer, expected):
    text = along_dp(name, attrs, result, groups, reducer=reducer)
    mod = from_stablehlo(module(text, result=f"{np.concatenate(expected).shape[0]}x8"))
    np.testing.assert_allclose(ran(mod, X), np.concatenate(expected), rtol=1e-4, atol=1e-5)


def test_devices_of_a_mesh_in_another_order():
    """Groups name devices, which stand in the mesh in another order than 0, 1, .."""
    mesh = '["dp"=3, "tp"=2], device_ids=[5, 4, 3, 2, 1, 0]'
    text = along_dp("all_gather", "all_gather_dim = 0 : i64", "12x8", [[4, 2, 0], [5, 3, 1]])
    mod = from_stablehlo(module(text, result="72x8", mesh=mesh))
    # Device 4 is the first of its group.
    expected = np.concatenate([PARTS[0], PARTS[1], PARTS[2]])
    np.testing.assert_array_equal(ran(mod, X), np.concatenate([expected] * 6))


def test_axes_that_stay_automatic_are_annotated_inside():
    lines = collective("all_reduce", COLUMNS, "", "12x4", "12x4").replace("%r", "%s", 1)
    lines += """
        %t = stablehlo.tanh %s : tensor<12x4xf32>
        %r = sdy.sharding_constraint %t <@mesh, [{?}, {}]> : tensor<12x4xf32>"""
    text = region(lines, '[{"dp", ?}, {"tp", ?}]', "[{?}, {?}]", '{"tp"}', "12x4", result="12x4")
    mod = from_stablehlo(module(text, result="12x4"))
    marks = annotations(mod)
    assert [mesh.axis_names for mesh, _ in marks] == [("dp",)] * 2
    assert [dims for _, dims in marks] == [(("dp", ...), ...), (..., None)]
    np.testing.assert_allclose(ran(mod, X), np.tanh(X[:, :4] + X[:, 4:]), rtol=1e-4, atol=1e-5)


def annotations(mod):
    from distir_ext.annotate.annotations import Mark
    from distir_ext.mesh.notation import Notation

    found = []
    relax.analysis.post_order_visit(mod["main"], found.append)
    notation = Notation(mod)
    calls = [each for each in found if isinstance(each, relax.Call)]
    marks = [
        (Mark.of(each), each.ty) for each in calls if each.op.name == "relax.dist.annotate_sharding"
    ]
    return [(notation.mesh(mark.type_of(kind)), mark.dims(notation, kind)) for mark, kind in marks]


def test_what_goes_out_comes_back():
    """Export writes one manual computation, with groups of positions and a place of a slice."""
    source = relax.Var("x", relax.TensorType((12, 8), "float32"))
    weight = relax.Var("layer.w", relax.TensorType((8, 6), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [source, weight]):
        product = builder.emit(relax.op.matmul(source, weight))
        product = builder.emit(dx.constrain(product, dx.Mesh(dp=3, tp=2), (None, "dp")))
        builder.emit_func_output(builder.emit(relax.op.nn.softmax(product, axis=1)))
    mod = dx.annotate(
        builder.get(), dx.Mesh(dp=3, tp=2), {"x": (None, "tp"), "layer.w": ("tp", None)}
    )
    text = dx.interop.jax.to_stablehlo(mod)
    again = from_stablehlo(text)
    assert [each.name for each in again["main"].params] == ["x", "layer.w"]
    w = rows(8, 6)
    scores = np.exp(X @ w)
    found = ran(again, X, w)
    np.testing.assert_allclose(found, scores / scores.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)


def refused(text):
    with pytest.raises(ValueError, match="cannot be imported") as error:
        from_stablehlo(text)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            along_dp("all_reduce", "", "4x8", [[0, 3], [1, 2], [4, 5]]),
            "in the groups [[0, 3], [1, 2], [4, 5]], which are not those along any axes of "
            "Mesh((3, 2), ('dp', 'tp'))",
        ),
        (
            along_dp("all_reduce", "", "4x8")
            .replace("24x8", "12x8")
            .replace('[{"dp", "tp"}, {}]', '[{"dp"}, {}]')
            .replace('{"dp", "tp"}', '{"dp"}')
            .replace(str(ROWS), str(COLUMNS))
            .replace("tensor<2x3xi64>", "tensor<3x2xi64>"),
            "along 'tp', which stays automatic here; the manual axes are 'dp'",
        ),
        (
            along_dp("collective_permute", "", "4x8", [[0, 2]])
            .replace("24x8", "12x8")
            .replace('[{"dp", "tp"}, {}]', '[{"dp"}, {}]')
            .replace('{"dp", "tp"}', '{"dp"}'),
            "from devices to devices [[0, 2]], which are not the same for all along axes that "
            "stay automatic",
        ),
        (
            along_dp("all_reduce", "", "4x8", reducer="stablehlo.divide"),
            "by stablehlo.divide; there are stablehlo.add",
        ),
        (along_dp("all_reduce", "", "4x8", ids=False), "is between replicas of a program"),
        (
            "\n".join(
                [collective("all_reduce", ROWS, "", "12x8", "12x8", "%x"), "%0 = stablehlo.tanh %r"]
            )
            + " : tensor<12x8xf32>",
            "is between replicas of a program",
        ),
        (
            """%i = stablehlo.partition_id : tensor<ui32>
            %0 = stablehlo.tanh %x : tensor<12x8xf32>""",
            "stablehlo.partition_id is outside of a manual computation",
        ),
        (
            region(
                "%i = stablehlo.partition_id : tensor<ui32>\n"
                "%r = stablehlo.tanh %p : tensor<4x8xf32>",
                '[{"dp"}, {}]',
                '[{"dp"}, {}]',
                '{"dp"}',
                "4x8",
            ),
            "stablehlo.partition_id depends on axes that stay automatic; the manual axes are 'dp'",
        ),
    ],
)
def test_what_cannot_be_said(text, message):
    result = re.findall(r"-> tensor<(\w+)xf32>\s*$", text)
    assert message in refused(module(text, result=result[0] if result else "12x8"))


def test_groups_of_one_device_communicate_nothing():
    groups = [[number] for number in range(6)]
    lines = collective("all_reduce", groups, "", "12x8", "12x8", "%x", ids=False)
    text = module(lines.replace("%r", "%0", 1).replace(BY_DEVICES, "").replace(", >", ">"))
    text = re.sub(r", +}>", "}>", text)
    mod = from_stablehlo(text)
    assert "manual" not in mod.script()


def test_a_loop_of_collectives_is_a_function_of_the_region():
    inner = collective("all_reduce", ROWS, "", "4x8", "4x8", "%v").replace("%r", "%s", 1)
    lines = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
        %m = stablehlo.constant dense<1.0e+04> : tensor<f32>
        %r = stablehlo.while(%v = %p) : tensor<4x8xf32>
          cond {{
            %q = stablehlo.reduce(%v init: %z) applies stablehlo.maximum across dimensions = [0, 1]
              : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
            %k = stablehlo.compare LT, %q, %m : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %k : tensor<i1>
          }} do {{
            {inner}
            stablehlo.return %s : tensor<4x8xf32>
          }}"""
    text = region(lines, '[{"dp"}, {}]', '[{"dp"}, {}]', '{"dp", "tp"}', "4x8")
    mod = from_stablehlo(module(text))
    x = np.abs(X) + 1
    expected = sum(np.split(x, 3))
    while expected.max() < 1e4:
        expected = 3 * expected
    np.testing.assert_allclose(ran(mod, x), np.concatenate([expected] * 3), rtol=1e-4)
