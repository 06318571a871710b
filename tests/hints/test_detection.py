"""Layers are found by structure: names of weights tell nothing here."""

from __future__ import annotations

import pytest
from tests.hints.programs import (
    HIDDEN,
    Adapted,
    Builder,
    Sharing,
    block_in_sequence,
    fused_attention,
    gated_mlp,
    mixture,
    plain_mlp,
)
from tvm import relax

import distir_ext as dx
from distir_ext.hints import LayerHint, WeightHint


def detected(*layers):
    return dx.hints.detect(Builder().module(*layers)).layers


def test_attention_with_one_weight_for_queries_keys_and_values():
    (layer,) = detected(fused_attention).values()
    assert layer == LayerHint(
        "mha", {"a1": WeightHint("colwise", (32, 16, 16), 8), "a3": WeightHint("rowwise", (), 8)}
    )
    assert layer.why == "a softmax between two products of activations"


def test_feed_forward_layers_with_and_without_gate():
    gated, plain = detected(gated_mlp, plain_mlp).values()
    weights = {"m1": WeightHint("colwise", (48, 48)), "m2": WeightHint("rowwise")}
    assert gated == LayerHint("mlp", weights)
    assert "m1, gated, then m2" in gated.why
    assert plain == LayerHint("mlp", {"p1": WeightHint("colwise"), "p2": WeightHint("rowwise")})
    assert "p1, activated, then p2" in plain.why


def test_a_mixture_has_its_shared_expert():
    (layer,) = detected(mixture).values()
    assert layer.layer_type == "moe"
    modes = {name: hint.tp_mode for name, hint in layer.weights.items()}
    assert modes == {
        "e1": "none",
        "e2": "colwise",
        "e3": "rowwise",
        "s1": "colwise",
        "s2": "rowwise",
    }
    assert layer.weights["e2"].output_sizes == (16, 16)
    assert layer.why == "e1 chooses among 4 experts, beside s2 of a shared one"


def test_what_is_no_layer_is_unknown_with_the_reason():
    def alone(builder, x):
        return builder.linear(x, "w", 32)

    (layer,) = detected(alone).values()
    assert layer == LayerHint("unknown", {"weight": WeightHint()}) or layer.layer_type == "unknown"
    assert "stands alone" in layer.why


def test_layers_follow_each_other_without_a_stream_and_share_weights():
    """Products that lead to attention's last one form a layer; a second use adds no weights."""
    mod = Sharing().module(block_in_sequence, block_in_sequence)
    attention, mlp, last = dx.hints.detect(mod).layers.values()
    assert [each.layer_type for each in (attention, mlp, last)] == ["mha", "mlp", "unknown"]
    assert attention.weights["a1"] == WeightHint("colwise", (32, 16, 16), 8)
    modes = {**attention.weights, **mlp.weights}
    assert [modes[name].tp_mode for name in ("a3", "m1", "m2")] == ["rowwise", "colwise", "rowwise"]
    assert attention.why.endswith("; 2 layers share its weights")
    assert "stands alone" in last.why
    report = dx.hints.apply(mod, dx.hints.DistConfig(2)).report
    assert report.replicated == {"last": f"tp_mode is none: {last.why}"}
    assert {node.uses for node in report.nodes} == {2}


def test_a_latent_in_between_is_no_layer():
    def latent(builder, x):
        low = builder.norm(builder.linear(builder.linear(x, "l1", 16), "l2", 64))
        return fused_attention(builder, low)

    (layer,) = detected(latent).values()
    assert layer.layer_type == "mla"


def test_adapters_are_as_what_they_stand_beside():
    """Of columns the second product is sharded, of rows the first one."""
    attention, mlp = dx.hints.detect(Adapted().module(fused_attention, gated_mlp)).layers.values()
    assert (attention.layer_type, mlp.layer_type) == ("mha", "mlp")
    assert "with adapters beside m1, m2" in mlp.why
    for layer, first, second in ((attention, "a1", "a3"), (mlp, "m1", "m2")):
        weights = layer.weights
        assert weights[f"{first}_up"] == weights[first]
        assert weights[f"{second}_down"].tp_mode == weights[second].tp_mode == "rowwise"
        assert (
            weights[f"{first}_down"].why == f"an adapter of rank 4 beside {first}, read as a whole"
        )
        assert weights[f"{second}_up"].why.startswith("an adapter, added to what")


def test_weights_that_layers_want_differently_are_replicated_with_the_reason():
    def reversed_mlp(builder, x):
        hidden = builder.op(relax.op.nn.gelu, builder.linear(x, "p2", HIDDEN))
        return builder.linear(hidden, "p1", HIDDEN)

    def square_mlp(builder, x):
        return plain_mlp(builder, x, HIDDEN)

    layers = dx.hints.detect(Sharing().module(square_mlp, reversed_mlp)).layers.values()
    whys = [hint.why for layer in layers for hint in layer.weights.values()]
    assert whys == [
        "layers that share it want it colwise and rowwise",
        "layers that share it want it rowwise and colwise",
    ]


def test_parallel_layers_are_two():
    def parallel(builder, x):
        both = (fused_attention(builder, x), plain_mlp(builder, x))
        return builder.op(relax.op.add, *both)

    assert sorted(each.layer_type for each in detected(parallel).values()) == ["mha", "mlp"]


def test_a_function_has_to_say_which_parameters_are_weights():
    mod = Builder().module(plain_mlp)
    mod["main"] = mod["main"].without_attr("num_input")
    with pytest.raises(ValueError, match="main does not say which of its parameters are weights"):
        dx.hints.detect(mod)
    assert len(dx.hints.detect(mod, inputs=["x"]).layers) == 1


def test_states_that_all_heads_share_are_on_every_device():
    """The states of one group (Bamba), or the only key head (Gemma): replicated, not gathered."""
    builder = relax.BlockBuilder()
    types = {"x": (2, 4, 16), "in_proj": (48, 16), "out_proj": (16, 32)}
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in types.items()]
    x, in_proj, out_proj = params
    op, emit = relax.op, builder.emit
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            both = emit(op.matmul(x, emit(op.permute_dims(in_proj))))
            parts = emit(op.split(both, [32], -1))
            heads = emit(op.reshape(emit(parts[0]), (2, 4, 8, 4)))
            states = emit(op.sigmoid(emit(op.reshape(emit(parts[1]), (2, 4, 1, 16)))))
            states = emit(op.expand_dims(states, 3))
            states = emit(op.broadcast_to(states, (2, 4, 1, 8, 16)))
            states = emit(op.reshape(states, (2, 4, 8, 1, 16)))
            mixed = emit(op.sum(emit(op.multiply(emit(op.expand_dims(heads, 4)), states)), -1))
            rows = emit(op.reshape(mixed, (2, 4, 32)))
            result = emit(op.matmul(rows, emit(op.permute_dims(out_proj))))
            result = builder.emit_output(op.add(x, result))
        builder.emit_func_output(result)
    mod = builder.get()
    hinted = dx.hints.apply(mod, dx.hints.DistConfig(world_size=2))
    shards = {node.param: node.shards for node in hinted.report.nodes}
    assert shards == {"in_proj": (2, 1), "out_proj": (2,)}
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(hinted.mod))]
    assert kinds == ["all_reduce"]
