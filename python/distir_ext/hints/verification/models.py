"""Makes tiny transformers models for verification: four layers with hidden states of 64."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from distir_ext.text.errors.spelling import did_you_mean

BATCH, SEQUENCE, VOCABULARY = 4, 8, 64
SEED = 11
CHUNK = 4
"""Positions that a recurrence computes at once; the state goes from one chunk to the next."""

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GROUPS = {"n_group": 2, "topk_group": 1}


@dataclass(frozen=True)
class TinyModel:
    """A class of transformers and the sizes that it is made with.

    Attributes:
        class_name: Of the model.
        config_name: Of its configuration.
        sizes: Sizes for its configuration.
    """

    class_name: str
    config_name: str
    sizes: Mapping[str, Any]


MODELS: Mapping[str, TinyModel] = {
    "llama": TinyModel(
        "LlamaForCausalLM", "LlamaConfig", {**_SIZES, **_ATTENTION, "intermediate_size": 64}
    ),
    "deepseek_v3": TinyModel(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_SIZES,
            **_EXPERTS,
            **_GROUPS,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 64,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "qwen3_moe": TinyModel(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**_SIZES, **_ATTENTION, **_EXPERTS, "intermediate_size": 64, "num_experts": 8},
    ),
    "mamba2": TinyModel(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            **_SIZES,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 4,
            "chunk_size": CHUNK,
        },
    ),
    "qwen3_next": TinyModel(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_SIZES,
            **_ATTENTION,
            **_EXPERTS,
            "intermediate_size": 64,
            "num_experts": 8,
            "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", *["full_attention"] * 3],
        },
    ),
    "nemotron_h": TinyModel(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {
            **{key: value for key, value in _SIZES.items() if key != "num_hidden_layers"},
            **_ATTENTION,
            **_EXPERTS,
            **_GROUPS,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "intermediate_size": 64,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 4,
            "chunk_size": CHUNK,
            "n_routed_experts": 8,
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
}
"""By the name that commands take."""


SIZES_OF_ALL: Mapping[str, Any] = {
    **{
        name: value
        for tiny in MODELS.values()
        for name, value in tiny.sizes.items()
        if not isinstance(value, list)  # types of layers: each class has words of its own for them
    },
    **MODELS["llama"].sizes,
}
"""Small sizes by the fields that configurations have."""


@dataclass(frozen=True)
class Program:
    """A model to be verified.

    Attributes:
        mod: The module; function ``main`` takes the inputs and then the weights.
        inputs: Arrays by name.
        weights: Arrays by the names of parameters.
        expected: Results of PyTorch.
        config: The configuration of transformers; None if it is no model of theirs.
    """

    mod: tvm.IRModule
    inputs: Mapping[str, npt.NDArray[Any]]
    weights: Mapping[str, npt.NDArray[Any]]
    expected: npt.NDArray[Any]
    config: Any = None


@contextmanager
def chunks_of(size: int, model: Any) -> Iterator[None]:
    """Sets the chunks of gated delta nets, which no configuration states.

    They are of 64 positions otherwise, and torch.export writes every one of them out.
    """
    module, name = sys.modules[type(model).__module__], "torch_chunk_gated_delta_rule"
    rule = getattr(module, name, None)
    if rule is not None:
        setattr(module, name, functools.partial(rule, chunk_size=size))
    try:
        yield
    finally:
        if rule is not None:
            setattr(module, name, rule)


def imported(name: str, **changes: Any) -> Program:
    """A tiny model as Relax, with random weights.

    Args:
        name: One of :data:`MODELS`.
        changes: Sizes that are others than theirs.

    Raises:
        ValueError: There is no such model; or torch.export or TVM's frontend cannot take it.
        ImportError: PyTorch or transformers are not installed.
    """
    if name not in MODELS:
        raise ValueError(
            f"there is no model {name!r}, only {', '.join(MODELS)}{did_you_mean(name, MODELS)}"
        )
    import transformers

    tiny = MODELS[name]
    config = getattr(transformers, tiny.config_name)(**{**tiny.sizes, **changes})
    return computed(getattr(transformers, tiny.class_name), config)


def computed(model_class: Any, config: Any) -> Program:
    """Returns a transformers model in Relax, with random weights, and its results.

    Raises:
        ValueError: torch.export or TVM's frontend cannot take it.
    """
    import torch

    from distir_ext.interop.torch import import_model

    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(SEED)
        model = model_class(config).eval()
        for param in model.parameters():  # norms start at one and biases at zero, which show little
            param.add_(0.1 * torch.randn(param.shape))
        vocabulary = int(config.get_text_config().vocab_size)
        ids = torch.randint(1, min(vocabulary, VOCABULARY), (BATCH, SEQUENCE))
        expected = model(input_ids=ids, use_cache=False).logits.numpy()
    with chunks_of(CHUNK, model):
        found = import_model(model, {"input_ids": ids})
    arrays = {key: np.asarray(value.numpy()) for key, value in found.params.items()}
    return Program(
        found.mod,
        {"input_ids": ids.numpy()},
        arrays,
        expected,
        config,
    )
