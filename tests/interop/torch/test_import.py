"""Models are exported and imported without masks, positions or settings."""

from __future__ import annotations

import copy
import doctest
import importlib

import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from . import models  # noqa: E402

pytestmark = pytest.mark.models
import_model = dx.interop.torch.import_model


@pytest.mark.parametrize("module", ["importer", "constants"])
def test_examples_of_docstrings(module):
    source = importlib.import_module(f"distir_ext.interop.torch.{module}")
    assert doctest.testmod(source, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def constant_shapes(function):
    """Of the constants that are tensors."""
    shapes = []

    def visit(node):
        if isinstance(node, tvm.ir.Constant) and isinstance(node.ty, relax.TensorType):
            shapes.append(tuple(int(size) for size in node.ty.shape))

    relax.analysis.post_order_visit(function, visit)
    return shapes


def test_a_model_of_transformers_needs_its_ids_only():
    model = models.llama()
    mod, params = import_model(model, models.ids())
    function = mod["main"]
    names = [param.name for param in function.params]
    assert int(function.attrs["num_input"]) == 1
    assert names[0] == "input_ids"
    assert names[1:] == list(params)
    assert "params" not in function.attrs
    state = model.state_dict()
    weight = "model.layers.1.mlp.up_proj.weight"
    assert params["p_model_layers_1_mlp_up_proj_weight"].data_ptr() == state[weight].data_ptr()
    # The mask is one for all rows of the batch and all heads.
    square = [shape for shape in constant_shapes(function) if shape[-2:] == (8, 8)]
    assert set(square) <= {(1, 1, 8, 8), (1, 8, 8)}, square  # the other is of rotary angles
    assert (1, 1, 8, 8) in square


def test_buffers_of_bfloat16_whose_memory_tvm_cannot_share():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            table = torch.arange(12.0).reshape(3, 4).to(torch.bfloat16)
            self.register_buffer("turned", table.t())
            self.register_buffer("row", table.ravel()[1:4])

        def forward(self, x):
            return x @ self.turned + self.row

    x = torch.ones(2, 4, dtype=torch.bfloat16)
    mod, params = import_model(Model().eval(), x)
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=2), {"x": (None, "tp")}))
    with dx.Session(2) as session:
        found = torch.from_dlpack(session.load(exe, params=params)["main"](x))
    assert torch.equal(found, Model()(x))


@pytest.mark.parametrize("name", ['a"); print("b', "a\\", "a\nb", "class"])
def test_names_that_torch_would_run_are_refused(name):
    model = torch.nn.Sequential()
    model.add_module(name, torch.nn.Linear(8, 8))
    with pytest.raises(ValueError, match="torch writes the name of the weight") as refusal:
        import_model(model.eval(), torch.zeros(4, 8))
    assert str(refusal.value).isprintable()


def test_a_model_is_configured_as_before():
    model = models.mixtral()
    before = copy.deepcopy(model.config.to_dict()), model.config._attn_implementation
    wanted = models.expected(model, models.ids())
    import_model(model, models.ids())
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    np.testing.assert_array_equal(models.expected(model, models.ids()), wanted)


def test_inputs_by_name_and_symbolic_sizes():
    model = models.stack()
    batch = torch.export.Dim("batch", min=2, max=64)
    mod, params = import_model(model, {"ids": models.ids()}, dynamic_shapes={"ids": {0: batch}})
    assert str(mod["main"].params[0].ty.shape[0]) not in {"4", ""}
    exe = dx.build(dx.annotate(mod, dx.Mesh(dp=2), {"ids": ("dp", None)}))
    with dx.Session(2) as session:
        loaded = session.load(exe, params=params)
        for rows in (2, 4):
            ids = models.ids()[:rows]
            actual = torch.from_dlpack(loaded(ids)).numpy()
            assert models.error(actual, models.expected(model, ids)) < 1e-5


class FromTheEnd(torch.nn.Module):
    """Looks up and writes by constants and inputs, some of them negative."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(1.0, 7.0).reshape(6, 1))
        self.table = torch.nn.Embedding(6, 4)

    def forward(self, x, rows, ids):
        x = x * self.scale
        written = x.index_put((rows, torch.tensor([-1, 0, 1, -2]), rows % 4), torch.ones(4))
        return (
            x[:, -1, :],
            x[:, [-2, 0]],
            x[rows],
            x[rows, -1],
            x[rows, rows],
            self.table(ids),
            torch.gather(x, 1, ids[:, :, None].expand(4, 3, 4)),
            torch.index_select(x, 1, ids[0]),
            torch.gather(x, 1, x.argsort(1)),
            written,
        )


def test_indices_count_from_the_end_and_stay_within():
    model, x = FromTheEnd().eval(), torch.arange(96.0).reshape(4, 6, 4).sin()
    rows, ids = torch.tensor([-1, 0, 3, -4]), torch.arange(12).reshape(4, 3) % 6
    wanted = model(x, rows, ids)
    for dims in (("dp", None, None), (None, "dp", None)):
        sharded = dx.interop.torch.partition(model, (x, rows, ids), dx.Mesh(dp=2), {"x": dims})
        with dx.Session(sharded.mesh) as session:
            found = sharded.load(session)(x, rows, ids)
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(actual.numpy(), expected.detach().numpy())


class Last(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 4)

    def forward(self, ids):
        return self.table(ids)[:, -1, :]


def test_the_last_token_of_a_sequence_of_any_length():
    model, ids = Last().eval(), torch.arange(20).reshape(4, 5) % 16
    length = torch.export.Dim("length", min=2, max=64)
    mod, params = import_model(model, ids, dynamic_shapes={"ids": {1: length}})
    exe = dx.build(dx.annotate(mod, dx.Mesh(dp=2), {"ids": ("dp", None)}))
    with dx.Session(2) as session:
        loaded = session.load(exe, params=params)
        for count in (5, 3):
            assert (
                models.error(loaded(ids[:, :count]).numpy(), models.expected(model, ids[:, :count]))
                == 0
            )
        beyond = torch.full((4, 5), 99)  # no memory outside of the table is read
        last = model.table.weight[[-1] * 4].detach()
        np.testing.assert_array_equal(loaded(beyond).numpy(), last)


class Outside(torch.nn.Module):
    def forward(self, x):
        return x[:, torch.tensor([0, 7])]


def test_a_constant_index_outside_is_an_error():
    with pytest.raises(ValueError, match=r"looks up what is not there: index 7 of .* 6 elements"):
        import_model(Outside().eval(), torch.ones(4, 6))


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.arange(6.0))

    def forward(self, key, value, scale=None):
        found = torch.softmax(key, -1) @ value.T + self.bias[:4]
        return found if scale is None else found * scale[:4]


def test_one_example_for_several_inputs_or_a_parameter():
    model, x, y = Two().eval(), torch.randn(4, 6), torch.randn(4, 6)
    for inputs in ((x, x), {"key": x, "value": x}, (x, x, model.bias)):
        sharded = dx.interop.torch.partition(model, inputs, dx.Mesh(dp=2), {"key": ("dp", None)})
        given = (x, y, torch.ones(6)) if len(inputs) == 3 else (x, y)
        with dx.Session(sharded.mesh) as session:
            actual = sharded.load(session)(*given).numpy()
        assert models.error(actual, model(*given).detach().numpy()) < 1e-6


class Largest(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, x):
        values, places = torch.topk(x * self.scale, 3, sorted=False)
        return (values + places).sum(-1)


def test_the_largest_elements_in_any_order():
    model, x = Largest().eval(), torch.randn(4, 6)
    sharded = dx.interop.torch.partition(model, x, dx.Mesh(dp=2), {"x": ("dp", None)})
    assert models.error(models.run(sharded, x), models.expected(model, x)) < 1e-6


class Histogram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = Counter()

    def forward(self, x):
        return self.counter(x)


class Counter(torch.nn.Module):
    def forward(self, x):
        return torch.histc(x, 4)


class Growing(torch.nn.Module):
    def forward(self, x):
        return x[x > 0] * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "message"),
    [
        ("llama", 3, TypeError, "the model is a str, not a torch.nn.Module"),
        (Counter().train(), torch.ones(3), ValueError, "call model.eval"),
        (Counter().eval(), 3, TypeError, "by name, not int"),
        (Counter().eval(), (torch.ones(3), 3), TypeError, "example input 1 is a int"),
        (Counter().eval(), (), TypeError, "at least one example input"),
        (Counter().eval(), {"y": torch.ones(3)}, ValueError, "does not take these inputs: .*'x'"),
        (
            Histogram().eval(),
            torch.ones(3),
            ValueError,
            r"does not have aten.histc.* \(in counter\)",
        ),
        (Growing().eval(), torch.ones(3), ValueError, "torch.export cannot export Growing"),
    ],
)
def test_what_cannot_be_imported_says_why(model, inputs, kind, message):
    with pytest.raises(kind, match=message):
        import_model(model, inputs)
