"""One program on all devices of the copies that a launcher has started, or of this process alone.

The same numbers come out of

    python launched.py
    distir launch --nproc 2 launched.py
    torchrun --nproc-per-node 2 launched.py
    mpiexec -n 2 python launched.py
    srun -n 2 python launched.py            # with a token, see docs/clusters.md

Only rank 0 gets behind the line that opens the session.
"""

import hashlib

import numpy as np
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


@I.ir_module
class MLP:
    """Two products with an activation between them."""

    @R.function
    def main(  # noqa: D102
        x: R.Tensor((8, 64), "float32"),
        up: R.Tensor((64, 256), "float32"),
        down: R.Tensor((256, 64), "float32"),
    ):
        with R.dataflow():
            h = R.matmul(x, up)
            g = R.nn.silu(h)
            y = R.matmul(g, down)
            R.output(y)
        return y


mesh = dx.Mesh(dp=2, tp=2)
plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
rng = np.random.default_rng(0)
weights = {
    "up": rng.standard_normal((64, 256), "float32"),
    "down": rng.standard_normal((256, 64), "float32"),
}
x = rng.standard_normal((8, 64), "float32")

with dx.Session(mesh, workers="auto") as session:
    exe = dx.build(dx.annotate(MLP, mesh, plan, inputs=["x"]), target="llvm")
    y = session.load(exe, params=weights)["main"](x).numpy()

print(f"sum {y.sum():.4f}, digest {hashlib.sha256(y.tobytes()).hexdigest()[:16]}")
