"""Activations that are computed again: numbers are the same, and the peak of memory is lower."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

CLUSTER = dx.Cluster.preset("H100")
MESH = dx.Mesh(dp=3, tp=2)
PLAN = {
    "x": ("dp", None),
    "target": ("dp", None),
    r"state\.params\.up\d": (None, "tp"),
    r"state\.params\.down\d": ("tp", None),
}
# Without work beside collectives, which is done early as long as it takes less than 64 MiB.
IN_ORDER = dx.pipelines.load({"passes": {"OptimizeCollectives": {"prefetch_bytes": 0}}})
LAYERS, WIDTH, BATCH = 5, 16, 1536


def network(is_marked=False, dtype="float32"):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH, WIDTH), dtype))
    weights = [
        relax.Var(f"{name}{at}", relax.TensorType(shape, dtype))
        for at in range(LAYERS)
        for name, shape in (("up", (WIDTH, 2 * WIDTH)), ("down", (2 * WIDTH, WIDTH)))
    ]

    def layer(h, up, down):
        wide = builder.emit(op.nn.gelu(builder.emit(op.matmul(h, up))))
        return builder.emit(op.add(h, builder.emit(op.matmul(wide, down))))

    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            h = x
            for up, down in zip(weights[::2], weights[1::2], strict=True):
                args = layer, h, up, down
                h = dx.training.checkpoint(*args) if is_marked else layer(*args[1:])
            result = builder.emit_output(op.multiply(h, relax.const(1.0, dtype)))
        builder.emit_func_output(result)
    return builder.get()


def values():
    rng = np.random.default_rng(0)
    weights = {}
    for at in range(LAYERS):
        weights[f"up{at}"] = 0.2 * rng.standard_normal((WIDTH, 2 * WIDTH), "float32")
        weights[f"down{at}"] = 0.2 * rng.standard_normal((2 * WIDTH, WIDTH), "float32")
    x, target = rng.standard_normal((2, BATCH, WIDTH), "float32")
    return weights, {"x": x, "target": target, "learning_rate": 0.05}


@pytest.mark.large
def test_numbers_are_the_same_and_memory_is_less():
    weights, batch = values()
    steps = {
        "kept": dx.train_step(network(), "mse", "momentum"),
        "one region": dx.train_step(network(), "mse", "momentum", checkpoint=1),
        "three": dx.train_step(network(), "mse", "momentum", checkpoint=3),
        "layers": dx.train_step(network(), "mse", "momentum", checkpoint=LAYERS),
        "marked": dx.train_step(network(is_marked=True), "mse", "momentum"),
    }
    found, peaks, flops = {}, {}, {}
    with dx.Session(MESH) as session:
        for name, step in steps.items():
            mod = dx.annotate(step, MESH, PLAN)
            estimated = dx.analysis.estimate(dx.lower(mod, pipeline=IN_ORDER), CLUSTER)
            peaks[name], flops[name] = estimated.peak_memory, estimated.flops
            if name in ("one region", "three"):
                continue
            train = dx.training.Trainer(session.load(dx.build(mod)))
            state, _ = train(dx.training.initial_state(step, weights), batch)
            found[name] = {name: each.numpy() for name, each in state.items()}
    for name, state in found.items():
        for field, value in state.items():
            np.testing.assert_array_equal(value, found["kept"][field], f"{name}: {field}")
    assert peaks["one region"] == peaks["kept"]
    assert max(peaks[name] for name in ("three", "layers", "marked")) < 0.75 * peaks["kept"], peaks
    # Less than the forward pass, which is a third of the products.
    assert flops["kept"] < flops["three"] <= flops["layers"] * 1.01 <= 1.4 * flops["kept"]


def test_weights_do_not_say_where_borders_are(monkeypatch):
    """They are a hundred times as large as all activations together."""
    monkeypatch.setattr("tests.training.test_recompute.WIDTH", 256)
    monkeypatch.setattr("tests.training.test_recompute.BATCH", 4)
    text = dx.train_step(network(), "mse", checkpoint=2).script()
    assert 4 <= text.count("_again: ") <= 2 * 4  # products and gelu of one or two layers of five


@pytest.mark.large
def test_a_limit_is_kept_by_what_computes_least():
    mesh, plan = dx.Mesh(dp=4), {"x": ("dp", None), "target": ("dp", None)}

    def step(limit):
        limit = dx.training.MemoryLimit(limit, mesh, plan, CLUSTER)
        return dx.train_step(network(), "mse", "momentum", checkpoint=limit)

    def cost(step):
        return dx.analysis.estimate(dx.annotate(step, mesh, plan), CLUSTER)

    kept = cost(dx.train_step(network(), "mse", "momentum"))
    assert cost(step(int(kept.peak_memory))).flops == kept.flops
    limit = int(0.9 * kept.peak_memory)
    fitted = cost(step(limit))
    assert fitted.peak_memory <= limit
    assert fitted.flops > kept.flops
    with pytest.raises(ValueError, match=r"needs \d+ bytes on a device .* and the limit is 9"):
        step(9)


def test_marks_of_tvmscript_low_precision_and_values_that_others_read():
    """Of a region only what nobody else reads is computed again."""

    @I.ir_module
    class Marked:
        @R.function
        def main(x: R.Tensor((12, 8), "float16"), w: R.Tensor((8, 8), "float16")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                a = R.grad.start_checkpoint(x)
                b = R.tanh(R.matmul(a, w))
                c = R.exp(b)
                d = R.grad.end_checkpoint(R.multiply(c, b))
                e = R.add(R.sigmoid(d), b)
                R.output(e)
            return e

    step = dx.train_step(Marked, "mse")
    names = [str(each.var.name) for block in step["main"].body.blocks for each in block.bindings]
    assert [name for name in names if "again" in name] == ["c_again"]
    assert "checkpoint" not in step.script()
    unmarked = dx.annotate(Marked, dx.Mesh(dp=4), {"x": ("dp", None)})  # marks do nothing here
    x, w = np.random.default_rng(1).standard_normal((2, 12, 8)).astype("float16")
    b = np.tanh(x @ w[:8])
    with dx.Session(dx.Mesh(dp=4)) as session:
        found = session.load(dx.build(unmarked), params={"w": w[:8]})["main"](x).numpy()
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-np.exp(b) * b)) + b, rtol=1e-3, atol=1e-3)


def test_a_module_of_nn_marks_its_layers():
    class Model(nn.Module):
        def __init__(self):
            self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

        def forward(self, x: nn.Tensor):
            return dx.training.checkpoint(lambda x: self.down(nn.op.gelu(self.up(x))), x)

    mod, _ = Model().export_tvm({"forward": {"x": nn.spec.Tensor((4, 8), "float32")}})
    step = dx.train_step(mod, "mse", params=["up.weight", "down.weight"], func="forward")
    assert step.script().count("_again: ") >= 2


@pytest.mark.parametrize("number", [0, -1, True, "4"])
def test_a_number_that_is_none(number):
    with pytest.raises(ValueError, match="not a number of regions from 1 on"):
        dx.train_step(network(), "mse", checkpoint=number)


def test_checkpoint_wants_tensors():
    with pytest.raises(TypeError, match="no argument of the function is a Relax expression"):
        dx.training.checkpoint(lambda x: x, 3)
