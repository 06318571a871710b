"""Small programs with the layers that hints know, without names that tell."""

from __future__ import annotations

import numpy as np
from tvm import relax

import distir_ext as dx

BATCH, SEQUENCE, HIDDEN = 4, 8, 32


class Builder:
    """A function that is written layer by layer on a residual stream."""

    def __init__(self):
        self.block = relax.BlockBuilder()
        self.weights = []
        self.x = relax.Var("x", relax.TensorType((BATCH, SEQUENCE, HIDDEN), "float32"))

    def weight(self, name, *shape):
        self.weights.append(relax.Var(name, relax.TensorType(shape, "float32")))
        return self.weights[-1]

    def op(self, operator, *args, **named):
        return self.block.emit(operator(*args, **named))

    def linear(self, x, name, out):
        """A linear layer as torch has it: a weight of (out, in)."""
        weight = self.weight(name, out, int(x.ty.shape[-1]))
        return self.op(relax.op.matmul, x, self.op(relax.op.permute_dims, weight))

    def norm(self, x):
        return self.op(relax.op.nn.softmax, x, axis=-1)

    def module(self, *layers):
        with self.block.function("main", attrs={"num_input": 1}):
            with self.block.dataflow():
                stream = self.x
                for layer in layers:
                    stream = self.op(relax.op.add, stream, layer(self, self.norm(stream)))
                result = self.block.emit_output(self.op(relax.op.nn.relu, stream))
            self.block.emit_func_output(result, [self.x, *self.weights])
        return self.block.get()


class Sharing(Builder):
    """Layers share the weights that are called alike."""

    def weight(self, name, *shape):
        found = {str(each.name): each for each in self.weights}
        return found[name] if name in found else super().weight(name, *shape)


class Adapted(Sharing):
    """Each linear layer has an adapter of rank 4 beside it."""

    def linear(self, x, name, out):
        scaled = relax.const(0.5, "float32")
        low = super().linear(x, f"{name}_down", 4)
        low = self.op(relax.op.multiply, super().linear(low, f"{name}_up", out), scaled)
        return self.op(relax.op.add, super().linear(x, name, out), low)


def block_in_sequence(builder, x):
    """A shared block as Zamba's: attention, a feed-forward layer and a product, without stream."""
    both = builder.op(relax.op.concat, [x, builder.norm(builder.x)], -1)
    hidden = gated_mlp(builder, builder.norm(fused_attention(builder, both)))
    return builder.linear(hidden, "last", HIDDEN)


def fused_attention(builder, x, heads=4, groups=2, size=8):
    """Attention with one weight for queries, keys and values, a bias, and grouped heads."""
    b, s = BATCH, SEQUENCE
    fused = builder.linear(x, "a1", (heads + 2 * groups) * size)
    bias = builder.weight("a2", (heads + 2 * groups) * size)
    fused = builder.op(relax.op.add, fused, bias)
    points = [heads * size, (heads + groups) * size]
    parts = builder.op(relax.op.split, fused, points, -1)
    states = []
    for index, count in enumerate((heads, groups, groups)):
        part = builder.block.emit(relax.TupleGetItem(parts, index))
        part = builder.op(relax.op.reshape, part, (b, s, count, size))
        part = builder.op(relax.op.permute_dims, part, [0, 2, 1, 3])
        times = heads // count
        states.append(builder.op(relax.op.repeat, part, times, 1) if times > 1 else part)
    query, key, value = states
    key = builder.op(relax.op.permute_dims, key, [0, 1, 3, 2])
    shares = builder.op(relax.op.nn.softmax, builder.op(relax.op.matmul, query, key), axis=-1)
    found = builder.op(relax.op.matmul, shares, value)
    found = builder.op(relax.op.permute_dims, found, [0, 2, 1, 3])
    found = builder.op(relax.op.reshape, found, (b, s, heads * size))
    return builder.linear(found, "a3", HIDDEN)


def multi_query_attention(builder, x, heads=4, size=8):
    """Attention with one head of keys; blocks of one weight are taken from its heads."""
    b, s = BATCH, SEQUENCE
    fused = builder.linear(x, "a1", (heads + 2) * size)
    fused = builder.op(relax.op.reshape, fused, (b, s, heads + 2, size))
    query = builder.op(relax.op.strided_slice, fused, [2], [0], [-2], [1])
    entries = [relax.const(np.array([heads + index]), "int64") for index in range(2)]
    key, value = (builder.op(relax.op.take, fused, each, 2) for each in entries)
    query = builder.op(relax.op.permute_dims, query, [0, 2, 1, 3])
    key = builder.op(relax.op.permute_dims, key, [0, 2, 3, 1])
    value = builder.op(relax.op.permute_dims, value, [0, 2, 1, 3])
    shares = builder.op(relax.op.nn.softmax, builder.op(relax.op.matmul, query, key), axis=-1)
    found = builder.op(relax.op.matmul, shares, value)
    found = builder.op(relax.op.permute_dims, found, [0, 2, 1, 3])
    found = builder.op(relax.op.reshape, found, (b, s, heads * size))
    return builder.linear(found, "a3", HIDDEN)


def normed_mlp(builder, x, size=48):
    """A feed-forward layer whose hidden columns are normed together."""
    hidden = builder.op(relax.op.nn.silu, builder.linear(x, "n1", size))
    mean = builder.op(relax.op.mean, builder.op(relax.op.multiply, hidden, hidden), -1, True)
    return builder.linear(builder.op(relax.op.divide, hidden, mean), "n2", HIDDEN)


def parallel_block(builder, x):
    """Attention and a feed-forward layer of the same values, which are added."""
    attended = multi_query_attention(builder, x)
    return builder.op(relax.op.add, attended, plain_mlp(builder, x))


def gated_mlp(builder, x, size=48):
    """A SwiGLU whose gate and up are one weight."""
    fused = builder.linear(x, "m1", 2 * size)
    parts = builder.op(relax.op.split, fused, 2, -1)
    gate, up = (builder.block.emit(relax.TupleGetItem(parts, index)) for index in range(2))
    hidden = builder.op(relax.op.multiply, builder.op(relax.op.nn.silu, gate), up)
    return builder.linear(hidden, "m2", HIDDEN)


def plain_mlp(builder, x, size=48):
    """Two products and an activation."""
    return builder.linear(builder.op(relax.op.nn.gelu, builder.linear(x, "p1", size)), "p2", HIDDEN)


def mixture(builder, x, experts=4, chosen=2, size=16):
    """Experts with gate and up in one weight, beside a shared one."""
    tokens = BATCH * SEQUENCE
    flat = builder.op(relax.op.reshape, x, (tokens, HIDDEN))
    scores = builder.op(relax.op.nn.softmax, builder.linear(flat, "e1", experts), axis=-1)
    top = builder.op(relax.op.topk, scores, chosen, -1, "both", True, "int64")
    share, ids = (builder.block.emit(relax.TupleGetItem(top, index)) for index in range(2))
    ids = builder.op(relax.op.reshape, ids, (tokens * chosen,))
    share = builder.op(relax.op.reshape, share, (tokens * chosen, 1))
    several = builder.op(relax.op.repeat, flat, chosen, 0)
    several = builder.op(relax.op.expand_dims, several, -1)
    up = builder.op(relax.op.take, builder.weight("e2", experts, 2 * size, HIDDEN), ids, 0)
    hidden = builder.op(relax.op.squeeze, builder.op(relax.op.matmul, up, several), [-1])
    parts = builder.op(relax.op.split, hidden, 2, -1)
    gate, up = (builder.block.emit(relax.TupleGetItem(parts, index)) for index in range(2))
    hidden = builder.op(relax.op.multiply, builder.op(relax.op.nn.silu, gate), up)
    down = builder.op(relax.op.take, builder.weight("e3", experts, HIDDEN, size), ids, 0)
    hidden = builder.op(relax.op.expand_dims, hidden, -1)
    found = builder.op(relax.op.squeeze, builder.op(relax.op.matmul, down, hidden), [-1])
    found = builder.op(relax.op.multiply, found, share)
    found = builder.op(relax.op.reshape, found, (tokens, chosen, HIDDEN))
    found = builder.op(relax.op.sum, found, 1)
    shared = builder.op(relax.op.nn.silu, builder.linear(flat, "s1", size))
    found = builder.op(relax.op.add, found, builder.linear(shared, "s2", HIDDEN))
    return builder.op(relax.op.reshape, found, (BATCH, SEQUENCE, HIDDEN))


def arrays(mod, seed=0):
    """Random values for all parameters, by name."""
    sizes = {str(p.name): tuple(int(size) for size in p.ty.shape) for p in mod["main"].params}
    return arrays_of_sizes(sizes, seed)


def arrays_of_sizes(sizes, seed=0):
    """Makes random float32 arrays of shapes given by name."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, "float32") * 0.3 for name, shape in sizes.items()}


def run(mod, mesh, params, x, target):
    """Runs a module on CPU workers, and returns its result."""
    with dx.Session(mesh) as session:
        return session.load(dx.build(mod, target), params=params)(x).numpy()
