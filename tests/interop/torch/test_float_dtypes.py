"""Models of short and long floats: operators compute in torch's dtypes, and mixed ones promote."""

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.targets import QUICK
from torch import nn
from torch.nn import functional

import distir_ext as dx

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6, torch.float16: 5e-3, torch.bfloat16: 4e-2}


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def of(function):
    return lambda: Function(function)


SMALL = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "conv2d": (lambda: nn.Conv2d(8, 4, 3, padding=1), (2, 8, 6, 6)),
    "group_norm": (lambda: nn.GroupNorm(2, 8), (4, 8, 6)),
    "promotion": (
        of(lambda x: (x * torch.tensor(0.3)).sum(-1, dtype=torch.float32) + x[:, 0]),
        (4, 6),
    ),
}
MODELS = {
    **SMALL,
    "mask": (of(lambda x: (x > 0) * x + torch.arange(6) - (x > torch.tensor(0.5)).float()), (4, 6)),
    "conditions": (of(lambda x: torch.where(x > 0, x.float(), -x) + x.argmax(-1)[:, None]), (4, 6)),
    "batch_norm": (lambda: nn.BatchNorm1d(8), (4, 8, 6)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "conv1d": (lambda: nn.Conv1d(8, 4, 3, bias=False, stride=2, groups=2), (4, 8, 6)),
    "conv3d": (lambda: nn.Conv3d(4, 4, 3), (2, 4, 6, 6, 6)),
    "conv1d transpose": (
        lambda: nn.ConvTranspose1d(8, 4, 3, output_padding=1, stride=2),
        (2, 8, 6),
    ),
    "conv2d transpose": (lambda: nn.ConvTranspose2d(8, 4, 3, stride=2), (2, 8, 6, 6)),
    "prelu": (lambda: nn.PReLU(8), (4, 8, 6)),
    "selu": (lambda: nn.SELU(), (4, 6)),
    "elu": (lambda: nn.ELU(0.7), (4, 6)),
    "addmm": (of(lambda x: torch.addmm(x[:, :4], x, x.T, beta=0.5, alpha=2)), (4, 6)),
    "product of a vector": (of(lambda x: x @ x[0]), (4, 6)),
    "cosine": (of(lambda x: functional.cosine_similarity(x, x + 1)), (4, 6)),
    "floor_divide": (of(lambda x: torch.floor_divide(x, 0.3)), (4, 6)),
    "logsumexp": (of(lambda x: torch.logsumexp(x, -1)), (4, 6)),
    "amin": (of(lambda x: x.amin(0, keepdim=True)), (4, 6)),
    "grid_sample": (
        of(lambda x: functional.grid_sample(x, torch.full((2, 3, 5, 2), 0.2, dtype=x.dtype))),
        (2, 4, 4, 4),
    ),
}


def array(tensor):
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def difference(make, shape, dtype, session):
    """Returns how far shards are from torch at most; one of another dtype is an error."""
    torch.manual_seed(0)
    model, x = make().to(dtype).eval(), torch.randn(*shape).to(dtype)
    mod, params = dx.interop.torch.import_model(model, (x,))
    name = str(mod["main"].params[0].name)
    plan = {name: ("dp", *[None] * (len(shape) - 1))}
    exe = dx.build(dx.annotate(mod, dx.Mesh(dp=2), plan), QUICK)
    weights = {key: array(value) for key, value in params.items()}
    got, wanted = session.load(exe, params=weights)(array(x)).numpy(), model(x)
    assert str(got.dtype) == str(wanted.dtype).removeprefix("torch."), got.dtype
    return np.abs(got.astype("float64") - wanted.detach().double().numpy()).max()


def check(models, dtypes):
    failures = []
    with dx.Session(2) as session:
        for dtype in dtypes:
            for name, (make, shape) in models.items():
                found = difference(make, shape, dtype, session)
                if not found <= TOLERANCE[dtype] * 4:
                    failures.append(f"{name} of {dtype}: {found}")
    assert not failures, "\n".join(failures)


def test_layers_of_bfloat16():
    check(SMALL, [torch.bfloat16])


@pytest.mark.large
def test_layers_of_all_floats(sample):
    dtypes = (torch.bfloat16, torch.float64)
    check(MODELS, sample(dtypes, dtypes, tuple(TOLERANCE)))
