"""Constrained programs compute what they did."""

from __future__ import annotations

import numpy as np
from tests.annotate.constrained import MESH, placements, round_trip
from tvm.relax.frontend import nn

import distir_ext as dx


class TwoLayers(nn.Module):
    def __init__(self):
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: nn.Tensor):
        hidden = dx.constrain(self.up(x), MESH, ("dp", "tp"))
        hidden = dx.constrain(nn.op.relu(hidden), MESH, (None, ("tp", "dp")))
        return self.down(hidden)


def exported():
    return TwoLayers().export_tvm({"forward": {"x": nn.spec.Tensor((4, 8), "float32")}})


def test_module_of_nn_prints_before_it_is_annotated_and_computes_the_same():
    mod, params = exported()
    round_trip(mod)
    assert len(mod.global_infos["mesh"]) == 2  # the mesh, and one that has its axes as tp, dp
    assert dx.meshes(mod)[0] == MESH  # with its names
    propagated = dx.transform.PropagateSharding()(mod)
    relu_and_after = [(shape, text) for _, shape, text in placements(propagated["forward"])]
    assert ("2x2", "S[0], S[1]") in relu_and_after
    assert any(text == "S[1], S[1]" for _, text in relu_and_after)

    rng = np.random.default_rng(0)
    x, *weights = (
        rng.standard_normal(shape).astype("float32") for shape in [(4, 8), (16, 8), (8, 16)]
    )
    exe = dx.build(mod, "llvm")
    with dx.Session(MESH) as session:
        names = [name for name, _ in params]
        model = session.load(exe, params=dict(zip(names, weights, strict=True)))
        y = model["forward"](x).numpy()
    expected = np.maximum(x @ weights[0].T, 0) @ weights[1].T
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
