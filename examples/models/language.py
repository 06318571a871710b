"""Small, randomly initialised language models of transformers, through ``dx.interop.torch``.

The models are as transformers builds them, and take ids alone.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

import distir_ext as dx
from distir_ext.annotate import Plan
from models.case import BATCH, Model, imported

SEQUENCE = 8
SEED = 17

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "use_cache": False,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
ATTENTION = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
}

# torch keeps the weight of a linear layer as (out, in): dimension 0 is the columns of the product.
LLAMA_ATTENTION: Plan = {
    r".*_(q|k|v)_proj_weight": ("tp", None),
    r".*_o_proj_weight": (None, "tp"),
    r".*_(embed_tokens|lm_head)_weight": ("tp", None),
}
LLAMA: Plan = {
    **LLAMA_ATTENTION,
    r".*_(gate|up)_proj_weight": ("tp", None),
    r".*_down_proj_weight": (None, "tp"),
}
LLAMA_SHARDED: Plan = {r".*norm_weight": ("fsdp",), r"p_.*_weight": ("fsdp", None)}

# Every expert is divided, as a feed-forward layer is.
MIXTRAL: Plan = {
    **LLAMA_ATTENTION,
    r".*_experts_gate_up_proj": (None, "tp", None),
    r".*_experts_down_proj": (None, None, "tp"),
}
MIXTRAL_SHARDED: Plan = {r".*_experts_.*": ("fsdp", None, None), **LLAMA_SHARDED}

# GPT-2 keeps its weights as (in, out).
GPT2: Plan = {
    r".*_(c_attn|c_fc)_weight": (None, "tp"),
    r".*_(c_attn|c_fc)_bias": ("tp",),
    r".*_c_proj_weight": ("tp", None),
    r".*_lm_head_weight": ("tp", None),
}
GPT2_SHARDED: Plan = {
    r".*_(ln_1|ln_2|ln_f)_weight|.*_bias": ("fsdp",),
    r"p_.*_weight": ("fsdp", None),
}

MAMBA2: Plan = {
    r".*_in_proj_weight": ("tp", None),
    r".*_conv1d_weight": ("tp", None, None),
    r".*_conv1d_bias|.*_(dt_bias|A_log|D)": ("tp",),
    r".*_out_proj_weight": (None, "tp"),
    r".*_(embeddings|lm_head)_weight": ("tp", None),
}
MAMBA2_SHARDED: Plan = {
    r".*norm(_f)?_weight|.*_bias|.*_(A_log|D)": ("fsdp",),
    r".*_conv1d_weight": ("fsdp", None, None),
    r"p_.*_weight": ("fsdp", None),
}


def llama(batch: int = BATCH) -> Model:
    """Llama: RMSNorm, rotary embedding, grouped-query attention, SwiGLU."""
    config = transformers.LlamaConfig(**SIZES, **ATTENTION)
    return export(
        "llama", randomly(transformers.LlamaForCausalLM, config), LLAMA, LLAMA_SHARDED, batch
    )


def gpt2(batch: int = BATCH) -> Model:
    """GPT-2: LayerNorm, learned positions, attention with one weight for Q, K and V, GELU."""
    config = transformers.GPT2Config(**SIZES, n_head=8, n_positions=32, tie_word_embeddings=False)
    return export("gpt2", randomly(transformers.GPT2LMHeadModel, config), GPT2, GPT2_SHARDED, batch)


def mixtral(batch: int = BATCH) -> Model:
    """Mixtral: Llama's attention, and two of eight experts per token."""
    config = transformers.MixtralConfig(
        **SIZES, **ATTENTION, num_local_experts=8, num_experts_per_tok=2
    )
    model = randomly(transformers.MixtralForCausalLM, config)
    return export("mixtral", model, MIXTRAL, MIXTRAL_SHARDED, batch)


def mamba2(batch: int = BATCH) -> Model:
    """Mamba 2: causal convolutions and chunked state-space scans, no attention."""
    config = transformers.Mamba2Config(
        **SIZES, num_heads=8, head_dim=16, expand=2, state_size=16, n_groups=4, chunk_size=4
    )
    model = randomly(transformers.Mamba2ForCausalLM, config)
    return export("mamba2", model, MAMBA2, MAMBA2_SHARDED, batch)


def randomly(model_class: Any, config: Any) -> torch.nn.Module:
    """A model with random weights, the same at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = model_class(config).eval()
        with torch.no_grad():
            # Norms start at one and biases at zero, which would show little.
            for param in model.parameters():
                param.add_(0.1 * torch.randn(param.shape))
    return model


def export(name: str, model: torch.nn.Module, tensor: Plan, sharded: Plan, batch: int) -> Model:
    """Imports a model, with the results of torch for random ids."""
    generator = torch.Generator().manual_seed(SEED)
    ids = torch.randint(SIZES["vocab_size"], (batch, SEQUENCE), generator=generator)
    with torch.no_grad():
        expected = model(ids).logits.numpy()
    module, params = dx.interop.torch.import_model(model, ids)
    return imported(name, module, params, {"input_ids": ids.numpy()}, expected, tensor, sharded)
