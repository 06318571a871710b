"""Plans by name, of programs of any origin."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx
from distir_ext.structure.sizes import bind_sizes


@I.ir_module
class Layers:
    @R.function
    def main(
        ids: R.Tensor(("n", 6), "int64"),
        table: R.Tensor((64, 16), "float32"),
        q: R.Tensor((16, 16), "float32"),
        k: R.Tensor((16, 16), "float32"),
        v: R.Tensor((16, 16), "float32"),
        o: R.Tensor((16, 16), "float32"),
        up: R.Tensor((16, 64), "float32"),
        bias: R.Tensor((64,), "float32"),
        down: R.Tensor((16, 64), "float32"),
        head: R.Tensor((16, 64), "float32"),
    ) -> R.Tensor(("n", 6, 64), "float32"):
        n = T.int64()
        R.func_attr({"num_input": 1})
        with R.dataflow():
            x = R.take(table, ids, axis=0, mode="clip")
            scores = R.matmul(R.matmul(x, q), R.permute_dims(R.matmul(x, k), [0, 2, 1]))
            seen = R.matmul(R.nn.softmax(scores, axis=-1), R.matmul(x, v))
            x1 = R.add(x, R.matmul(seen, o))
            inner = R.nn.relu(R.add(R.matmul(x1, up), bias))
            x2 = R.add(x1, R.matmul(inner, R.permute_dims(down)))
            y = R.matmul(x2, head)
            R.output(y)
        return y


PARAMS = {
    name: np.random.default_rng(seed).standard_normal(shape).astype("float32") / 4
    for seed, (name, shape) in enumerate(
        {
            "table": (64, 16),
            **dict.fromkeys("qkvo", (16, 16)),
            "up": (16, 64),
            "bias": (64,),
            "down": (16, 64),
            "head": (16, 64),
        }.items()
    )
}


def expected(ids):
    x = PARAMS["table"][ids]
    scores = (x @ PARAMS["q"]) @ (x @ PARAMS["k"]).transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    x = x + weights / weights.sum(-1, keepdims=True) @ (x @ PARAMS["v"]) @ PARAMS["o"]
    inner = np.maximum(x @ PARAMS["up"] + PARAMS["bias"], 0)
    return (x + inner @ PARAMS["down"].T) @ PARAMS["head"]


def placements(mod):
    return {
        str(binding.value.args[0].name): str(binding.value.attrs.placement).strip('"')
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.dist.annotate_sharding"
    }


def test_pairs_are_sharded_and_the_batch_is():
    ids = np.arange(24).reshape(4, 6) % 64
    for mesh, plan, kinds in (
        (dx.Mesh(tp=2), "tp", {"all_reduce": 4}),
        (dx.Mesh(x=3), "tp", None),
        (dx.Mesh(dp=2, tp=2), "tp", {"all_reduce": 4}),
        (dx.Mesh(dp=2), "fsdp", None),
    ):
        mod = dx.annotate(Layers, mesh, plan)
        if kinds is not None:
            counts = {}
            for each in dx.analysis.collectives(dx.lower(bind_sizes(mod, {"n": 4}))):
                counts[each.kind] = counts.get(each.kind, 0) + each.count
            assert counts == kinds
        with dx.Session(mesh) as session:
            found = session.load(dx.build(mod), params=PARAMS)(ids).numpy()
        np.testing.assert_allclose(found, expected(ids), rtol=1e-4, atol=1e-4)
    stated = placements(dx.annotate(Layers, dx.Mesh(tp=2), "tp"))
    wanted = {"table": "S[0]", "q": "S[1]", "k": "S[1]", "v": "S[1]", "o": "S[0]", "up": "S[1]"}
    wanted |= {"bias": "S[0]", "down": "S[1]", "head": "S[1]"}
    assert stated == wanted
    stated = placements(dx.annotate(Layers, dx.Mesh(dp=2), "fsdp"))
    assert stated == {"ids": "S[0]", "table": "S[0]", "up": "S[1]", "down": "S[1]", "head": "S[1]"}


def test_a_sweep_compares_plans_by_name():
    found = dx.analysis.sweep(
        Layers,
        [dx.Mesh(tp=2), dx.Mesh(dp=2, tp=2), dx.Mesh(a=2, b=2)],
        {"pairs": "tp", "weights": "fsdp", "by hand": {"head": (None, ...)}},
        dx.Cluster.preset("H100"),
        sizes={"n": 4},
    )
    errors = {(row.mesh.axis_names, row.plan): row.error for row in found.configurations}
    assert errors[("tp",), "pairs"] is None
    assert errors[("dp", "tp"), "weights"] is None
    assert "the name 'tp' says which of them is tensor parallel" in errors[("a", "b"), "pairs"]


@pytest.mark.parametrize(
    ("change", "mesh", "plan", "message"),
    [
        (lambda mod: mod, dx.Mesh(tp=2), "tpp", "no plan 'tpp'; .* did you mean 'tp'"),
        (lambda mod: mod, dx.Mesh(a=2, b=2), "fsdp", "the name 'fsdp' says which .* fully sharded"),
        (
            lambda mod: _without_inputs(mod),
            dx.Mesh(tp=2),
            "tp",
            r"main does not say .* inputs=\[..\]",
        ),
    ],
)
def test_what_a_plan_by_name_needs_is_said(change, mesh, plan, message):
    with pytest.raises(ValueError, match=message):
        dx.annotate(change(Layers), mesh, plan)


def _without_inputs(mod):
    mod = mod.clone()
    function: relax.Function = mod["main"].without_attr("num_input")
    mod.update_func(mod.get_global_var("main"), function)
    return mod
