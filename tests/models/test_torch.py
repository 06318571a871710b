"""PyTorch objects as arguments: meshes, placements, state dicts, tensors."""

from __future__ import annotations

import numpy as np
import pytest

import distir_ext as dx

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def device_mesh():
    """A mesh of 2 x 2 devices, of a process group that does not communicate."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def test_device_mesh(device_mesh):
    assert dx.Mesh(device_mesh) == dx.Mesh(dp=2, tp=2)
    assert dx.Mesh(device_mesh["tp"]) == dx.Mesh(tp=2)


def test_model_with_its_state_dict_and_placements(device_mesh):
    import torch
    from torch.distributed.tensor import Replicate, Shard
    from tvm.relax.frontend.torch import from_exported_program

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = torch.nn.Linear(8, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.fc2 = torch.nn.Linear(16, 4)

        def forward(self, x):
            return self.fc2(torch.relu(self.norm(self.fc1(x))))

    torch.manual_seed(0)
    net = Net().eval()
    x = torch.randn(4, 8, requires_grad=True)
    program = torch.export.export(net, (x.detach(),))
    mod = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    plan = {
        "x": [Shard(0), Replicate()],
        ".*fc1_weight": [Replicate(), Shard(0)],
        "return": [Shard(0), Replicate()],
    }
    exe = dx.build(dx.annotate(mod, device_mesh, plan), "llvm")
    with dx.Session(device_mesh) as session:
        for params in (net.state_dict(), dict(net.named_parameters()) | dict(net.named_buffers())):
            model = session.load(exe, params=params, strict=False)  # num_batches_tracked
            y = torch.from_dlpack(model(x=x))
            np.testing.assert_allclose(y.numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="num_batches_tracked"):
            session.load(exe, params=net.state_dict())
