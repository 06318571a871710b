"""A layer of a decoder, after orders of TVM's passes, and plans for it."""

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

TOKENS, WIDTH, HEADS, SIZE, INNER = 12, 24, 12, 4, 36

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


def shapes():
    """The parameters of main by name."""
    inner = HEADS * SIZE
    sizes = {"x": (2, TOKENS, WIDTH), "scale": (WIDTH,)}
    for name in "qkv":
        sizes |= {f"w{name}": (WIDTH, inner), f"b{name}": (inner,)}
    sizes |= {"wo": (inner, WIDTH), "bo": (WIDTH,), "up": (WIDTH, INNER), "b_up": (INNER,)}
    return sizes | {"down": (INNER, WIDTH), "b_down": (WIDTH,)}


def layer(dtype="float32"):
    """main(x, scale, wq, bq, ..): attention and feed-forward, each with bias and residual."""
    params = {name: relax.Var(name, relax.TensorType(s, dtype)) for name, s in shapes().items()}
    builder = relax.BlockBuilder()
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            emit = builder.emit
            x = params["x"]
            norm = emit(op.nn.rms_norm(x, params["scale"], [-1]))
            heads = {}
            for name in "qkv":
                wide = emit(op.matmul(norm, params[f"w{name}"]))
                biased = emit(op.add(wide, params[f"b{name}"]))
                apart = emit(op.reshape(biased, (2, TOKENS, HEADS, SIZE)))
                heads[name] = emit(op.permute_dims(apart, [0, 2, 1, 3]))
            scores = emit(op.matmul(heads["q"], emit(op.permute_dims(heads["k"], [0, 1, 3, 2]))))
            scaled = emit(op.multiply(scores, relax.const(SIZE**-0.5, dtype)))
            mixed = emit(op.matmul(emit(op.nn.softmax(scaled)), heads["v"]))
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


def inputs():
    """Arrays for main."""
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) / s[0] ** 0.5).astype("float32") for s in shapes().values()]
