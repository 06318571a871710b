"""Indices of several dimensions, masks and writes by index, as in torch, on one and two workers."""

import numpy as np
import pytest
import torch

import distir_ext as dx
from distir_ext.interop.torch import partition


def write(x, key, value):
    x = x.clone()
    x[key] = value
    return x


ALL = slice(None)

# Of x (4, 6, 8), i (3,) and j (2, 1).
RESULTS = (
    lambda x, i, j: x[:, i, i],
    lambda x, i, j: x[i, :, i],
    lambda x, i, j: x[:, i, j],
    lambda x, i, j: x[j, :, i],
    lambda x, i, j: x[i, j, i],
    lambda x, i, j: write(x, (ALL, i), x[:, :3]),
    lambda x, i, j: write(x, (i, j), 2.0),
    lambda x, i, j: write(x, (ALL, i[:2], j), x[:, :2, :2]),
    lambda x, i, j: write(x, (i, ALL, j), x[:2, :3, :6]),
    lambda x, i, j: write(x, (i, i, i), x[0, 0, :3]),
    lambda x, i, j: write(x, (ALL, j), x[:, :2, None]),
    lambda x, i, j: write(x, (slice(None, None, 2), -1), 1.0),
    lambda x, i, j: write(x, (x > 0,), 0.0),
    lambda x, i, j: write(x, (x[:, :, 0] > 0,), 7.0),
    lambda x, i, j: torch.index_put(x, (i % 2,), x[:3], accumulate=True),
    lambda x, i, j: x.index_add(1, i % 6, x[:, :3]),
    lambda x, i, j: x.index_copy(2, i % 8, x[:, :, :3]),
)


class Indexed(torch.nn.Module):
    def __init__(self, results):
        super().__init__()
        self.results = results

    def forward(self, x, i, j):
        return tuple(result(x, i, j) for result in self.results)


@pytest.mark.parametrize(
    "results",
    [RESULTS[:2], pytest.param(RESULTS, marks=pytest.mark.large)],
    ids=["some", "all"],
)
def test_indices_broadcast_among_each_other(results):
    x, i, j = torch.randn(4, 6, 8), torch.tensor([-1, 3, -4]), torch.tensor([[0], [-2]])
    example = (x, torch.tensor([0, 1, 2]), torch.tensor([[0], [1]]))
    mesh = dx.Mesh(dp=2)
    with dx.Session(mesh) as session:
        for plan in ({"x": ("dp", None, None)}, {"x": (None, None, "dp")}):
            model = partition(Indexed(results).eval(), example, mesh, plan=plan).load(session)
            pairs = zip(model(x, i, j), Indexed(results)(x, i, j), strict=True)
            for number, (found, right) in enumerate(pairs):
                np.testing.assert_allclose(found.numpy(), right.numpy(), 1e-6, err_msg=str(number))
