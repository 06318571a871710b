"""Six small models, each with a plan of tensor parallelism, one of data parallelism, and a bad one.

The shapes are those of Relax functions; nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tvm
from tests.analysis.programs import function
from tvm.relax import op

import distir_ext as dx
from distir_ext.annotate.patterns import Plan
from distir_ext.demo.llama import PLAN as LLAMA_PLAN
from distir_ext.demo.llama import LlamaConfig, export

MESH = dx.Mesh((2, 4), ("dp", "tp"))


@dataclass(frozen=True)
class Case:
    """A model that is not annotated, and plans for it."""

    module: tvm.IRModule
    function: str
    plans: Mapping[str, Plan]

    def annotated(self, plan: Plan) -> tvm.IRModule:
        return dx.annotate(self.module, MESH, plan, func=self.function)


def _case(
    shapes: dict[str, Sequence[int]], write: Callable[..., object], plans: Mapping[str, Plan]
) -> Case:
    return Case(function(shapes, write, num_input=1), "main", plans)


def mlp() -> Case:
    """Two layers of two products with a gate that is given."""
    shapes: dict[str, Sequence[int]] = {"x": (16, 32), "gate": (16, 32)}
    for i in range(2):
        shapes |= {f"layers.{i}.up.weight": (32, 64), f"layers.{i}.down.weight": (64, 32)}

    def write(emit, x, gate, *weights):
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            x = emit(op.matmul(emit(op.nn.gelu(emit(op.matmul(x, up)))), down))
        return op.multiply(x, gate)

    tensor = {r".*up\.weight": (None, "tp"), r".*down\.weight": ("tp", None)}
    data = {"x": ("dp", None), "gate": ("dp", None)}
    bad = {"x": ("dp", None), "gate": (None, "dp"), **tensor}
    return _case(shapes, write, {"tp": tensor, "dp": data, "mixed": bad})


def llama() -> Case:
    """Decoder blocks of a Llama: RMSNorm, rotary embedding, SwiGLU."""
    module, _ = export(LlamaConfig(layers=2))
    data = {"ids": ("dp", None)}
    tensor = {name: dims for name, dims in LLAMA_PLAN.items() if name != "ids"}
    bad = {r"layers\.\d+\.mlp\.down_proj\.weight": ("tp", None), **LLAMA_PLAN}
    # What the first pattern matches already is left out of the last.
    bad[r".*\.o_proj\.weight"] = bad.pop(r".*\.(o|down)_proj\.weight")
    return Case(module, "forward", {"tp": tensor, "dp": data, "mixed": bad})


def gpt2() -> Case:
    """A block of GPT-2: LayerNorm, one weight for queries, keys and values, GELU."""
    batch, rows, hidden, heads = 4, 8, 32, 4
    shapes: dict[str, Sequence[int]] = {
        "x": (batch, rows, hidden),
        "ln_1.weight": (hidden,),
        "ln_1.bias": (hidden,),
        "attn.weight": (hidden, 3 * hidden),
        "proj.weight": (hidden, hidden),
        "fc.weight": (hidden, 4 * hidden),
        "fc_proj.weight": (4 * hidden, hidden),
    }

    def write(emit, x, gamma, beta, attn, proj, fc, fc_proj):
        normal = emit(op.nn.layer_norm(x, gamma, beta, axes=[-1]))
        parts = emit(op.split(emit(op.matmul(normal, attn)), 3, axis=-1))
        split = [emit(op.reshape(emit(parts[i]), (batch, rows, heads, -1))) for i in range(3)]
        q, k, v = (emit(op.permute_dims(each, [0, 2, 1, 3])) for each in split)
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
        out = emit(op.matmul(emit(op.nn.softmax(scores, axis=-1)), v))
        out = emit(op.reshape(emit(op.permute_dims(out, [0, 2, 1, 3])), (batch, rows, hidden)))
        x = emit(op.add(x, emit(op.matmul(out, proj))))
        return op.add(x, emit(op.matmul(emit(op.nn.gelu(emit(op.matmul(x, fc)))), fc_proj)))

    tensor = {
        r"(attn|fc)\.weight": (None, "tp"),
        r"(proj|fc_proj)\.weight": ("tp", None),
    }
    data = {"x": ("dp", None, None)}
    bad = {"x": ("dp", None, None), r"(fc|fc_proj)\.weight": (None, "tp")}
    return _case(shapes, write, {"tp": tensor, "dp": data, "mixed": bad})


def convolutions() -> Case:
    """Two convolutions with a sum, a mean over the image, classes."""
    shapes: dict[str, Sequence[int]] = {
        "image": (8, 4, 16, 16),
        "expand.weight": (16, 4, 3, 3),
        "reduce.weight": (4, 16, 3, 3),
        "head.weight": (4, 12),
    }

    def write(emit, image, expand, reduce, head):
        wide = emit(op.nn.relu(emit(op.nn.conv2d(image, expand, padding=1))))
        x = emit(op.add(image, emit(op.nn.conv2d(wide, reduce, padding=1))))
        return op.matmul(emit(op.mean(x, axis=[2, 3])), head)

    tensor = {
        r"expand\.weight": ("tp", None, None, None),
        r"reduce\.weight": (None, "tp", None, None),
    }
    data = {"image": ("dp", None, None, None)}
    bad = {
        "image": ("dp", None, "tp", None),
        r"(expand|reduce)\.weight": ("tp", None, None, None),
    }
    return _case(shapes, write, {"tp": tensor, "dp": data, "mixed": bad})


def experts() -> Case:
    """A mixture of experts as einsums: dispatch, two products per expert, combine."""
    shapes: dict[str, Sequence[int]] = {
        "x": (32, 16),
        "dispatch": (32, 8, 4),
        "experts.up": (8, 16, 64),
        "experts.down": (8, 64, 16),
    }

    def write(emit, x, dispatch, up, down):
        sent = emit(op.einsum((dispatch, x), "tec,td->ecd"))
        wide = emit(op.nn.relu(emit(op.einsum((sent, up), "ecd,edf->ecf"))))
        narrow = emit(op.einsum((wide, down), "ecf,efd->ecd"))
        return op.einsum((dispatch, narrow), "tec,ecd->td")

    tensor = {r"experts\.up": (None, None, "tp"), r"experts\.down": (None, "tp", None)}
    data = {"x": ("dp", None), "dispatch": ("dp", None, None)}
    bad = {
        **data,
        r"experts\.up": ("tp", None, None),
        r"experts\.down": (None, "tp", None),
    }
    return _case(shapes, write, {"tp": tensor, "dp": data, "mixed": bad})


def grouped_queries() -> Case:
    """Attention in which two query heads share a key and value head."""
    batch, rows, hidden, heads, size = 4, 8, 32, 4, 4
    shapes: dict[str, Sequence[int]] = {
        "x": (batch, rows, hidden),
        "q.weight": (hidden, heads, 2, size),
        "k.weight": (hidden, heads, size),
        "v.weight": (hidden, heads, size),
        "o.weight": (heads, 2, size, hidden),
    }

    def write(emit, x, q, k, v, o):
        queries = emit(op.einsum((x, q), "bsd,dhgk->bshgk"))
        keys = emit(op.einsum((x, k), "bsd,dhk->bshk"))
        values = emit(op.einsum((x, v), "bsd,dhk->bshk"))
        scores = emit(op.einsum((queries, keys), "bshgk,bthk->bhgst"))
        weights = emit(op.nn.softmax(scores, axis=-1))
        out = emit(op.einsum((weights, values), "bhgst,bthk->bshgk"))
        return op.einsum((out, o), "bshgk,hgkd->bsd")

    tensor = {
        r"q\.weight": (None, "tp", None, None),
        r"(k|v)\.weight": (None, "tp", None),
        r"o\.weight": ("tp", None, None, None),
    }
    data = {"x": ("dp", None, None)}
    bad = {
        "x": ("dp", "tp", None),
        r"q\.weight": (None, "tp", None, None),
        r"v\.weight": (None, None, "tp"),
        r"o\.weight": ("tp", None, None, None),
    }
    return _case(shapes, write, {"tp": tensor, "dp": data, "mixed": bad})


MODELS = {
    "mlp": mlp,
    "llama": llama,
    "gpt2": gpt2,
    "convolutions": convolutions,
    "experts": experts,
    "grouped queries": grouped_queries,
}
