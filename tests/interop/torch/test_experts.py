"""Models with experts whose tokens and experts are sharded over the same devices."""

import numpy as np
import pytest

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from . import models  # noqa: E402 - imports torch

pytestmark = pytest.mark.models

SIZES = {**models.SIZES, "num_hidden_layers": 1, "num_experts_per_tok": 2}
SMALL = {**SIZES, "moe_intermediate_size": 32}
MODELS = {
    "Mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SIZES, num_local_experts=8)
    ),
    "Qwen3Moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**SMALL, num_experts=8, head_dim=8)
    ),
    "DeepseekV3": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(
            **{**SMALL, "num_key_value_heads": 8},
            n_routed_experts=8,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=0,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_tokens_go_to_their_experts(name):
    model = models.randomly(MODELS[name])
    ids = torch.randint(0, models.VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(1))
    mod, params = dx.interop.torch.import_model(model, {"input_ids": ids})
    mesh = dx.Mesh(ep=4)
    plan = {"input_ids": ("ep", None), r".*mlp_experts_.*_proj": ("ep", None, None)}
    exe = dx.build(dx.annotate(mod, mesh, plan))
    sent = {each.kind: each.bytes_per_device for each in dx.analysis.collectives(exe)}
    rows = 8 * 2 * models.HIDDEN * 4 * 3 // 4  # of a device, that stay not at home
    assert sent == {"dispatch_tokens": rows, "combine_tokens": rows}
    with dx.Session(mesh) as session:
        result = session.load(exe, params=params)["main"](ids.numpy())
    got = (result[0] if isinstance(result, list | tuple) else result).numpy()
    wanted = model(ids).logits.detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
