"""A layer of a decoder, after orders of TVM's passes, and plans for it."""

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

TOKENS, WIDTH, HEADS, KEY_HEADS, SIZE, INNER = 12, 24, 12, 4, 4, 36

P = relax.transform
FUSED = (P.LegalizeOps, P.AnnotateTIROpPattern, P.FuseOps, P.FuseTIR)
# The orders that docs/passes.md calls safe before annotate.
ORDERS = {
    "FoldConstant": (P.FoldConstant,),
    "bindings": (
        P.ConvertToDataflow,
        P.CanonicalizeBindings,
        P.EliminateCommonSubexpr,
        P.DeadCodeElimination,
        P.ToNonDataflow,
    ),
    "CombineParallelMatmul": (P.CombineParallelMatmul,),
    "DecomposeOpsForInference": (P.DecomposeOpsForInference,),
    "ToMixedPrecision": (P.ToMixedPrecision,),
    "LegalizeOps": (P.LegalizeOps,),
    "FuseTIR": FUSED,
    "Combine, Fold": (P.CombineParallelMatmul, P.CanonicalizeBindings, P.FoldConstant),
    "Combine, LegalizeOps": (P.CombineParallelMatmul, P.LegalizeOps),
    "Combine, FuseTIR": (P.CombineParallelMatmul, *FUSED),
    "Combine, ToMixedPrecision, FuseTIR": (P.CombineParallelMatmul, P.ToMixedPrecision, *FUSED),
    "ToMixedPrecision, Combine, FuseTIR": (P.ToMixedPrecision, P.CombineParallelMatmul, *FUSED),
}
COLUMNS = {
    **dict.fromkeys(("wq", "wk", "wv", "up"), (None, "tp")),
    **dict.fromkeys(("bq", "bk", "bv", "b_up"), ("tp",)),
}
ROWS = dict.fromkeys(("wo", "down"), ("tp", None))
PLANS = {
    "megatron": {**COLUMNS, **ROWS},
    "dp, megatron": {"x": ("dp", None, None), **COLUMNS, **ROWS},
    "fsdp": {"x": ("dp", None, None), "up": ("dp", None), "down": ("dp", None), "wo": ("dp", None)},
}


def shapes(is_grouped=False):
    """The parameters of main by name."""
    inner = HEADS * SIZE
    keys = KEY_HEADS * SIZE if is_grouped else inner
    sizes = {"x": (2, TOKENS, WIDTH), "scale": (WIDTH,)}
    for name, columns in (("q", inner), ("k", keys), ("v", keys)):
        sizes |= {f"w{name}": (WIDTH, columns), f"b{name}": (columns,)}
    sizes |= {"wo": (inner, WIDTH), "bo": (WIDTH,), "up": (WIDTH, INNER), "b_up": (INNER,)}
    return sizes | {"down": (INNER, WIDTH), "b_down": (WIDTH,)}


def layer(dtype="float32", is_grouped=False):
    """main(x, scale, wq, bq, ..): attention and feed-forward, each with bias and residual.

    Grouped: four heads of keys, which are turned by positions and repeated, as in Llama.
    """
    sizes = shapes(is_grouped)
    params = {name: relax.Var(name, relax.TensorType(s, dtype)) for name, s in sizes.items()}
    builder = relax.BlockBuilder()
    emit = builder.emit

    def turned(each):
        angles = np.linspace(0, 3, TOKENS * SIZE).reshape(1, TOKENS, 1, SIZE)
        cosines, sines = (relax.const(f(angles).astype(dtype)) for f in (np.cos, np.sin))
        halves = emit(op.split(each, 2, -1))
        first, second = (emit(relax.TupleGetItem(halves, at)) for at in (0, 1))
        other = emit(op.concat([emit(op.negative(second)), first], -1))
        return emit(op.add(emit(op.multiply(each, cosines)), emit(op.multiply(other, sines))))

    def heads_of(name, norm):
        columns = sizes[f"b{name}"][0]
        wide = emit(op.matmul(norm, params[f"w{name}"]))
        biased = emit(op.add(wide, params[f"b{name}"]))
        apart = emit(op.reshape(biased, (2, TOKENS, columns // SIZE, SIZE)))
        if is_grouped and name != "v":
            apart = turned(apart)
        each = emit(op.permute_dims(apart, [0, 2, 1, 3]))
        times = HEADS * SIZE // columns
        return each if times == 1 else emit(op.repeat(each, times, 1))

    with builder.function("main", list(params.values())):
        with builder.dataflow():
            x = params["x"]
            norm = emit(op.nn.rms_norm(x, params["scale"], [-1]))
            q, k, v = (heads_of(name, norm) for name in "qkv")
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            scaled = emit(op.multiply(scores, relax.const(SIZE**-0.5, dtype)))
            mixed = emit(op.matmul(emit(op.nn.softmax(scaled)), v))
            back = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
            joined = emit(op.reshape(back, (2, TOKENS, HEADS * SIZE)))
            out = emit(op.add(emit(op.matmul(joined, params["wo"])), params["bo"]))
            y = emit(op.add(out, x))
            up = emit(op.add(emit(op.matmul(y, params["up"])), params["b_up"]))
            down = emit(op.matmul(emit(op.nn.gelu(up)), params["down"]))
            result = builder.emit_output(op.add(emit(op.add(down, params["b_down"])), y))
        builder.emit_func_output(result)
    return builder.get()


def after(order, mod):
    """The module after passes."""
    return tvm.transform.Sequential([make() for make in order])(mod)


def inputs(is_grouped=False):
    """Arrays for main."""
    rng = np.random.default_rng(0)
    sizes = shapes(is_grouped).values()
    return [(rng.standard_normal(s) / s[0] ** 0.5).astype("float32") for s in sizes]
