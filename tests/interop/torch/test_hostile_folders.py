"""Folders of transformers that say anything: one error that names the folder, and no code runs."""

from __future__ import annotations

import json
import os
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from distir_ext import cli  # noqa: E402
from distir_ext.text.printable import printable, printable_line  # noqa: E402

EVIL = "\n\x1b[2JEVIL\u202e"
CODE = {"AutoConfig": "evil.Evil", "AutoTokenizer": ["evil.Evil", None]}


class Opened:
    """Code that runs when it is unpickled."""

    def __reduce__(self):
        return (open, ("ran", "w"))


def files_of(folder, tokenizer=False):
    """Files that `save_pretrained` writes, of the smallest Llama."""
    config = transformers.LlamaConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=8,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = {f"t{index}\x1b[2J\u202e": index for index in range(7)} | {"unknown": 7}
        found = Tokenizer(models.WordLevel(words, unk_token="unknown"))
        found.pre_tokenizer = pre_tokenizers.Whitespace()
        found.save(str(folder / "tokenizer.json"))
        write({"tokenizer_class": "PreTrainedTokenizerFast"})(folder, "tokenizer_config.json")


def write(content):
    """Writes a file: bytes, or values as JSON."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda folder, file: (folder / file).write_bytes(data)


def change(**fields):
    """Changes fields of the file."""

    def changed(folder, file):
        write({**json.loads((folder / file).read_text()), **fields})(folder, file)

    return changed


def pipe(folder, file):
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)


def link(folder, file):
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to("/etc/hostname")


def pickled(folder, file):
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Opened()}, folder / file)


def without_a_weight(folder, file):
    from safetensors.torch import load_file, save_file

    held = load_file(folder / file)
    del held["model.norm.weight"]
    save_file(held, folder / file, {"format": "pt"})


WRONG = (
    *(("config.json", change(architectures=each)) for each in ("a", [1, ["a"]], [EVIL], ["os"])),
    *(("config.json", change(architectures=[each])) for each in ("pipeline", "Trainer", "Cache")),
    *(("config.json", change(dtype=each)) for each in (EVIL, "save", 1)),
    *(("config.json", change(hidden_size=each)) for each in (-1, EVIL, 10**15)),
    ("config.json", change(model_type=EVIL)),
    ("config.json", change(model_type="evil", auto_map=CODE)),
    ("config.json", change(num_attention_heads=0)),
    ("config.json", change(hidden_act=EVIL)),
    ("config.json", change(rope_parameters={"rope_type": EVIL})),
    *(("config.json", write(each)) for each in (b"{", b"[" * 100_000, b"\xff", [], {})),
    ("generation_config.json", write(b"[" * 100_000)),
    ("generation_config.json", write([])),
    ("generation_config.json", write({"eos_token_id": EVIL})),
    ("generation_config.json", write({"cache_implementation": EVIL})),
    ("generation_config.json", link),
    ("tokenizer.json", write(b"[" * 100_000)),
    ("tokenizer_config.json", write({"auto_map": CODE})),
    ("tokenizer_config.json", write({"tokenizer_class": EVIL})),
    *((file, pipe) for file in ("other.safetensors", "tokenizer_config.json", "chat.jinja")),
    ("model.safetensors", write((2**62).to_bytes(8, "little") + b"{}")),
    ("model.safetensors", write((100_000).to_bytes(8, "little") + b"[" * 100_000)),
    ("model.safetensors", write(b"")),
    ("model.safetensors", without_a_weight),
    ("pytorch_model.bin", pickled),
)


def generate(folder, capfd, *arguments):
    """Runs the command; returns its status and what it prints."""
    status = cli.main(["generate", str(folder), "--max-new-tokens", "2", *arguments])
    out, err = capfd.readouterr()
    assert printable(out) == out
    return status, out, err


def test_folders_that_say_anything(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    files_of(tmp_path / "model")
    (tmp_path / "model" / "evil.py").write_text("open('ran', 'w')\nclass Evil: pass\n")
    for number, (file, spoil) in enumerate(WRONG):
        folder = tmp_path / f"model{number}"
        shutil.copytree(tmp_path / "model", folder)
        spoil(folder, file)
        capfd.readouterr()
        status, out, err = generate(folder, capfd, "--token-ids", "1,2")
        *logged, said = err.splitlines()
        assert (status, out) == (1, ""), (number, file)
        assert said.startswith("distir generate: "), (number, file, said)
        assert str(folder) in said, (number, file, said)
        for line in (said, *logged):
            assert line == printable_line(line), (number, file)
            assert not line.startswith("EVIL")
        assert len(said) < 2000
        assert not (tmp_path / "ran").exists(), (number, file)


@pytest.mark.large
def test_tokens_are_printed_as_text(tmp_path, capfd):
    files_of(tmp_path, tokenizer=True)
    capfd.readouterr()
    status, out, err = generate(tmp_path, capfd, "--prompt", "hello")
    assert status == 0, err
    assert "\\x1b[2J\\u202e" in out or "unknown" in out
