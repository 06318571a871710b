"""Reads and writes golden/: programs as jax.export wrote them, with the numbers that JAX computed.

``python -m tests.interop.jax.golden`` writes all of golden/ anew: NAME.mlir by JAX, with JAX's
results in NAME.json; NAME.script, what is imported; mlp.back.mlir, what goes out again.
"""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import distir_ext as dx

GOLDEN = Path(__file__).parent / "golden"
CASES = {}
WRITTEN = "mlp"  # what goes out again is kept of this one
MESH = jax.sharding.AbstractMesh((2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def case(*specs, weights=(), rows=None):
    """Enters function(*arguments) as a case of its name, with its arguments and their specs.

    What ``dp`` shards first has ``rows`` as its size there, a symbol such as "2*n".
    """

    def enter(make):
        CASES[make.__name__] = (make, specs, weights, rows)
        return make

    return enter


def on(spec):
    return NamedSharding(MESH, spec)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


@case({"up": P(None, "tp"), "down": P("tp", None)}, P("dp", None), weights=("params",))
def mlp():
    def function(params, x):
        hidden = lax.with_sharding_constraint(jax.nn.gelu(x @ params["up"]), on(P("dp", "tp")))
        return x + hidden @ params["down"]

    return function, ({"up": normal(8, 12), "down": normal(12, 8)}, normal(4, 8))


@case({"down": P("tp"), "up": P(None, "tp")}, P("dp"), weights=("params",), rows="2*n")
def any_batch():
    def function(params, x):
        hidden = jnp.tanh(x @ params["up"])
        return (hidden @ params["down"]).reshape(-1, 4), hidden.mean(0)

    return function, ({"down": normal(6, 8), "up": normal(8, 6)}, normal(4, 8))


@case(P(None, "tp"), P("dp", None))
def loops():
    def function(w, x):
        def step(carry, row):
            carry = jnp.tanh(carry @ w + row)
            return carry, carry.sum(-1)

        last, sums = lax.scan(step, jnp.zeros_like(x), jnp.stack([x, 2 * x]))
        count, last = lax.while_loop(
            lambda c: (c[0] < 40) & (c[1].max() < 5), lambda c: (c[0] + 1, c[1] * 1.25), (0, last)
        )
        return lax.cond(count > 4, lambda v: v + 1, lambda v: -v, last), sums, count

    return function, (normal(4, 4), normal(2, 4))


@case(P(None, "tp"), P("tp", None), P("dp", None))
def by_hand():
    def block(up, down, x):
        place = lax.axis_index("tp")
        total = lax.psum(jax.nn.relu(x @ up) @ down, "tp")
        return total, lax.ppermute(up * (place + 1), "tp", [(0, 1)])

    def function(up, down, x):
        region = jax.shard_map(
            block,
            in_specs=(P(None, "tp"), P("tp", None), P()),
            out_specs=(P(), P(None, "tp")),
            axis_names={"tp"},
        )
        return region(up, down, x)

    return function, (normal(4, 6), normal(6, 4), normal(8, 4))


@case(P("tp", None), P("dp", None))
def lookups():
    def function(table, tokens):
        rows = table[tokens]
        best = jnp.argmax(rows, axis=-1)
        kept = jnp.take_along_axis(rows, best[..., None], axis=-1)
        return lax.dynamic_update_slice(rows, kept, (0, tokens[0, 0], 1)), best

    return function, (normal(6, 4), np.array([[1, 5, 0], [2, 2, 9]], "int32"))


def exported(name):
    """Exports a case with jax.export."""
    make, specs, _, rows = CASES[name]
    sizes = jax.export.symbolic_shape(rows) if rows else ()
    function, arguments = make()
    flat, tree = jax.tree.flatten(arguments)
    given = jax.tree.unflatten(
        tree,
        [
            jax.ShapeDtypeStruct(
                (*sizes, *each.shape[1:]) if rows and spec[0] == "dp" else each.shape,
                each.dtype,
                sharding=on(spec),
            )
            for each, spec in zip(flat, jax.tree.leaves(specs), strict=True)
        ],
    )
    with jax.sharding.use_abstract_mesh(MESH):
        return jax.export.export(jax.jit(function), platforms=["cpu"])(*given)


def without_places(text):
    """The text of a module without places in Python files; arguments keep their names."""
    text = re.sub(r"^#loc\d*( = .*)?\n", "", text, flags=re.MULTILINE)
    return re.sub(r' loc\((?:#loc\d*|"[^"]*"\(#loc\d*\)|unknown)\)', "", text)


def back(mod):
    """The text of what goes out again."""
    return without_places(dx.interop.jax.to_stablehlo(mod))


def numbers(results):
    """Results as JSON has them."""
    return [np.asarray(each, np.float64).round(6).tolist() for each in jax.tree.leaves(results)]


def main():
    GOLDEN.mkdir(exist_ok=True)
    jax.config.update("jax_num_cpu_devices", 4)
    for name, (make, _, weights, _) in CASES.items():
        text = without_places(str(exported(name).mlir_module()))
        mod = dx.interop.jax.from_stablehlo(text, weights=weights)
        function, arguments = make()
        with jax.set_mesh(jax.make_mesh(MESH.axis_sizes, MESH.axis_names, MESH.axis_types)):
            wanted = numbers(jax.jit(function)(*arguments))
        (GOLDEN / f"{name}.mlir").write_text(text, "utf-8")
        (GOLDEN / f"{name}.json").write_text(json.dumps(wanted) + "\n", "utf-8")
        (GOLDEN / f"{name}.script").write_text(mod.script() + "\n", "utf-8")
        if name == WRITTEN:
            (GOLDEN / f"{name}.back.mlir").write_text(back(mod), "utf-8")


if __name__ == "__main__":
    main()
