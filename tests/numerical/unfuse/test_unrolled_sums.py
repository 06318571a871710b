"""Numbers of sums over slices that are computed together, against the loop."""

import numpy as np
import pytest
from tests.numerical.optimize.checks import QUICK
from tests.unfuse.test_unrolled_sums import EXPERTS, dense

import distir_ext as dx


@pytest.mark.parametrize("spelling", ["take", "slice"])
@pytest.mark.parametrize("tokens", [None, "ep"])
@pytest.mark.parametrize("experts", [4, 6])
def test_experts_that_compute_all_tokens(session_of, experts, tokens, spelling):
    mesh = dx.Mesh(ep=4)
    plan = {**EXPERTS, "x": (tokens, None), "mask": (tokens, None)}
    mod = dense(experts, spelling, shared=True)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal([int(size) for size in param.ty.shape]).astype("float32")
        for param in mod["main"].params
    ]
    x, mask, up, down = (value.astype("float64") for value in inputs)
    first, second = np.split(np.einsum("td,edf->etf", x, up), 2, axis=2)
    made = np.einsum("etf,edf->etd", first / (1 + np.exp(-first)) * second, down)
    wanted = np.maximum(np.einsum("etd,te->td", made, mask) + x, 0)
    got = session_of(mesh.shape).load(dx.build(dx.annotate(mod, mesh, plan), QUICK))["main"](
        *inputs
    )
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)
