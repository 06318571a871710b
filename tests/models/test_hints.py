"""Tiny models of transformers under detected hints: results, and the textbook's communication."""

from __future__ import annotations

import pytest

from distir_ext.cli import main

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def tiny():
    from distir_ext.hints.verification.models import imported

    return imported("llama")


def test_llama_passes_and_says_what_it_skips(tiny):
    from distir_ext.hints.verification.check import verify

    assert verify("llama", tiny, "tep").status == "pass"
    assert verify("llama", tiny, "ep-only").status == "skip"


def test_attention_without_its_last_product_fails(tiny):
    from distir_ext import hints
    from distir_ext.hints.verification.check import verify

    found = hints.detect(tiny.mod)
    layer = next(name for name, each in found.layers.items() if each.layer_type == "mha")
    wrong = found.with_weight(layer, "o_proj_weight", tp_mode="none")
    assert verify("llama", tiny, "tp-only", wrong).status == "FAIL"


# The chunks of a gated delta net are written out by torch.export: it compiles for minutes.
ALL = ("tp-only", "ep-only", "tep", "attn-dp")
CONFIGS = {"deepseek_v3": ALL, "qwen3_moe": ALL, "mamba2": ALL, "nemotron_h": ALL}


@pytest.mark.large
@pytest.mark.parametrize("name", [*CONFIGS, "qwen3_next"])
def test_every_configuration_passes(name, capsys):
    configs = CONFIGS.get(name, ("tep",))
    assert main(["verify-hints", name, *(f"--config={each}" for each in configs)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert len(rows) == len(configs)
    assert not any("FAIL" in row for row in rows)
