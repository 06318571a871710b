"""Tables of the layers of known model families, with weight sizes computed from a configuration.

Data, from the classes of transformers 5.23. Sizes are expressions of a configuration's fields, in
which ``/`` leaves no remainder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL, SPARSE, DENSE = "all", "sparse", "dense"
"""In which layers a module is: in all, in those with or without experts; or a layer type."""


@dataclass(frozen=True)
class Weight:
    """A weight of a module.

    Attributes:
        tp_mode: As hints have it.
        blocks: Number of units of each block, and elements of a unit: heads, and their size.
        when: The field that has to be stated for the weight to exist, or ``"not "`` and the field
            that may not.
    """

    tp_mode: str
    blocks: tuple[tuple[str, str], ...] = ()
    when: str = ""


@dataclass(frozen=True)
class Module:
    """A module of a layer.

    Attributes:
        layer_type: As hints have it.
        weights: By name below the module's.
    """

    layer_type: str
    weights: Mapping[str, Weight]


@dataclass(frozen=True)
class Family:
    """Models whose layers are called alike.

    Attributes:
        modules: Name below the layer's, in which layers it is, and the module.
        prefix: Prefix of ``layers`` in the names of weights.
    """

    modules: tuple[tuple[str, str, Module], ...]
    prefix: str = "model"


def _columns(*blocks: tuple[str, str], when: str = "") -> Weight:
    return Weight("colwise", blocks, when)


def _rows(count: str, unit: str = "1") -> Weight:
    return Weight("rowwise", ((count, unit),))


_REPLICATED = Weight("none")
_HEADS, _SHARED_HEADS = "num_attention_heads", "num_key_value_heads"

_ATTENTION = Module(
    "mha",
    {
        "q_proj": _columns((_HEADS, "head_dim")),
        "k_proj": _columns((_SHARED_HEADS, "head_dim")),
        "v_proj": _columns((_SHARED_HEADS, "head_dim")),
        "o_proj": _rows(_HEADS, "head_dim"),
    },
)
# Queries and their gates are interleaved by head.
_GATED_ATTENTION = Module(
    "mha", {**_ATTENTION.weights, "q_proj": _columns((_HEADS, "2 * head_dim"))}
)
_FUSED_ATTENTION = Module(
    "mha",
    {
        "qkv_proj": _columns(
            (_HEADS, "head_dim"), (_SHARED_HEADS, "head_dim"), (_SHARED_HEADS, "head_dim")
        ),
        "o_proj": _rows(_HEADS, "head_dim"),
    },
)
_QUERIES = _columns((_HEADS, "qk_nope_head_dim + qk_rope_head_dim"))
_LATENT_ATTENTION = Module(
    "mla",
    {
        "q_proj": Weight("colwise", _QUERIES.blocks, "not q_lora_rank"),
        "q_a_proj": Weight("none", when="q_lora_rank"),
        "q_b_proj": Weight("colwise", _QUERIES.blocks, "q_lora_rank"),
        "kv_a_proj_with_mqa": _REPLICATED,
        "kv_b_proj": _columns((_HEADS, "qk_nope_head_dim + v_head_dim")),
        "o_proj": _rows(_HEADS, "v_head_dim"),
    },
)


def _mlp(size: str, below: str = "") -> dict[str, Weight]:
    return {f"{below}up_proj": _columns((size, "1")), f"{below}down_proj": _rows(size)}


def _gated_mlp(size: str, below: str = "") -> dict[str, Weight]:
    return {f"{below}gate_proj": _columns((size, "1")), **_mlp(size, below)}


def _fused_mlp(size: str, below: str = "") -> dict[str, Weight]:
    return {
        f"{below}gate_up_proj": _columns((size, "1"), (size, "1")),
        f"{below}down_proj": _rows(size),
    }


_MLP = Module("mlp", _mlp("intermediate_size"))
_GATED_MLP = Module("mlp", _gated_mlp("intermediate_size"))
_FUSED_MLP = Module("mlp", _fused_mlp("intermediate_size"))

_MIXTURE = Module(
    "moe", {"gate": _REPLICATED, **_fused_mlp("moe_intermediate_size", below="experts.")}
)


def _beside(mixture: Module, weights: Mapping[str, Weight]) -> Module:
    """A mixture with a shared expert."""
    return Module("moe", {**mixture.weights, **weights})


_UNGATED_MIXTURE = Module(
    "moe",
    {
        "gate": _REPLICATED,
        "fc1_latent_proj": Weight("none", when="moe_latent_size"),
        **_mlp("moe_intermediate_size", below="experts."),
        "fc2_latent_proj": Weight("none", when="moe_latent_size"),
    },
)


def _mamba(heads: str, head_size: str, state_size: str) -> Module:
    """Gate | x | B | C | time steps; norms are over groups of heads."""
    inner = f"{heads} * {head_size} / n_groups"
    state = ("n_groups", state_size)
    return Module(
        "ssm",
        {
            "in_proj": _columns(
                ("n_groups", inner), (heads, head_size), state, state, (heads, "1")
            ),
            "out_proj": _rows("n_groups", inner),
        },
    )


# Each head of keys has its queries, and the values and gates of the heads that share it.
_VALUES = "linear_num_value_heads / linear_num_key_heads"
_DELTA_NET = Module(
    "delta",
    {
        "in_proj_qkvz": _columns(
            (
                "linear_num_key_heads",
                f"2 * linear_key_head_dim + 2 * linear_value_head_dim * ({_VALUES})",
            )
        ),
        "in_proj_ba": _columns(("linear_num_key_heads", f"2 * ({_VALUES})")),
        "out_proj": _rows("linear_num_value_heads", "linear_value_head_dim"),
    },
)

FAMILIES: Mapping[str, Family] = {
    "phi3": Family((("self_attn", ALL, _FUSED_ATTENTION), ("mlp", ALL, _FUSED_MLP))),
    "qwen3_moe": Family(
        (("self_attn", ALL, _ATTENTION), ("mlp", SPARSE, _MIXTURE), ("mlp", DENSE, _GATED_MLP))
    ),
    "deepseek_v3": Family(
        (
            ("self_attn", ALL, _LATENT_ATTENTION),
            (
                "mlp",
                SPARSE,
                _beside(
                    _MIXTURE,
                    _gated_mlp("moe_intermediate_size * n_shared_experts", "shared_experts."),
                ),
            ),
            ("mlp", DENSE, _GATED_MLP),
        )
    ),
    "mamba2": Family(
        (("mixer", ALL, _mamba("num_heads", "head_dim", "state_size")),), prefix="backbone"
    ),
    "qwen3_next": Family(
        (
            ("linear_attn", "linear_attention", _DELTA_NET),
            ("self_attn", "full_attention", _GATED_ATTENTION),
            (
                "mlp",
                SPARSE,
                _beside(
                    _MIXTURE,
                    {
                        **_gated_mlp("shared_expert_intermediate_size", "shared_expert."),
                        "shared_expert_gate": _REPLICATED,
                    },
                ),
            ),
            ("mlp", DENSE, _GATED_MLP),
        )
    ),
    "nemotron_h": Family(
        (
            (
                "mixer",
                "linear_attention",
                _mamba("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
            ),
            ("mixer", "full_attention", _ATTENTION),
            ("mixer", "mlp", _MLP),
            (
                "mixer",
                "moe",
                _beside(
                    _UNGATED_MIXTURE,
                    _mlp("moe_shared_expert_intermediate_size", "shared_experts."),
                ),
            ),
        )
    ),
}
"""By ``model_type``: what configurations do not state by themselves."""

PLANNED: tuple[Module, ...] = (_ATTENTION, _GATED_MLP, _MLP)
"""The modules that are known by what ``base_model_tp_plan`` says of them."""

BY_PLAN = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "olmo", "granite", "smollm3")
"""Some of the models all of whose layers are; for messages."""
