"""Experts that all tokens compute, weighted by a matrix that is zero where none was chosen."""

from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx
from tvm.relax import op

FORMS = ("stacked", "einsum", "columns", "repeated", "scaled", "inside")


@dataclass(frozen=True)
class DenseExperts:
    """Sizes of a layer: silu(x gate) * (x up), times down, weighted and summed over all experts.

    Attributes:
        form: How it is written.
            "stacked": a product of all experts, times weights (experts, tokens, 1), summed up;
            "einsum": all four are einsums;
            "columns": as "stacked", with tokens in front of the experts, and the sum a matmul;
            "repeated": tokens are repeated for each expert, experts have biases, and tokens have
            two dimensions behind them (GPT-OSS);
            "scaled": weights are multiplied into the tokens in front of the experts (Llama 4);
            "inside": the same in front of the last product.
        weights: "scatter" of scores into zeros, "one_hot" of the choices, "added": these and others
            that are zero nowhere, or "given" as a parameter.
    """

    tokens: int = 24
    experts: int = 16
    width: int = 32
    inner: int = 48
    choices: int = 2
    dtype: str = "float32"
    form: str = "stacked"
    weights: str = "scatter"

    def module(self):
        """A function main(x, ids, scores, up, gate, down), with up_b, down_b where repeated; of
        given weights these are in place of ids and scores."""
        builder = relax.BlockBuilder()
        shapes = {"x": self._tokens()}
        if self.weights == "given":
            shapes["weights"] = (self.tokens, self.experts)
        else:
            shapes |= dict.fromkeys(("ids", "scores"), (self.tokens, self.choices))
        shapes |= dict.fromkeys(("up", "gate"), (self.experts, self.width, self.inner))
        shapes["down"] = (self.experts, self.inner, self.width)
        if self.form == "repeated":
            shapes |= {"up_b": (self.experts, self.inner), "down_b": (self.experts, self.width)}
        params = {
            name: relax.Var(name, relax.TensorType(shape, "int64" if name == "ids" else self.dtype))
            for name, shape in shapes.items()
        }
        with builder.function("main", list(params.values())):
            with builder.dataflow():
                given = self.weights == "given"
                weights = params["weights"] if given else self._weights(builder.emit, params)
                made = builder.emit(getattr(self, f"_{self.form}")(builder.emit, params, weights))
                result = builder.emit_output(op.add(params["x"], made))
            builder.emit_func_output(result)
        return builder.get()

    def _tokens(self):
        """The shape of x; batches of repeated tokens are apart."""
        if self.form == "repeated":
            return (self.tokens // 3, 3, self.width)
        return (self.tokens, self.width)

    def _weights(self, emit, params):
        ids, scores = params["ids"], params["scores"]
        if self.weights == "scatter":
            zeros = emit(op.zeros((self.tokens, self.experts), self.dtype))
            return emit(op.scatter_elements(zeros, ids, scores, axis=1))
        one, zero = (tirx.FloatImm(self.dtype, value) for value in (1, 0))
        chosen = emit(op.one_hot(ids, one, zero, self.experts, -1))
        made = emit(op.sum(emit(op.multiply(chosen, emit(op.expand_dims(scores, 2)))), 1))
        if self.weights == "one_hot":
            return made
        # As if each token had one more choice; it has all.
        column, row = (
            emit(op.zeros(shape, "int64")) for shape in ((self.tokens, 1), (1, self.experts))
        )
        return emit(op.add(made, emit(op.astype(emit(op.equal(column, row)), self.dtype))))

    @staticmethod
    def _gated(emit, up, gate):
        return emit(op.multiply(emit(op.nn.silu(gate)), up))

    def _of_each(self, emit, params, weights):
        """Weights as (experts, tokens, 1)."""
        return emit(op.expand_dims(emit(op.permute_dims(weights)), 2))

    def _stacked(self, emit, p, weights):
        x = emit(op.expand_dims(p["x"], 0))
        up, gate = (emit(op.matmul(x, p[name])) for name in ("up", "gate"))
        made = emit(op.matmul(self._gated(emit, up, gate), p["down"]))
        return op.sum(emit(op.multiply(made, self._of_each(emit, p, weights))), 0)

    def _einsum(self, emit, p, weights):
        up, gate = (emit(op.einsum((p["x"], p[name]), "td,edf->etf")) for name in ("up", "gate"))
        made = emit(op.einsum((self._gated(emit, up, gate), p["down"]), "etf,efd->etd"))
        return op.einsum((made, weights), "etd,te->td")

    def _columns(self, emit, p, weights):
        up, gate = (emit(op.einsum((p["x"], p[name]), "td,edf->tef")) for name in ("up", "gate"))
        made = emit(op.einsum((self._gated(emit, up, gate), p["down"]), "tef,efd->ted"))
        row = emit(op.expand_dims(weights, 1))
        return op.squeeze(emit(op.matmul(row, made)), [1])

    def _repeat(self, emit, x):
        return emit(op.tile(x, [self.experts, 1]))

    def _repeated(self, emit, p, weights):
        wide = (self.experts, self.tokens, self.width)
        x = emit(op.reshape(p["x"], (self.tokens, self.width)))
        x = emit(op.reshape(self._repeat(emit, x), wide))
        up = emit(op.matmul(x, p["up"]))
        up = emit(op.add(up, emit(op.expand_dims(p["up_b"], 1))))
        gate = emit(op.clip(emit(op.matmul(x, p["gate"])), -7, 7))
        made = emit(op.matmul(self._gated(emit, up, gate), p["down"]))
        made = emit(op.add(made, emit(op.expand_dims(p["down_b"], 1))))
        batches = (self.experts, *self._tokens())
        made = emit(op.reshape(made, batches))
        turned = emit(op.reshape(emit(op.permute_dims(weights)), (*batches[:3], 1)))
        return op.sum(emit(op.multiply(made, turned)), 0)

    def _scaled(self, emit, p, weights):
        flat = (self.experts * self.tokens, 1)
        scores = emit(op.reshape(emit(op.permute_dims(weights)), flat))
        x = emit(op.multiply(self._repeat(emit, p["x"]), scores))
        x = emit(op.reshape(x, (self.experts, self.tokens, self.width)))
        up, gate = (emit(op.matmul(x, p[name])) for name in ("up", "gate"))
        made = emit(op.matmul(self._gated(emit, up, gate), p["down"]))
        return op.sum(made, 0)

    def _inside(self, emit, p, weights):
        x = emit(op.expand_dims(p["x"], 0))
        up, gate = (emit(op.matmul(x, p[name])) for name in ("up", "gate"))
        h = emit(op.multiply(self._gated(emit, up, gate), self._of_each(emit, p, weights)))
        return op.sum(emit(op.matmul(h, p["down"])), 0)

    def plan(self, tokens, experts, inside=None):
        """Dims of the parameters; `inside` is the axis along which the experts are cut, too."""
        plan = {"ids": (tokens, None), "scores": (tokens, None), "weights": (tokens, None)}
        plan["x"] = (tokens, None, None)[: len(self._tokens())]
        plan |= dict.fromkeys(("up", "gate"), (experts, None, inside))
        plan |= {"down": (experts, inside, None), "up_b": (experts, inside)}
        plan["down_b"] = (experts, None)
        names = [param.name for param in self.module()["main"].params]
        return {name: dims for name, dims in plan.items() if name in names}

    def inputs(self, choose, seed=0):
        """Arguments of main; ``choose(rng)`` gives the ids."""
        rng = np.random.default_rng(seed)

        def normal(*shape):
            return (rng.standard_normal(shape) / np.sqrt(self.width)).astype(self.dtype)

        ids = np.asarray(choose(rng), "int64").reshape(self.tokens, self.choices)
        made = [
            rng.standard_normal(self._tokens()).astype(self.dtype),
            ids,
            rng.uniform(0.5, 1, ids.shape).astype(self.dtype),
            *(normal(self.experts, self.width, self.inner) for _ in range(2)),
            normal(self.experts, self.inner, self.width),
        ]
        if self.form == "repeated":
            made += [normal(self.experts, self.inner), normal(self.experts, self.width)]
        return made

    def dense(self, x, ids, scores, up, gate, down, up_b=0, down_b=0):
        """Reference of main in NumPy: every token by all experts, weighted."""
        x, scores, up, gate, down = (a.astype("float64") for a in (x, scores, up, gate, down))
        rows = x.reshape(self.tokens, self.width)
        share = np.zeros((self.tokens, self.experts))
        np.put_along_axis(share, ids, scores, axis=1)
        if self.weights == "added":
            share += 1
        given = rows[:, None, :] * (share[:, :, None] if self.form == "scaled" else 1)
        h = np.einsum("ted,edf->etf", np.broadcast_to(given, (*share.shape, self.width)), up)
        g = np.einsum("ted,edf->etf", np.broadcast_to(given, (*share.shape, self.width)), gate)
        if self.form == "repeated":
            h, g = h + up_b[:, None, :].astype("float64"), np.clip(g, -7, 7)
        made = np.einsum("etf,efd->etd", h * g / (1 + np.exp(-g)), down)
        if self.form == "repeated":
            made = made + down_b[:, None, :].astype("float64")
        if self.form == "scaled":
            return (rows + made.sum(0)).reshape(x.shape)
        return (rows + np.einsum("te,etd->td", share, made)).reshape(x.shape)
