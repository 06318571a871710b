"""Models of transformers, torch and ONNX under plans that are searched."""

from __future__ import annotations

import numpy as np
import pytest

import distir_ext as dx

pytestmark = pytest.mark.models

MODELS = ("llama", "gpt2", "mixtral", "mamba2", "vision", "encoder")
CLUSTER = dx.Cluster.preset("H100")
BELIEF = 0.01


@pytest.mark.parametrize("name", MODELS)
def test_the_search_believes_what_is_estimated(exported, name):
    """Fused kernels, views, sorts, scans and constants are priced as they are compiled."""
    model = exported(name)
    for mesh in (dx.Mesh(a=4), dx.Mesh(a=2, b=2)):
        found = dx.autoshard(model.module, mesh, CLUSTER)
        assert found.searched_seconds == pytest.approx(found.seconds, rel=BELIEF)


@pytest.mark.large
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("objective", ["time", "memory"])
def test_searched_plans_agree_with_their_framework(exported, name, objective):
    model = exported(name)
    for mesh in (dx.Mesh(a=4), dx.Mesh(a=2, b=2)):
        found = dx.autoshard(model.module, mesh, CLUSTER, objective=objective)
        assert objective == "time" or any(any(dims) for dims in found.plan.values())
        with dx.Session(mesh) as session:
            loaded = session.load(dx.build(found.mod), params=model.weights)
            actual = np.asarray(loaded["main"](*model.inputs.values()))
        difference = np.sqrt(np.mean((actual.astype(np.float64) - model.expected) ** 2))
        assert difference < 1e-5 * np.sqrt(np.mean(model.expected.astype(np.float64) ** 2))
