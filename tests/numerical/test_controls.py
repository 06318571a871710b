"""Results of programs with open dimensions, priorities, barriers and groups do not change."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.relax.frontend import nn

import distir_ext as dx

MESHES = {
    "3x2": dx.Mesh(dp=3, tp=2),
    "2x2x2": dx.Mesh(dp=2, tp=2, ep=2),
}


class Gated(nn.Module):
    """A gated product whose two sides are tied, on odd sizes."""

    def __init__(self, mesh: dx.Mesh) -> None:
        self.gate = nn.Linear(12, 30, bias=False)
        self.up = nn.Linear(12, 30, bias=False)
        self.down = nn.Linear(30, 12, bias=False)
        self.mesh = mesh

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = dx.constrain(x, self.mesh, (("dp", ...), ...))
        gate, up = dx.constrain(self.gate(x), self.up(x))
        product = dx.barrier(nn.op.multiply(nn.op.silu(gate), up), blocks="backward")
        return self.down(product)


PLANS = [
    {},
    {"gate.weight": ("tp", None), "down.weight": (..., ("tp", ...))},
    {
        "gate.weight": (dx.Dim("tp", priority=1), None),
        "up.weight": (None, dx.Dim("dp", priority=2)),
    },
    {
        "down.weight": dx.TensorDims(..., ..., replicated=("dp",)),
        "gate.weight": (("tp", ...), "dp"),
    },
]


@pytest.mark.parametrize("plan", PLANS, ids=range(len(PLANS)))
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
def test_controlled_programs_are_right(mesh, plan, session_of):
    spec = {"forward": {"x": nn.spec.Tensor((7, 12), "float32")}}
    mod, params = Gated(mesh).export_tvm(spec)
    names = [name for name, _ in params]
    mod = dx.annotate(mod, mesh, plan, func="forward")
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(30, 12)).astype("float32") for name in names}
    weights["down.weight"] = rng.normal(size=(12, 30)).astype("float32")
    x = rng.normal(size=(7, 12)).astype("float32")

    up, gate, down = (weights[f"{name}.weight"] for name in ("up", "gate", "down"))
    hidden = x @ gate.T
    expected = (hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T
    model = session_of(mesh.shape).load(dx.build(mod, target=QUICK), params=weights)
    np.testing.assert_allclose(model["forward"](x).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_module_that_only_has_controls_takes_no_part():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(dx.barrier(builder.emit(relax.op.exp(x)))))
    mod = builder.finalize()
    tvm.ir.assert_structural_equal(dx.transform.PropagateSharding()(mod), mod)
