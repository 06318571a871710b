"""A sample of the table in docs/models.md: classes of transformers under two plans."""

from __future__ import annotations

import json

import pytest
from tests.benchmark_modules import benchmark_module

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = [pytest.mark.models, pytest.mark.large]


@pytest.mark.parametrize(
    ("name", "has_plan"),
    [
        ("Gemma2ForCausalLM", True),  # layers of two kinds, of which one sees a window
        ("Qwen3MoeForCausalLM", True),  # experts
        ("DeepseekV3ForCausalLM", True),  # latent attention, routed and shared experts
        ("BertLMHeadModel", False),
    ],
)
def test_a_class_computes_what_torch_computes(name, has_plan):
    with benchmark_module("transformers_classes") as benchmark:
        rows = {row["plan"]: row for row in benchmark.attempt(name, ["hf", "fsdp"])}
    assert rows["fsdp"]["relative error"] < 1e-5
    if has_plan:
        assert rows["hf"]["relative error"] < 1e-5
    else:
        assert rows["hf"]["whose"] == "no plan"


def test_the_table_says_whose_code_failed():
    with benchmark_module("transformers_classes") as benchmark:
        lines = [
            {"class": "A", "plan": "hf", "relative error": 2e-7, "whose": ""},
            {"class": "A", "plan": "fsdp", "relative error": 0.5, "whose": "distir_ext"},
            {"class": "B", "plan": "", "whose": "torch.export", "error": "ValueError: a | b"},
            {"class": "B"},
        ]
        rows = benchmark._rows("\n".join(["noise", *map(json.dumps, lines)]))
        table = benchmark.table([row for row in rows if "plan" in row], ["hf", "fsdp"])
    assert table.splitlines()[2:] == [
        "| A | ok 2e-07 | **wrong** 5e-01 |",
        "| B | torch.export: ValueError: a / b | torch.export: ValueError: a / b |",
    ]
