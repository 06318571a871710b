"""Styles of transformers shard what transformers shards with them, and mistakes are named."""

from __future__ import annotations

import pytest

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES  # noqa: E402

from distir_ext.annotate.axes import Axes  # noqa: E402
from distir_ext.interop.torch.names import ModelNames  # noqa: E402
from distir_ext.interop.torch.plans_hf import STYLES, own_plan, state_styles  # noqa: E402
from distir_ext.interop.torch.statements import Statements  # noqa: E402

from . import models  # noqa: E402

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def device_mesh():
    """Four devices of a process group that does not communicate."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def stated(model, plan, known=(), axes=None):
    found = Statements()
    state_styles(ModelNames(model), plan, axes or Axes(dx.Mesh(tp=4), {}), known, found)
    return found


def test_all_styles_of_the_installed_version_are_known():
    assert set(STYLES) == set(ALL_PARALLEL_STYLES)


class Holder(torch.nn.Module):
    """Parameters of all ranks that styles are used on."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 16)
        self.linear.num_experts = 8  # what styles for experts count down
        self.linear.stack = torch.nn.Parameter(torch.zeros(8, 12, 16))


@pytest.mark.parametrize("style", sorted(STYLES))
def test_dims_are_those_that_transformers_shards(device_mesh, style):
    with torch.device("meta"):
        ours, theirs = Holder(), Holder()
    names = ("weight", "bias", "stack")
    if style.startswith("embedding"):
        names = ("weight",)
    found = stated(ours, {f"linear.{name}": style for name in names})
    assert not found.problems
    for name in names:
        ALL_PARALLEL_STYLES[style].shard_param(theirs.linear, name, device_mesh)
        value = theirs.linear._parameters[name]
        placements = getattr(value, "placements", ())
        dims = [None] * value.dim()
        if placements and hasattr(placements[0], "dim"):
            dims[placements[0].dim] = "tp"
        assert list(found.parameters.get(f"linear.{name}", [None] * value.dim())) == dims


def test_rules_of_modules_hold_for_their_own_parameters():
    model = models.llama(attention_bias=True)
    found = stated(model, {"model.layers.*.self_attn.q_proj": "colwise", "lm_head": "rowwise"})
    assert found.parameters == {
        **{
            f"model.layers.{layer}.self_attn.q_proj.{name}": dims
            for layer in range(2)
            for name, dims in (("weight", ("tp", None)), ("bias", ("tp",)))
        },
        "lm_head.weight": (None, "tp"),
    }


@pytest.mark.parametrize(
    "key",
    [
        "model.layers.0.mlp.up_proj",
        "layers.0.mlp.up_proj",
        "model.layers.0.mlp.up_proj.weight",
        "p_model_layers_0_mlp_up_proj_weight",
        "model_layers_0_mlp_up_proj",
    ],
)
def test_names_with_dots_and_names_as_exported_are_the_same(key):
    found = stated(models.llama(), {key: "colwise"})
    assert found.parameters == {"model.layers.0.mlp.up_proj.weight": ("tp", None)}


def test_all_that_is_wrong_is_one_error():
    plan = {
        "model.layers.*.mlp.up_prj": "colwise",
        "model.layers.*.mlp.down_proj": "rowise",
        "model.layers.*.mlp.gate_proj": "ep_router",
        "model.norm": "embedding_colwise",
    }
    with pytest.raises(ValueError, match="does not fit the model") as raised:
        dx.interop.torch.partition(models.llama(), models.ids(), dx.Mesh(tp=4), plan)
    text = str(raised.value)
    assert "'model.layers.*.mlp.up_prj' (style 'colwise') names no module or parameter" in text
    assert "'model.layers.*.mlp.up_proj'" in text
    assert "style 'rowise', which is none of transformers'; did you mean 'rowwise'" in text
    assert "'ep_router', which is none of transformers' (transformers has removed it" in text


def test_a_dimension_that_is_too_small_names_style_and_parameter():
    model = models.llama(num_key_value_heads=2, head_dim=1, num_attention_heads=8)
    found = stated(model, {"layers.*.self_attn.k_proj": "colwise"})
    assert len(found.problems) == 2
    assert "style 'colwise' of 'layers.*.self_attn.k_proj' shards dimension 0" in found.problems[0]
    assert "'model.layers.0.self_attn.k_proj.weight', which has the size 2" in found.problems[0]


def test_a_style_with_nothing_to_do_says_so():
    model = models.mixtral()
    notes = stated(model, {"layers.*.mlp.experts": "moe_tp_experts"}).notes
    assert notes == [
        "layers.*.mlp.experts: style 'moe_tp_experts': nothing to do, propagation adds partial "
        "sums where they are needed"
    ]


def test_experts_come_first_where_the_mesh_has_an_axis_for_them():
    model = models.mixtral()
    only_tensor = own_plan(model, Axes(dx.Mesh(tp=4), {}))
    assert "grouped_gemm" not in only_tensor.values()
    both = own_plan(model, Axes(dx.Mesh(tp=2, ep=2), {}))
    experts = {key: style for key, style in both.items() if ".experts" in key}
    assert set(experts.values()) == {"grouped_gemm", "ep_dispatch_experts"}
    assert both["model.layers.*.self_attn.q_proj"] == "colwise"
    only_experts = own_plan(model, Axes(dx.Mesh(ep=4), {}))
    assert only_experts == experts
    found = stated(model, both, both, Axes(dx.Mesh(tp=2, ep=2), {}))
    assert found.parameters["model.layers.0.mlp.experts.down_proj"] == ("ep", None, None)
