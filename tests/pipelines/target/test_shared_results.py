"""Numbers of programs whose results threads share."""

import numpy as np
import pytest
import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_built_programs_share_and_stay_right(workers):
    @I.ir_module
    class Program:
        @R.function
        def main(
            x: R.Tensor((64, 256), "float32"),
            w: R.Tensor((256, 512), "float32"),
            v: R.Tensor((512, 256), "float32"),
        ):
            with R.dataflow():
                h = R.matmul(x, w)
                y = R.matmul(R.nn.relu(h), v)
                gv = R.nn.softmax(y)
                R.output(gv)
            return gv

    mesh = dx.Mesh((2,), ("tp",))
    mod = dx.annotate(Program, mesh, {"w": (None, "tp"), "v": ("tp", None)})
    mod = tvm.transform.Sequential(
        [
            dx.transform.PropagateSharding(),
            dx.transform.LegalizeRedistribute(),
            dx.transform.OptimizeCollectives(),  # without what build enables for CPUs
        ]
    )(mod)
    exe = dx.build(mod)
    assert "shared_all_reduce" in exe.as_text()
    rng = np.random.default_rng(0)
    shapes = {"x": (64, 256), "w": (256, 512), "v": (512, 256)}
    values = {name: rng.standard_normal(s).astype("float32") / 16 for name, s in shapes.items()}
    logits = np.maximum(values["x"] @ values["w"], 0) @ values["v"]
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    with dx.Session(mesh, workers=workers) as session:
        model = session.load(exe)
        for _ in range(3):
            y = model["main"](*values.values()).numpy()
            np.testing.assert_allclose(
                y, weights / weights.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6
            )
