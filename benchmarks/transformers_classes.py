"""Every causal language model class of transformers, partitioned on four CPU workers.

    python benchmarks/transformers_classes.py                        # all classes, "hf" and "fsdp"
    python benchmarks/transformers_classes.py --class LlamaForCausalLM --plan tp

Models are tiny and randomly initialised: from the class's configuration with small sizes. Each is
compared with torch, in a process that serves a few, and becomes one row of the table: "ok" with the
relative error, or what failed, and in whose code ("TVM": it fails unpartitioned too). Needs the
extra "torch".
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PLANS = ("hf", "fsdp")
WORKERS = 4
BATCH, SEQUENCE = 4, 8
SEED = 11
LIMIT = 1e-4
"""Relative error; sums in another order change float32 by some 1e-6 in deep programs."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 128),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_size"), 64),
    **dict.fromkeys(("dim", "word_embed_proj_dim", "attention_hidden_size", "lru_width"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 8),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 8),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_groups", "mamba_n_groups"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 128),
    **dict.fromkeys(("n_inner", "dff", "dim_ff", "ffn_hidden_size", "d_ff"), 128),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "d_kv"), 8),
    **dict.fromkeys(("global_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "index_head_dim", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "state_size", "mamba_d_state"), 16),
    **dict.fromkeys(("ssm_state_size", "time_step_rank", "mamba_dt_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_expert_group"), 1),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "mamba_n_heads"), 8),
    **dict.fromkeys(("mamba_num_heads", "index_n_heads"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "sliding_window", "attention_window"), 4),
    "rotary_dim": 8,
    "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 16,
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0),
    **dict.fromkeys(("is_decoder",), True),
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
}
"""Sizes by their names in configurations."""

DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
FEW = (
    *DEPTHS,
    *("vocab_size", "hidden_size", "d_model", "n_embd", "intermediate_size", "ffn_dim"),
    *("num_attention_heads", "n_head", "n_heads", "num_key_value_heads"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "is_decoder", "initializer_range"),
)
"""Sizes that most configurations have, and that go together."""

_ROTATION = {"rope_type": "default", "rope_theta": 10000.0}
UNSTATED: tuple[dict[str, Any], ...] = (
    {},
    {"rope_parameters": _ROTATION, "head_dim": 8},
    {"rope_parameters": {"full_attention": _ROTATION, "sliding_attention": _ROTATION}},
    {"layer_types": ["full_attention", "full_attention"]},
)
"""Fields that some classes have no default for; alternatives, to be tried in order."""

NEEDED = ("n_routed_experts", "num_key_value_heads")
"""Sizes without a default, which some classes do not work without."""


FEW_LAYERS = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2}
FEW_HEADS = {"num_attention_heads": 8, "intermediate_size": 128, "max_position_embeddings": 64}
ROUTED = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    **{"n_group": 1, "topk_group": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
}
OWN: dict[str, dict[str, Any]] = {
    "DbrxConfig": {
        **{"d_model": 64, "n_heads": 8, "n_layers": 2, "max_seq_len": 64, "vocab_size": 128},
        "attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0, "clip_qkv": 8},
        "ffn_config": {
            **{"hidden_size": 64, "ffn_hidden_size": 128},
            **{"moe_num_experts": 4, "moe_top_k": 2},
        },
    },
    "DeepseekV2Config": {
        **FEW_LAYERS,
        **FEW_HEADS,
        **ROUTED,
        **{"kv_lora_rank": 16, "q_lora_rank": 16, "num_key_value_heads": 8},
        **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    },
    "Dots1Config": {**FEW_LAYERS, **FEW_HEADS, **ROUTED, "num_key_value_heads": 4},
    "GPTNeoConfig": {
        **{"vocab_size": 128, "hidden_size": 64, "num_layers": 2, "num_heads": 8},
        **{"attention_types": [[["global", "local"], 1]], "window_size": 4},
        "max_position_embeddings": 64,
    },
    "XmodConfig": {**FEW_LAYERS, **FEW_HEADS, "default_language": "en_XX"},
    "Mamba2Config": {
        **FEW_LAYERS,
        **{"num_heads": 16, "head_dim": 8, "n_groups": 4, "state_size": 16, "chunk_size": 4},
    },
}
"""Of configurations whose sizes depend on each other in their own way: all that is not default."""


AT_ONCE = 4
"""Classes that one process tries."""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def tiny_configurations(config_class: Any) -> Iterator[Any]:
    """Configurations of a class with small sizes: all that it has a name for, then the usual few.

    They have two layers, or one of each kind that the class has; and so has each part of a
    configuration of several models.
    """
    if config_class.__name__ in OWN:
        yield config_class(**OWN[config_class.__name__])
        return
    default = config_class()
    several = default.get_text_config() is not default
    layers = _layers(default)
    for names in (None, FEW):
        sizes = _sizes(default, layers, names)
        parts = _parts(default, names) if several else {}
        for more in UNSTATED:
            with contextlib.suppress(Exception):
                yield config_class(**{**sizes, **layers, **more, **parts})
        without_depth = {name: size for name, size in sizes.items() if name not in DEPTHS}
        with contextlib.suppress(Exception):
            yield config_class(**without_depth, **parts)
    if not several:
        yield config_class(**_sizes(default, layers, FEW))


def _sizes(
    default: Any, layers: dict[str, list[str]], names: Sequence[str] | None
) -> dict[str, Any]:
    """Small sizes for what a configuration has of ``names``, or of all that are known."""
    sizes = {name: value for name, value in SIZES.items() if _is_set(default, name)}
    if _is_set(default, "qk_rope_head_dim") and "num_attention_heads" in sizes:
        # Latent attention has one head of keys and values for each; the size is the rotated part's.
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if layers:
        count = len(next(iter(layers.values())))
        sizes = {name: count if name in DEPTHS else value for name, value in sizes.items()}
    return {name: value for name, value in sizes.items() if names is None or name in names}


def _parts(default: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """The configurations within one of several models, with small sizes."""
    parts = {}
    for name in type(default).sub_configs:
        part = getattr(default, name, None)
        if part is not None:
            layers = _layers(part)
            parts[name] = type(part)(**_sizes(part, layers, names), **layers)
    return parts


def _layers(default: Any) -> dict[str, list[str]]:
    """The kinds of layers that a configuration lists, each once or twice."""
    found = {}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = getattr(default, name, None)
        if isinstance(kinds, list | tuple) and kinds and isinstance(kinds[0], str):
            found[name] = list(dict.fromkeys(kinds))
    count = max(2, *map(len, found.values())) if found else 0
    return {name: (kinds * count)[:count] for name, kinds in found.items()}


def _is_set(config: Any, name: str) -> bool:
    try:
        value = getattr(config, name, None)
    except Exception:  # it has a value for each layer
        return False
    if value is None:
        return name in NEEDED and hasattr(config, name)
    return not isinstance(value, list | tuple | dict)


def tiny_model(model_class: Any, ids: Any) -> tuple[Any, Any]:
    """Returns a random model of a class, and its results in torch."""
    import torch

    failure: Exception = ValueError("it has no configuration")
    for config in tiny_configurations(model_class.config_class):
        try:
            torch.manual_seed(SEED)
            model = model_class(config).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * torch.randn(parameter.shape))
                return model, model(input_ids=ids, use_cache=False).logits.numpy()
        except Exception as error:
            failure = error
    raise failure


def attempt(name: str, plans: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields a row for each plan: the outcome for a class."""
    import numpy as np
    import torch
    import transformers

    import distir_ext as dx

    row: dict[str, Any] = {"class": name}
    ids = torch.randint(1, 100, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(SEED))
    try:
        model, wanted = tiny_model(getattr(transformers, name), ids)
    except Exception as error:
        yield {**row, "plan": "", "whose": "no tiny model", "error": _short(error)}
        return
    for plan in plans:
        row["plan"] = plan
        start = time.perf_counter()
        try:
            mesh = dx.Mesh((WORKERS,), (_axis(plan),))
            sharded = dx.interop.torch.partition(model, {"input_ids": ids}, mesh, plan)
            with dx.Session(mesh) as session:
                result = sharded.load(session)(ids)
                first = result[0] if isinstance(result, tuple) else result
                actual = np.asarray(first.numpy(), np.float64)
            difference = np.sqrt(
                np.mean((actual - wanted) ** 2) / np.mean(wanted.astype(float) ** 2)
            )
            right = difference < LIMIT
            yield {
                **row,
                "relative error": float(difference),
                "seconds": time.perf_counter() - start,
                "whose": "" if right else _ours_or_tvm(model, ids, wanted),
            }
        except Exception as error:
            whose = _whose(error)
            if whose == "distir_ext":
                whose = _ours_or_tvm(model, ids, wanted)
            yield {**row, "whose": whose, "error": _short(error)}


def _ours_or_tvm(model: Any, ids: Any, wanted: Any) -> str:
    """Attributes a failure: to TVM if the imported model fails on one device, too."""
    import numpy as np
    import tvm
    from tvm import relax

    import distir_ext as dx

    try:
        mod, parameters = dx.interop.torch.import_model(model, {"input_ids": ids})
        machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
        values = {**parameters, "input_ids": ids}
        arguments = [np.asarray(values[each.name]) for each in mod["main"].params]
        result = machine["main"](*map(tvm.runtime.tensor, arguments))
        first = result if hasattr(result, "numpy") else result[0]
        right = np.allclose(first.numpy(), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    except Exception:
        right = False
    return "distir_ext" if right else "TVM"


def _axis(plan: str) -> str:
    return "fsdp" if plan == "fsdp" else "tp"


def _whose(error: Exception) -> str:
    text = str(error)
    if text.startswith("torch.export cannot"):
        return "torch.export"
    if "TVM's frontend" in text:
        return "TVM's frontend"
    if "has no plan of its own" in text:
        return "no plan"
    return "distir_ext"


def _short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def run_apart(names: Sequence[str], plans: Sequence[str], timeout: float) -> list[dict[str, Any]]:
    """The rows of classes, made in another process; one that dies is started again behind it."""
    rows: list[dict[str, Any]] = []
    pending = list(names)
    while pending:
        command = [sys.executable, __file__, "--here", *(f"--plan={plan}" for plan in plans)]
        command += [f"--class={name}" for name in pending]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        try:
            printed, errors = process.communicate(timeout=timeout * len(pending))
            reason = (errors.strip().splitlines()[-1:] or [f"exit status {process.returncode}"])[0]
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
            reason = f"longer than {timeout * len(pending):.0f} s"
        found = _rows(printed)
        rows.extend(row for row in found if "plan" in row)
        done = {row["class"] for row in found if "plan" not in row}
        pending = [name for name in pending if name not in done]
        if pending:
            whose = "process"
            rows.append(
                {"class": pending.pop(0), "plan": "", "whose": whose, "error": reason[:300]}
            )
    return rows


def _rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"class"')]


def table(rows: Sequence[dict[str, Any]], plans: Sequence[str]) -> str:
    """A Markdown table: a class per row, a plan per column."""
    classes: dict[str, dict[str, str]] = {}
    for row in rows:
        for plan in [row["plan"]] if row["plan"] else plans:
            classes.setdefault(row["class"], {}).setdefault(plan, _cell(row))
    lines = [f"| class | {' | '.join(plans)} |", f"|---|{'---|' * len(plans)}"]
    for name, cells in sorted(classes.items(), key=lambda each: each[0].lower()):
        lines.append(f"| {name} | {' | '.join(cells.get(plan, '') for plan in plans)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    if "relative error" in row and not row["whose"]:
        return f"ok {row['relative error']:.0e}"
    if "relative error" in row and row["whose"] == "TVM":
        return f"TVM: wrong unpartitioned too, {row['relative error']:.0e}"
    if "relative error" in row:
        return f"**wrong** {row['relative error']:.0e}"
    if row["whose"] == "no plan":
        return "no plan"
    return f"{row['whose']}: {row['error']}".replace("|", "/")[:120]


def class_names() -> list[str]:
    """All causal language model classes of the installed version."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))


def main() -> int:
    """Prints the table; 1 if a result is wrong or this package failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--class", dest="classes", action="append", help="only this; repeatable")
    parser.add_argument("--plan", action="append", help="hf, fsdp, tp or auto; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="classes at a time")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for a class")
    parser.add_argument("--here", action="store_true", help="in this process, as lines of JSON")
    parser.add_argument("--rows", help="a file that gets each row as a line of JSON, as it comes")
    options = parser.parse_args()
    plans = options.plan or list(PLANS)
    warnings.filterwarnings("ignore")
    names = options.classes or class_names()
    if options.here:
        for name in names:
            for row in [*attempt(name, plans), {"class": name}]:
                print(json.dumps(row), flush=True)
        return 0
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(Path(options.rows).open("a")) if options.rows else None
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        groups = [names[i : i + AT_ONCE] for i in range(0, len(names), AT_ONCE)]
        for found in pool.map(lambda group: run_apart(group, plans, options.timeout), groups):
            rows.extend(found)
            for row in found:
                print(
                    f"{row['class']:40} {row['plan']:5} {_cell(row)}", file=sys.stderr, flush=True
                )
                if file:
                    print(json.dumps(row), file=file, flush=True)
    print(table(rows, plans))
    whose = Counter(row["whose"] or "ok" for row in rows)
    print("\n" + ", ".join(f"{count} {what}" for what, count in whose.most_common()))
    return 1 if any(row["whose"] in ("distir_ext", "process") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
