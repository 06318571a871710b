"""``distir generate``: generates text with a transformers model, sharded over local workers."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.output import add_json, print_json
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import add_mesh
from distir_ext.text.printable import printable

EXAMPLE = "distir generate Llama-3.2-1B --mesh tp=2 --prompt 'Once upon a time' --max-new-tokens 32"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "generate",
        help="generate text with a model of transformers, sharded over workers of this machine",
        description="Generates text with a model of transformers: its folder, with config.json and "
        "safetensors, of which each worker reads its part. The model is sharded over the devices "
        "of a mesh, which are threads of this machine, and its caches by heads.",
        epilog="Needs pip install 'distir-ext[torch]'. Without a tokenizer in the folder, prompts "
        "are numbers of tokens: --token-ids 1,15,7.",
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument("model", metavar="MODEL_DIR", help="the folder of the model")
    add_mesh(parser, "the devices, as tp=2 or dp=2,tp=2 (default: one)", default={"tp": 1})
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated")
    what.add_argument(
        "--token-ids",
        action="append",
        type=argument_type(_token_ids),
        metavar="N,..",
        help="a prompt as numbers of tokens; may be repeated",
    )
    for name, kind, metavar, text in (
        ("max-new-tokens", int, "N", "most tokens to generate for a prompt (default: 32)"),
        ("temperature", float, "T", "sample with this temperature"),
        ("top-k", int, "K", "sample of the K most likely tokens"),
        ("top-p", float, "P", "sample of the most likely tokens with this probability together"),
        ("seed", int, "N", "of what is sampled"),
        ("max-length", int, "N", "positions of the caches (default: what is needed)"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--strategy",
        default="auto",
        choices=("auto", "hf", "tp", "fsdp", "search"),
        help="the plan that shards weights (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype", metavar="TYPE", help="type of the weights (default: that of the model)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what follows each prompt."""
    import distir_ext as dx

    new = 32 if options.max_new_tokens is None else options.max_new_tokens
    if new < 1:
        raise UsageError(f"--max-new-tokens {new} is not positive")
    torch_models = dx.interop.torch
    from distir_ext.interop.torch.generation.folders import tokenizer_of_folder

    tokenizer = tokenizer_of_folder(options.model)
    if options.prompt and tokenizer is None:
        raise UsageError(f"{options.model} has no tokenizer; --token-ids takes numbers of tokens")
    if options.prompt:
        prompts = [tokenizer(text)["input_ids"] for text in options.prompt]
        if not all(prompts):
            raise UsageError("a prompt has no tokens")
    else:
        prompts = options.token_ids
    found = torch_models.model_of_folder(options.model, options.dtype)
    model: Any = found.model
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} takes {model.main_input_name}, not text; "
            "dx.interop.torch.partition(..., generation=...) generates with it"
        )
    vocabulary = model.get_input_embeddings().weight.shape[0]
    for token in (token for prompt in prompts for token in prompt if token >= vocabulary):
        raise UsageError(f"there is no token {token}; the model has {vocabulary}")
    length = max(map(len, prompts))
    held = 1 if model.config.is_encoder_decoder else length
    sizes = torch_models.Generation(
        max_length=options.max_length or held + new,
        batch=len(prompts),
        encoder_length=length,
    )
    mesh = dx.Mesh(tuple(options.mesh.values()), tuple(options.mesh))
    ids, mask = _padded(prompts, length, bool(model.config.is_encoder_decoder))
    sampling = {
        name: value
        for name in ("temperature", "top_k", "top_p")
        if (value := getattr(options, name)) is not None
    }
    if sampling:
        sampling["do_sample"] = True
    if model.generation_config.pad_token_id is None:
        eos = model.generation_config.eos_token_id
        sampling["pad_token_id"] = (eos[0] if isinstance(eos, list) else eos) or 0
    partitioned: Any = torch_models.partition(found, None, mesh, options.strategy, generation=sizes)
    with partitioned:
        tokens = partitioned.generate(
            ids, mask, max_new_tokens=new, seed=options.seed, **sampling
        ).tolist()
        report = partitioned.report
    start = 1 if model.config.is_encoder_decoder else length
    generated = [each[start:] for each in tokens]
    texts = None
    if tokenizer is not None:
        texts = [tokenizer.decode(each, skip_special_tokens=True) for each in generated]
    if options.json:
        print_json({"tokens": generated, "texts": texts, "report": report.data()})
        return 0
    for index, each in enumerate(generated):
        print(",".join(map(str, each)) if texts is None else printable(texts[index]))
    print(report, file=sys.stderr)
    return 0


def _padded(prompts: list[list[int]], length: int, is_right: bool) -> tuple[Any, Any]:
    """Prompts of one length, and a mask that says what is padding."""
    import torch

    ids, mask = [], []
    for prompt in prompts:
        zeros = [0] * (length - len(prompt))
        ones = [1] * len(prompt)
        ids.append([*prompt, *zeros] if is_right else [*zeros, *prompt])
        mask.append([*ones, *zeros] if is_right else [*zeros, *ones])
    return torch.tensor(ids), torch.tensor(mask)


def _token_ids(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{text!r} is no list of tokens, as in 1,15,7")
    return [int(part) for part in parts]
