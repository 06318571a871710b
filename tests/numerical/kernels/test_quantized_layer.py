"""A decoder layer as MLC-LLM writes it, with quantised weights in all products: two reductions on
any number of devices, in any order of TVM's passes."""

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tests.unfuse import layer
from tvm import relax, te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

import distir_ext as dx

HEADS, KEY_HEADS, SIZE, WIDTH, INNER, TOKENS, GROUP = 8, 4, 32, 64, 256, 5, 32


def number(word, place):
    """The number of 4 bits at a place of a word."""
    shifted = word >> tirx.Cast("uint32", place * 4)
    return tirx.Cast("float16", shifted & tirx.const(15, "uint32"))


class Mlc(nn.Module):
    """q4f16_1: words and scales along the inputs."""

    def __init__(self, inputs, outputs):
        self.shape = (outputs, inputs)
        self.q_weight = nn.Parameter((outputs, inputs // 8), "uint32")
        self.q_scale = nn.Parameter((outputs, inputs // GROUP), "float16")

    def forward(self, x):
        def dequantize(words, scales):
            def value(n, k):
                found = number(words[n, k // 8], k % 8) - tirx.const(7, "float16")
                return found * scales[n, k // GROUP]

            return te.compute(self.shape, value, "dequantize")

        weight = op.tensor_expr_op(dequantize, "dequantize", [self.q_weight, self.q_scale])
        return op.matmul(x, op.permute_dims(weight))


class Awq(nn.Module):
    """Words and zero points along the outputs, in AWQ's order."""

    def __init__(self, inputs, outputs):
        self.shape = (inputs, outputs)
        self.q_weight = nn.Parameter((inputs, outputs // 8), "uint32")
        self.q_zeros = nn.Parameter((inputs // GROUP, outputs // 8), "uint32")
        self.q_scale = nn.Parameter((inputs // GROUP, outputs), "float16")

    def forward(self, x):
        def dequantize(words, zeros, scales):
            def value(k, n):
                place = n % 8 // 2 + n % 2 * 4
                zero = number(zeros[k // GROUP, n // 8], place)
                return (number(words[k, n // 8], place) - zero) * scales[k // GROUP, n]

            return te.compute(self.shape, value, "dequantize")

        arrays = [self.q_weight, self.q_zeros, self.q_scale]
        return op.matmul(x, op.tensor_expr_op(dequantize, "dequantize", arrays))


class Layer(nn.Module):
    def __init__(self, linear):
        self.qkv = linear(WIDTH, (HEADS + 2 * KEY_HEADS) * SIZE)
        self.out = linear(HEADS * SIZE, WIDTH)
        self.gate_up = linear(WIDTH, 2 * INNER)
        self.down = linear(INNER, WIDTH)

    def main(self, x: nn.Tensor):
        qkv = op.reshape(self.qkv(x), (1, TOKENS, HEADS + 2 * KEY_HEADS, SIZE))
        query, key, value = op.split(qkv, [HEADS, HEADS + KEY_HEADS], axis=2)
        key, value = (op.repeat(each, HEADS // KEY_HEADS, 2) for each in (key, value))
        found = op.scaled_dot_product_attention(query, key, value)
        x = x + self.out(op.reshape(found, (1, TOKENS, HEADS * SIZE)))
        gate, up = op.split(self.gate_up(x), 2, axis=-1)
        return x + self.down(op.silu(gate) * up)


# By format the layer's products, and how columns and rows of the stored arrays are sharded.
FORMATS = {"mlc": (Mlc, ("tp", None)), "awq": (Awq, (None, "tp"))}


def exported(name):
    linear, columns = FORMATS[name]
    spec = {"main": {"x": nn.spec.Tensor((1, TOKENS, WIDTH), "float16")}}
    mod, _ = Layer(linear).export_tvm(spec)
    plan = {r"(qkv|gate_up)\..*": columns, r"(out|down)\..*": columns[::-1]}
    return mod, plan


def arrays_of(mod):
    rng = np.random.default_rng(0)
    made = {}
    for param in mod["main"].params:
        shape, dtype = [int(size) for size in param.ty.shape], str(param.ty.dtype)
        if dtype == "uint32":
            made[str(param.name)] = rng.integers(0, 2**32, shape, dtype)
        else:
            most = 1 if param.name == "x" else 0.02
            made[str(param.name)] = rng.uniform(0, most, shape).astype(dtype)
    return made


@pytest.mark.large
@pytest.mark.parametrize(("devices", "order"), [(3, "FuseTIR"), (5, None), (8, "LegalizeOps")])
@pytest.mark.parametrize("name", FORMATS)
def test_two_reductions(session_of, name, devices, order):
    mod, plan = exported(name)
    arrays = arrays_of(mod)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    wanted = machine["main"](*(tvm.runtime.tensor(each) for each in arrays.values())).numpy()
    changed = layer.after(layer.ORDERS[order], mod) if order else mod
    annotated = dx.annotate(changed, dx.Mesh(tp=devices), plan, inputs=["x"])
    exe = dx.build(annotated, QUICK)
    (sent,) = dx.analysis.collectives(exe)
    assert (sent.kind, sent.count) == ("all_reduce", 2)
    x = arrays.pop("x")
    got = session_of((devices,)).load(exe, params=arrays)["main"](x).numpy()
    wanted, got = wanted.astype("float32"), got.astype("float32")
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-2 * np.abs(wanted).max())
