"""Partitioned models compute what torch computes, and send what their plans make them send."""

from __future__ import annotations

import logging
import sys

import pytest

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import safetensors.torch as safetensors_torch  # noqa: E402
from tests.targets import QUICK  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from distir_ext.structure.sizes import symbolic_sizes  # noqa: E402

from . import models  # noqa: E402

pytestmark = pytest.mark.models
partition = dx.interop.torch.partition
LIMIT = 1e-5


@pytest.fixture(scope="module")
def llama():
    return models.llama()


@pytest.fixture(scope="module")
def stack():
    return models.stack()


def test_llama_under_its_own_plan_sends_what_megatron_sends(llama):
    sharded = partition(llama, models.ids(), dx.Mesh(tp=4), "hf")
    assert models.kinds(sharded) == {"all_reduce": 2 * 2 + 1}
    wanted = models.expected(llama, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert (
        models.error(models.run(sharded, models.ids(), params=llama.state_dict()), wanted) < LIMIT
    )
    assert "not gathered, as it is the result" in "".join(sharded.notes)


def test_weights_go_back_to_transformers(llama, tmp_path):
    sharded = partition(llama, models.ids(), dx.Mesh(tp=3), "auto")
    with dx.Session(sharded.mesh) as session:
        sharded.load(session).save_safetensors(tmp_path, rename=sharded.names)
    llama.config.save_pretrained(tmp_path)
    again = type(llama).from_pretrained(tmp_path, dtype="float32")
    wanted = llama.state_dict()
    found = again.state_dict()
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def test_other_weights_are_renamed_and_may_have_more(stack, tmp_path):
    sharded = partition(stack, models.ids(), dx.Mesh(tp=2), "tp")
    wanted = models.expected(stack, models.ids())
    given = {f"module.{name}": value for name, value in stack.state_dict().items()}
    given["module.extra"] = torch.ones(3)
    safetensors_torch.save_file(given, tmp_path / "model.safetensors")
    by_name = {name: name.removeprefix("module.") for name in given}
    with dx.Session(sharded.mesh) as session:
        for rename in (by_name, lambda name: name.removeprefix("module.")):
            loaded = sharded.load(session, tmp_path, rename=rename, strict=False)
            assert models.error(torch.from_dlpack(loaded(models.ids())).numpy(), wanted) < LIMIT
        with pytest.raises(ValueError, match='has no weight "extra"'):
            sharded.load(session, tmp_path, rename=by_name)
        with pytest.raises(TypeError, match="rename= is of the names in params="):
            sharded.load(session, rename=by_name)


def test_tied_weights_come_from_safetensors(tmp_path):
    model = models.llama(tie_word_embeddings=True, num_hidden_layers=1)
    model.save_pretrained(tmp_path)
    sharded = partition(model, models.ids(), dx.Mesh(dp=2, tp=2), "hf")
    wanted = models.expected(model, models.ids())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # what is loaded comes from the files
    actual = models.run(sharded, models.ids(), params=tmp_path)
    assert models.error(actual, wanted) < LIMIT
    assert sharded.plan["input_ids"] == ("dp", None)


LARGE = pytest.mark.large


@pytest.mark.parametrize(
    "mesh",
    [
        {"tp": 2, "ep": 2},
        pytest.param({"tp": 4}, marks=LARGE),
        pytest.param({"ep": 4}, marks=LARGE),
    ],
)
def test_experts(mesh):
    model = models.mixtral()
    sharded = partition(model, models.ids(), dx.Mesh(**mesh), "hf")
    wanted = models.expected(model, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    experts = sharded.plan["p_model_layers_0_mlp_experts_down_proj"]
    assert experts == (("ep", None, None) if "ep" in mesh else (None, None, "tp"))


@pytest.mark.parametrize(
    "mesh", [{"tp": 4}, {"dp": 2, "tp": 2}, pytest.param({"tp": 3}, marks=LARGE)]
)
def test_structure_finds_pairs(stack, mesh):
    sharded = partition(stack, models.ids(), dx.Mesh(**mesh), "tp")
    wanted = models.expected(stack, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert sharded.plan["p_layers_0_attention_query_weight"] == ("tp", None)
    assert sharded.plan["p_layers_1_attention_out_weight"] == (None, "tp")
    assert sharded.plan["p_layers_1_feed_forward_gate_bias"] == ("tp",)
    assert sharded.plan["p_layers_1_feed_forward_down_bias"] == (None,)
    assert sharded.plan["p_head_weight"] == ("tp", None)
    if mesh == {"tp": 4}:
        assert models.kinds(sharded) == {"all_reduce": 2 * 2 + 1}


def phi3():
    config = transformers.Phi3Config(**{**models.SIZES, "num_hidden_layers": 1})
    return models.randomly(lambda: transformers.Phi3ForCausalLM(config))


# Small enough that what is computed and sent of tiny models takes longer than launches.
SMALL = dx.Device("small", {"float32": 1e10}, 16e9, 1e9, 1e-9, target="llvm")
OPEN = {"input_ids": {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2)}}


def test_the_automatic_plan_is_never_dearer_than_others(monkeypatch):
    """As priced, on meshes of other names, and with open sizes, which are those of the example.

    Where the search fails, or finds something dearer, the least of the others is taken.
    """
    module = sys.modules["distir_ext.interop.torch.partition"]
    monkeypatch.setattr(module, "build", lambda *_, **__: None)
    wide = models.llama(num_hidden_layers=1, tie_word_embeddings=True)
    cluster = dx.Cluster.uniform(dx.Link(1e-6, 1e9), device=SMALL)
    search = sys.modules["distir_ext.interop.torch.annotated"]
    searched = search.autoshard

    def failing(*_, **__):
        raise ValueError("none")

    for model, rows, mesh, shapes in (
        (phi3(), 4, dx.Mesh(tp=2), OPEN),
        (wide, 32, dx.Mesh(fsdp=2), None),
        (wide, 32, dx.Mesh(dp=2, tp=2), None),
    ):
        ids = {"input_ids": models.ids().repeat(rows // len(models.ids()), 1)}

        def seconds(plan, model=model, ids=ids, mesh=mesh, shapes=shapes):
            try:
                sharded = partition(model, ids, mesh, plan, dynamic_shapes=shapes, cluster=cluster)
            except ValueError:
                assert plan != "auto"
                return float("inf"), None
            sizes = dict(zip(symbolic_sizes(sharded.mod), ids["input_ids"].shape, strict=False))
            return dx.analysis.estimate(sharded.mod, cluster, sizes=sizes).seconds, sharded

        least = min(seconds(plan)[0] for plan in ("hf", "tp", "fsdp"))
        found, sharded = seconds("auto")
        assert found <= least
        assert any(note.startswith("auto: 'search' takes") for note in sharded.notes)
        monkeypatch.setattr(search, "autoshard", failing)
        without, sharded = seconds("auto")
        monkeypatch.setattr(search, "autoshard", searched)
        assert without >= found
        assert "auto: 'search' cannot be used: none" in sharded.notes


def test_the_automatic_plan_leaves_out_what_does_not_fit():
    """Its own plan shards 2 heads of keys of one element over 4 devices."""
    model = models.llama(num_hidden_layers=1, num_key_value_heads=2, head_dim=1, hidden_size=8)
    with pytest.raises(ValueError, match="k_proj"):
        partition(model, models.ids(), dx.Mesh(tp=4), "hf")
    sharded = partition(model, models.ids(), dx.Mesh(tp=4), "auto", target=QUICK)
    wanted = models.expected(model, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert any("auto: 'hf' cannot be used: the plan" in note for note in sharded.notes)


def test_structure_of_transposed_weights_and_what_it_leaves():
    model = models.gpt2()
    sharded = partition(model, models.ids(), dx.Mesh(tp=4), "tp")
    assert sharded.plan["p_transformer_h_0_attn_c_attn_weight"] == (None, "tp")
    assert sharded.plan["p_transformer_h_0_mlp_c_proj_weight"] == ("tp", None)
    assert any("transformer.wpe.weight: left to propagation" in note for note in sharded.notes)
    wanted = models.expected(model, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT


class Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Linear(8, 8)
        self.body = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + torch.relu(self.body(x)))


def test_structure_says_why_a_product_is_no_pair():
    sharded = partition(Residual().eval(), torch.ones(4, 8), dx.Mesh(tp=4), "tp")
    assert [name for name in sharded.params if name in sharded.plan] == [
        "p_head_weight",
        "p_head_bias",
    ]
    notes = "\n".join(sharded.notes)
    assert "stem.weight: left to propagation, its result goes to body.weight, head.weight" in notes


def test_fully_sharded(caplog):
    llama = models.llama(num_hidden_layers=1)
    caplog.set_level(logging.INFO, "distir_ext.interop.torch")
    sharded = partition(llama, models.ids(), dx.Mesh(fsdp=4), "fsdp")
    wanted = models.expected(llama, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert sharded.plan["p_model_layers_0_mlp_down_proj_weight"] == (None, "fsdp")
    assert sharded.plan["p_model_layers_0_mlp_up_proj_weight"] == ("fsdp", None)
    assert sharded.plan["input_ids"] == ("fsdp", None)
    assert "p_model_norm_weight" not in sharded.plan
    assert "model.norm.weight: left to propagation, 64 elements" in caplog.text


def test_searched():
    """The plan of `dx.autoshard`; with less memory, weights are sharded."""
    llama = models.llama(num_hidden_layers=1)
    wanted = models.expected(llama, models.ids())
    free = partition(llama, models.ids(), dx.Mesh(a=2, b=2), "search")
    memory = dx.analysis.estimate(free.mod, dx.Cluster.preset("H100")).peak_memory
    for limit in (None, 0.7 * memory):
        sharded = partition(llama, models.ids(), dx.Mesh(a=2, b=2), "search", memory_limit=limit)
        assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert any(any(dims) for name, dims in sharded.plan.items() if name in sharded.params)
    assert any(note.startswith("p_lm_head_weight: ") for note in sharded.notes)


def sequence_parallel():
    """The plan of torch's tutorial: activations between blocks are sharded by the sequence."""
    gathered = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    return {
        "table": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.attention": PrepareModuleInput(**gathered),
        "layers.*.attention.query": ColwiseParallel(),
        "layers.*.attention.key": ColwiseParallel(),
        "layers.*.attention.value": ColwiseParallel(),
        "layers.*.attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.feed_forward.norm": SequenceParallel(),
        "layers.*.feed_forward.gate": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.feed_forward.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def test_a_plan_of_parallelize_module(stack):
    sharded = partition(stack, models.ids(), dx.Mesh(tp=4), sequence_parallel())
    wanted = models.expected(stack, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    counts = models.kinds(sharded)
    assert counts["reduce_scatter"] == 2 * 2 + 1
    assert counts["all_gather"] == 2 * 2 + 1
    assert set(counts) == {"reduce_scatter", "all_gather"}


def test_dims_styles_and_patterns_in_one_plan(stack):
    plan = {
        "layers.*.attention.query.weight": ("tp", None),
        "p_layers_0_attention_out_weight": (None, "tp"),
        "layers.*.feed_forward.gate": "colwise",
        "layers.*.feed_forward.up": ColwiseParallel(),
        ".*_down_weight": (None, "tp"),
        "ids": ("dp", None),
    }
    sharded = partition(stack, models.ids(), dx.Mesh(dp=2, tp=2), plan)
    wanted = models.expected(stack, models.ids())
    assert models.error(models.run(sharded, models.ids()), wanted) < LIMIT
    assert sharded.plan["p_layers_1_feed_forward_gate_bias"] == ("tp",)


TWO_INPUTS = PrepareModuleInput(
    input_layouts=(Shard(1), Shard(1)), desired_input_layouts=(Shard(1), Shard(1))
)


@pytest.mark.parametrize(
    ("mesh", "plan", "kind", "message"),
    [
        ({"tp": 4}, "fdsp", ValueError, "no plan 'fdsp'.*did you mean 'fsdp'"),
        ({"tp": 4}, 3, TypeError, "the plan is a int"),
        ({"tp": 4}, "hf", ValueError, "Stack has no plan of its own"),
        ({"a": 2, "b": 2}, "tp", ValueError, "axes a, b; axes={'tp': ...} says which"),
        ({"tp": 4}, {"layers.*.attn": ColwiseParallel()}, ValueError, "did you mean"),
        ({"tp": 4}, {"layers.0": ColwiseParallel()}, ValueError, "'layers.0' is Block"),
        ({"tp": 4}, {"table.wieght": ("tp", None)}, ValueError, "did you mean 'p_table_weight'"),
        ({"tp": 4}, {"table.weight": ("dp", None)}, ValueError, "no axis 'dp'"),
        (
            {"tp": 4},
            {
                "head": PrepareModuleInput(
                    input_layouts=(Shard(1),) * 2, desired_input_layouts=(Shard(1),) * 2
                )
            },
            ValueError,
            "no module takes or returns: head, input 1",
        ),
        ({"tp": 4}, {"head": SequenceParallel(sequence_dim=4)}, ValueError, "dimension 4 of head"),
    ],
)
def test_mistakes_are_named(stack, mesh, plan, kind, message):
    with pytest.raises(kind, match=message):
        partition(stack, models.ids(), dx.Mesh(**mesh), plan)


def test_axes_by_role(stack):
    mesh = dx.Mesh(a=2, b=2)
    sharded = partition(stack, models.ids(), mesh, "tp", axes={"tp": "b", "batch": "a"})
    assert sharded.plan["ids"] == ("a", None)
    assert sharded.plan["p_head_weight"] == ("b", None)
    with pytest.raises(ValueError, match=r"role 'tpp'.*did you mean 'tp'"):
        partition(stack, models.ids(), mesh, "tp", axes={"tpp": "b"})
    with pytest.raises(ValueError, match="axis 'c', which the mesh lacks"):
        partition(stack, models.ids(), mesh, "tp", axes={"tp": "c"})
