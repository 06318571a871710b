"""Numbers of programs whose operands processes see."""

import numpy as np
import pytest
from tvm import relax

import distir_ext as dx


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_built_programs_place_operands_and_stay_right(workers):
    builder = relax.BlockBuilder()
    shapes = {"x": (256, 64), "w": (64, 512), "v": (512, 256)}
    x, w, v = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    with builder.function("main", [x, w, v]):
        with builder.dataflow():
            h = builder.emit(relax.op.matmul(x, w))
            y = builder.emit(relax.op.matmul(relax.op.nn.relu(h), v))
            z = builder.emit_output(relax.op.nn.softmax(y))
        builder.emit_func_output(z)
    mesh = dx.Mesh((4,), ("tp",))
    plan = {"w": (None, "tp"), "v": ("tp", None)}
    exe = dx.build(dx.annotate(builder.get(), mesh, plan))
    assert "distir.runtime.new_tensor" in exe.as_text()
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype("float32") / 16 for shape in shapes.values()]
    logits = np.maximum(values[0] @ values[1], 0) @ values[2]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    with dx.Session(mesh, workers=workers) as session:
        model = session.load(exe)
        results = [model["main"](*values) for _ in range(3)]
        for each in results:
            np.testing.assert_allclose(each.numpy(), weights, rtol=1e-4, atol=1e-6)
