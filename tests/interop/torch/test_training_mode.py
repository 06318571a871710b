"""Models of torch in training mode: dropout is R.nn.dropout, which drops in a training step."""

import re

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(8, 12)
        self.down = torch.nn.Linear(12, 4)
        self.drop = torch.nn.Dropout(0.25)

    def forward(self, x):
        rate = 0.125 if self.training else 0.0
        mixed = torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=rate)
        h = self.drop(torch.relu(self.up(mixed)))
        return torch.nn.functional.dropout(self.down(h), 0.5, self.training).mean((1, 2))


X = torch.randn(6, 2, 3, 8, generator=torch.Generator().manual_seed(1))


def rates(mod):
    return [float(each) for each in re.findall(r"R.nn.dropout\(\w+, rate=([\d.]+)\)", mod.script())]


@pytest.mark.large
def test_dropout_of_a_model_in_training_mode_and_of_its_export_drops():
    model = Model().train()
    mod, params = dx.interop.torch.import_model(model, X, training=True)
    assert rates(mod) == [0.125, 0.25, 0.5]
    exported = dx.interop.torch.import_program(torch.export.export(model, (X,), strict=False))
    assert rates(exported.mod) == [0.125, 0.25, 0.5]
    evaluated, _ = dx.interop.torch.import_model(model.eval(), X)
    assert rates(evaluated) == []
    x, target = X.numpy(), np.arange(6) % 4
    losses = []
    for each, mesh in ((mod, dx.Mesh(dp=2)), (mod, dx.Mesh(dp=4)), (evaluated, dx.Mesh(dp=2))):
        step = dx.train_step(each, "cross_entropy")
        annotated = dx.annotate(step, mesh, {"x": ("dp", None, None, None), "target": ("dp",)})
        with dx.Session(mesh) as session:
            train = dx.training.Trainer(session.load(dx.build(annotated, target=QUICK)))
            state = dx.training.initial_state(step, params)
            batch = {"x": x, "target": target, "learning_rate": 0.1}
            losses.append(float(train(state, batch)[1]["loss"].numpy()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    wanted = torch.nn.functional.cross_entropy(model(X), torch.tensor(target))
    assert losses[2] == pytest.approx(float(wanted.detach()), rel=1e-6)
    assert abs(losses[0] - losses[2]) > 1e-3


def test_models_in_the_other_mode_and_batch_norms_are_refused():
    with pytest.raises(ValueError, match=r"Model is in training mode.*eval\(\).*training=True"):
        dx.interop.torch.import_model(Model().train(), X)
    with pytest.raises(ValueError, match=r"Model is in evaluation mode.*call model.train\(\)"):
        dx.interop.torch.import_model(Model().eval(), X, training=True)
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(4)).train()
    with pytest.raises(ValueError, match=r"changes its buffer 0\..* in training, as batch norms"):
        dx.interop.torch.import_model(norm, torch.ones(3, 4), training=True)
