"""Tests of each form of Shardy sharding in a StableHLO module: imported, or refused."""

import re

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx
from distir_ext.interop import shardy

pytest.importorskip("jax", reason="JAX is not installed: pip install jax")

from_stablehlo = dx.interop.jax.from_stablehlo

MESHES = """sdy.mesh @mesh = <["a"=2, "b"=3]>
  sdy.mesh @empty = <[]>
  sdy.mesh @one = <[], device_ids=[4]>
  sdy.mesh @six = <["c"=6]>
  sdy.mesh @twelve = <["d"=12]>
  sdy.mesh @other = <["e"=3, "f"=4]>"""


def module(x, w='<@mesh, [{"a"}, {"b"}]>', meshes=MESHES, lines="", result="%0"):
    return f"""{meshes}
    func.func @main(%x: tensor<12x6xf32> {{sdy.sharding = #sdy.sharding{x}}} loc("x"),
        %w: tensor<12x6xf32> {{sdy.sharding = #sdy.sharding{w}}} loc("w")) -> tensor<12x6xf32> {{
      %0 = stablehlo.add %x, %w : tensor<12x6xf32>
      {lines}
      return {result} : tensor<12x6xf32>
    }}"""


def propagated(text):
    mod = dx.transform.PropagateSharding()(from_stablehlo(text))
    return {name: str(each) for name, each in shardy.shardings(mod)[1].items()}


def body(dims, mesh="mesh"):
    return str(shardy.parse(f"<@{mesh}, {dims}>"))


def test_every_form_is_taken():
    for x, dims in (
        ('<@mesh, [{}, {"b"}]>', '[{}, {"b"}]'),
        ('<@mesh, [{"a"}, {?}]>', '[{"a"}, {"b"}]'),
        ("<@mesh, [{?}, {?}]>", '[{"a"}, {"b"}]'),
        ("<@mesh, [{?}, {?}p1]>", '[{"a"}, {"b"}]'),
        ('<@mesh, [{?}, {?}], replicated={"b"}>', '[{"a"}, {}]'),
        ('<@mesh, [{?}, {}], replicated={"b"}>', '[{"a"}, {}]'),
        # The empty mesh is every mesh.
        ("<@empty, [{}, {}]>", "[{}, {}]"),
        ("<@empty, [{?}, {}]>", '[{"a"}, {}]'),
        ("<@empty, [{?}, {?}]>", '[{"a"}, {"b"}]'),
        ("<mesh<[]>, [{}, {?}]>", '[{}, {"b"}]'),
        ('<mesh<["a"=2, "b"=3]>, [{"b", "a"}, {}]>', '[{"b", "a"}, {}]'),
        ("<@one, []>", "[]"),
    ):
        assert propagated(module(x))["x"] == body(dims), x
    # Without another mesh there is nothing to be replicated on.
    assert propagated(module("<@empty, [{}, {}]>", "<@empty, [{}, {}]>")) == {}
    alone = "sdy.mesh @empty = <[]>"
    text = module("<@empty, [{}, {}]>", "<@empty, [{?}, {}]>", alone)
    assert shardy.shardings(from_stablehlo(text))[1] == {}


def test_priorities_without_axes_wait():
    mod = from_stablehlo(module("<@mesh, [{?}p2, {?}p1]>"))
    assert 'open=[0, 1], placement="R, R", priorities=[2, 1]' in mod.script()


def test_sub_axes_of_different_sizes_and_beside_other_meshes():
    # The same axis as 2 x 3 and as 3 x 2.
    text = module('<@six, [{"c":(1)2}, {}]>', '<@six, [{}, {"c":(3)2}]>')
    assert propagated(text)["x"] == body('[{"c":(1)2}, {}]')
    assert propagated(text)["w"] == body('[{}, {"c":(3)2}]')
    text = module('<@twelve, [{"d":(3)4}, {}]>', '<@twelve, [{"d":(2)2}, {"d":(1)2}]>')
    assert propagated(text)["x"] == body('[{"d":(3)4}, {}]')
    assert propagated(text)["w"] == body('[{"d":(2)2}, {"d":(1)2}]')
    # A mesh that is there, and one that is used, of the shape that the parts make.
    text = module('<@twelve, [{"d":(1)3}, {}]>', '<@twelve, [{}, {"d":(1)3}]>')
    assert propagated(text)["w"] == body('[{}, {"d":(1)3}]')
    text = module('<@twelve, [{"d":(1)3}, {}]>', '<@other, [{"e"}, {}]>')
    words = {body('[{"d":(1)3}, {}]'), body('[{"e"}, {}]')}  # both say the same
    assert set(propagated(text).values()) <= words
    text = module('<@other, [{"e"}, {}]>', '<@twelve, [{"d":(1)3}, {}]>')
    assert set(propagated(text).values()) <= words


def test_manual_computations_without_manual_axes_state_shardings():
    lines = """%1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"b"}, {}]>]
        out_shardings=[<@mesh, [{}, {"a"}]>] manual_axes={} (%p: tensor<12x6xf32>) {
          %r = stablehlo.sine %p : tensor<12x6xf32>
          sdy.return %r : tensor<12x6xf32>
        } : (tensor<12x6xf32>) -> tensor<12x6xf32>"""
    open_dims = "<@mesh, [{?}, {?}]>"
    found = propagated(module(open_dims, open_dims, lines=lines, result="%1"))
    assert found == {
        "x": body('[{"b"}, {}]'),
        "w": body('[{"b"}, {}]'),
        "return": body('[{}, {"a"}]'),
    }


def test_results_and_constants_are_annotated():
    lines = """%c = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh,
          [{"b"}, {}]>]>} dense<2.0> : tensor<12x6xf32>
      %1 = stablehlo.multiply %c, %c : tensor<12x6xf32>"""
    open_dims = "<@mesh, [{?}, {?}]>"
    assert propagated(module(open_dims, open_dims, lines=lines, result="%1"))["return"] == (
        body('[{"b"}, {}]')
    )


def test_shardings_that_are_written_for_hlo():
    def quoted(dims):
        return dims.replace('"', "\\22")

    text = f"""module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes =
        "{{mesh = #sdy.mesh<[{quoted('"a"=2, "b"=3')}]>}}"}}}} {{
      func.func @main(%x: tensor<12x6xf32> {{mhlo.frontend_attributes = {{xla.sdy.sharding =
            "#sdy.sharding<@mesh, {quoted('[{"a"}, {}]')}>"}}, mhlo.sharding = "{{replicated}}"}}
            loc("x")) -> tensor<12x6xf32> {{
        %0 = stablehlo.sine %x : tensor<12x6xf32>
        %1 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%0) {{has_side_effect = true,
          mhlo.frontend_attributes = {{xla.sdy.sharding =
            "#sdy.sharding_per_value<[<@mesh, {quoted('[{}, {"b"}]')}>]>"}}}}
          : (tensor<12x6xf32>) -> tensor<12x6xf32>
        return %1 : tensor<12x6xf32>
      }}
    }}"""
    assert propagated(text) == {"x": body('[{"a"}, {}]'), "return": body('[{}, {"b"}]')}


def test_what_no_annotation_states_is_one_error():
    two = 'sdy.mesh @p = <["a"=2]>\\n sdy.mesh @q = <["b"=3]>\\n sdy.mesh @empty = <[]>'
    lines = """%1 = stablehlo.sine %0 {sdy.sharding = #sdy.sharding_per_value<[<@empty,
        [{}, {}]>]>} : tensor<12x6xf32>"""
    for text, said in (
        (module('<@mesh, [{?}, {?}], unreduced={"b"}>'), 'is unreduced (partial) over "b"'),
        (module('<@mesh, [{"a"}, {}], unreduced={"b"}>'), 'is unreduced (partial) over "b"'),
        (
            module('<@p, [{"a"}, {}]>', '<@q, [{"b"}, {}]>', two, lines),
            "the module has meshes over different ones: #sdy.mesh",
        ),
    ):
        text = text.replace("\\n", chr(10))
        with pytest.raises(ValueError, match="(?s)1 operation of the module.*" + re.escape(said)):
            from_stablehlo(text)


def test_operations_that_are_written_for_hlo():
    """Calls that JAX wrote for shard_map, barriers and groups are Shardy's operations again."""
    cut = '#sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>'.replace('"', "\\22")
    axes = "#sdy<manual_axes{\\22a\\22}>"
    enters = f'xla.sdy.in_shardings = "{cut}"'
    leaves = f'xla.sdy.out_shardings = "{cut}"'
    manual = f'xla.sdy.manual_axes = "{axes}"'
    text = f"""module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes =
        "{{mesh = #sdy.mesh<[\\22a\\22=2]>}}"}}}} {{
      func.func @main(%x: tensor<2x4xf32> loc("x")) -> tensor<2x4xf32> {{
        %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) {{mhlo.frontend_attributes =
          {{{enters}, {manual}}}}} : (tensor<2x4xf32>) -> tensor<1x4xf32>
        %1 = call @xla.sdy.manual_computation_body(%0) {{mhlo.frontend_attributes =
          {{{enters}, {leaves}, {manual}}}}} : (tensor<1x4xf32>) -> tensor<1x4xf32>
        %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {{mhlo.frontend_attributes =
          {{{leaves}, {manual}}}}} : (tensor<1x4xf32>) -> tensor<2x4xf32>
        %3 = stablehlo.custom_call @xla.sdy.PropagationBarrier(%2) {{mhlo.frontend_attributes =
          {{xla.sdy.allowed_direction = "2 : i32"}}}} : (tensor<2x4xf32>) -> tensor<2x4xf32>
        stablehlo.custom_call @xla.sdy.ShardingGroup(%3) {{mhlo.frontend_attributes =
          {{xla.sdy.sharding_group_id = "3 : i64"}}}} : (tensor<2x4xf32>) -> ()
        %4 = stablehlo.add %3, %x : tensor<2x4xf32>
        stablehlo.custom_call @xla.sdy.ShardingGroup(%4) {{mhlo.frontend_attributes =
          {{xla.sdy.sharding_group_id = "3 : i64"}}}} : (tensor<2x4xf32>) -> ()
        return %4 : tensor<2x4xf32>
      }}
      func.func private @xla.sdy.manual_computation_body(%p: tensor<1x4xf32>) -> tensor<1x4xf32> {{
        %0 = "stablehlo.collective_permute"(%p) <{{channel_handle =
          #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs =
          dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}}> : (tensor<1x4xf32>) -> tensor<1x4xf32>
        return %0 : tensor<1x4xf32>
      }}
    }}"""
    mod = from_stablehlo(text)
    script = mod.script()
    for operator in ("enter_manual", "manual_permute", "leave_manual", "sharding_group"):
        assert f"R.dist.{operator}(" in script, operator
    assert 'R.dist.propagation_barrier(lv_2, blocks="forward")' in script
    x = np.arange(8, dtype="float32").reshape(2, 4)
    with dx.Session(2) as session:
        found = session.load(dx.build(mod, target=QUICK))["main"](x).numpy()
    np.testing.assert_array_equal(found, x + x[::-1])


def test_rules_and_texts_that_are_not_taken_are_named(caplog):
    own = "#sdy.op_sharding_rule<([i, j], [i, j])->([i, j]) {i=12, j=6}>"
    another = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=12, j=6} need_replication={j}, custom>"
    open_dims = "<@mesh, [{?}, {?}]>"
    lines = f"%1 = stablehlo.add %0, %0 {{sdy.sharding_rule = {own}}} : tensor<12x6xf32>"
    from_stablehlo(module(open_dims, lines=lines, result="%1"))
    # JAX states rules of its own calls of LAPACK, which are followed.
    lapack = (
        "#sdy.op_sharding_rule<([i, j, k])->([i, l, m], [i]) {i=3, j=4, k=4, l=4, m=4}, custom>"
    )
    from_stablehlo(f"""func.func @main(%x: tensor<3x4x4xf32>) -> tensor<3x4x4xf32> {{
      %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {{api_version = 4 : i32,
        mhlo.backend_config = {{uplo = 76 : ui8}}, sdy.sharding_rule = {lapack}}}
        : (tensor<3x4x4xf32>) -> (tensor<3x4x4xf32>, tensor<3xi32>)
      return %0#0 : tensor<3x4x4xf32>
    }}""")
    assert not caplog.records
    quoted = another.replace('"', "\\22")
    for rule in (
        f"sdy.sharding_rule = {another}",
        f'mhlo.frontend_attributes = {{xla.sdy.sharding_rule = "{quoted}"}}',
    ):
        lines = f"%1 = stablehlo.sine %0 {{{rule}}} : tensor<12x6xf32>"
        from_stablehlo(module(open_dims, lines=lines, result="%1"))
        (said,) = [each.getMessage() for each in caplog.records]
        assert "sdy.sharding_rule of 1 operation, which is not taken" in said
        assert f"stablehlo.sine (line 10): {another}" in said
        caplog.clear()
    lines = """%1 = stablehlo.sine %0 {mhlo.frontend_attributes = {_xla_compute_type = "host",
        xla.sdy.tuple_args_shardings = "x"}} : tensor<12x6xf32>"""
    with pytest.raises(ValueError, match=r"stablehlo\.sine states xla\.sdy\.tuple_args_shardings"):
        from_stablehlo(module(open_dims, lines=lines, result="%1"))


def test_texts_of_gspmd_among_frontend_attributes():
    text = """func.func @main(%x: tensor<12x6xf32> {mhlo.frontend_attributes = {mhlo.sharding =
        "{devices=[2,1]<=[2]}"}} loc("x")) -> tensor<12x6xf32> {
      %0 = stablehlo.custom_call @Sharding(%x) {mhlo.frontend_attributes = {mhlo.sharding =
        "{devices=[1,2]<=[2]}"}} : (tensor<12x6xf32>) -> tensor<12x6xf32>
      return %0 : tensor<12x6xf32>
    }"""
    assert propagated(text) == {"x": body('[{"x"}, {}]'), "return": body('[{}, {"x"}]')}
