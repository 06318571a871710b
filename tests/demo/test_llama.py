"""The demonstration's decoder computes what NumPy does from the published formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax

from distir_ext.demo.llama import TINY, LlamaConfig, export, llama_case


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x):
    """Rotary embedding of (batch, sequence, heads, size), as a complex multiplication."""
    sequence, size = x.shape[1], x.shape[-1]
    angles = np.arange(sequence)[:, None] * 10000.0 ** (-np.arange(size // 2) / (size // 2))
    pairs = x[..., : size // 2] + 1j * x[..., size // 2 :]
    turned = pairs * np.exp(1j * angles)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attention(x, weight, config):
    batch, sequence, _ = x.shape
    size = config.hidden // config.heads
    q = rotate((x @ weight("q_proj").T).reshape(batch, sequence, config.heads, size))
    k = rotate((x @ weight("k_proj").T).reshape(batch, sequence, config.kv_heads, size))
    v = (x @ weight("v_proj").T).reshape(batch, sequence, config.kv_heads, size)
    out = np.zeros_like(q)
    for head in range(config.heads):
        shared = head // (config.heads // config.kv_heads)
        scores = np.einsum("bsd,btd->bst", q[:, :, head], k[:, :, shared]) / np.sqrt(size)
        scores[:, ~np.tri(sequence, dtype=bool)] = -np.inf
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        out[:, :, head] = probabilities @ v[:, :, shared]
    return out.reshape(batch, sequence, -1) @ weight("o_proj").T


def decoder(ids, weights, config):
    """The logits in float64."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    x = weights["embed.weight"][ids]
    for layer in range(config.layers):

        def weight(name, layer=layer):
            (value,) = (
                value
                for full, value in weights.items()
                if full.startswith(f"layers.{layer}.") and full.endswith(f".{name}.weight")
            )
            return value

        x = x + attention(rms_norm(x, weight("attn_norm"), config.epsilon), weight, config)
        h = rms_norm(x, weight("mlp_norm"), config.epsilon)
        gate = h @ weight("gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight("up_proj").T)) @ weight("down_proj").T
    return rms_norm(x, weights["norm.weight"], config.epsilon) @ weights["lm_head.weight"].T


def run(case):
    vm = relax.VirtualMachine(tvm.compile(case.module, "llvm"), tvm.cpu())
    return vm[case.function](*map(tvm.runtime.tensor, case.arguments)).numpy()


@pytest.mark.large
@pytest.mark.parametrize(
    "config",
    [
        TINY,
        dataclasses.replace(TINY, layers=1, kv_heads=8, batch=2, sequence=5),
        dataclasses.replace(TINY, layers=2, kv_heads=1, feed_forward=64, hidden=64),
    ],
    ids=["tiny", "one-head-per-group", "one-kv-head"],
)
def test_unpartitioned_model_agrees_with_numpy(config):
    case = llama_case(config)
    expected = decoder(case.inputs["ids"], case.weights, config)
    actual = run(case)
    assert actual.shape == (config.batch, config.sequence, config.vocabulary)
    error = np.sqrt(np.mean((actual - expected) ** 2)) / np.sqrt(np.mean(expected**2))
    assert error < 1e-6


def test_weights_are_the_functions_parameters_in_order():
    case = llama_case()
    names = [param.name for param in case.module["forward"].params]
    assert names == [*case.inputs, *case.weights]


def test_same_seed_gives_the_same_weights():
    one, other = llama_case(), llama_case()
    assert all(np.array_equal(one.weights[name], other.weights[name]) for name in one.weights)


def test_plan_shards_every_projection_and_replicates_every_norm():
    case = llama_case()
    text = case.annotate(case.module)["forward"].script()
    placements = {}
    for line in text.splitlines():
        if "annotate_sharding" in line:
            placements[line.split(":")[0].strip()] = line.split('placement="')[1].split('"')[0]
    assert len(placements) == len(case.arguments)
    for name, placement in placements.items():
        if "norm" in name or "embed" in name:
            expected = "R, R"
        elif name.startswith("ids"):
            expected = "S[0], R"
        elif "o_proj" in name or "down_proj" in name:
            expected = "R, S[1]"
        else:
            expected = "R, S[0]"
        assert placement == expected, name


def test_only_operators_that_are_partitioned_by_rules():
    mod, _ = export(LlamaConfig(layers=1))
    assert [type(function) for function in mod.functions.values()] == [relax.Function]
    callees = set()

    def visit(expr):
        if isinstance(expr, relax.Call):
            callees.add(expr.op.name)

    relax.analysis.post_order_visit(mod["forward"], visit)
    assert not callees & {"relax.call_tir", "relax.call_dps_packed", "relax.call_pure_packed"}
