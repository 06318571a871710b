"""Commands that print the contents of files, run on files with hostile names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.hostile_names.entities import ENTITIES, NAMES
from tests.hostile_names.outputs import (
    check_html,
    check_python,
    check_terminal,
    check_xml,
)

import distir_ext as dx
from distir_ext import cli
from distir_ext.text.errors.full_tracebacks import VARIABLE
from distir_ext.text.printable import printable_line

NAME = NAMES["all at once"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def printed(capsys, *arguments: str) -> str:
    """Runs a command, which may refuse but not crash; checks stderr and returns the output."""
    try:
        status = cli.main(list(arguments))
    except SystemExit as end:
        status = end.code
    assert status in (0, 1, 2)
    out, err = capsys.readouterr()
    check_terminal(err)
    assert len(err) < 20_000
    return out


@pytest.mark.every_case_in_large
@pytest.mark.parametrize("entity", ["parameter", "variable", "function", "mesh axis", "kernel"])
def test_a_saved_folder_through_every_command(entity, folder, capsys):
    mod = ENTITIES[entity](NAME)
    dx.save("saved", mod)
    check_python(printed(capsys, "partition", "saved"))
    check_python(printed(capsys, "partition", "saved", "--phase", "propagated"))
    for command in ("explain", "report", "simulate", "diff"):
        check_terminal(printed(capsys, command, "saved", *(["saved"] if command == "diff" else [])))
        text = printed(
            capsys, command, "saved", *(["saved"] if command == "diff" else []), "--json"
        )
        assert not text or json.loads(text)
    check_terminal(printed(capsys, "explain", "saved", NAME))
    check_terminal(printed(capsys, "explain", "saved", "missing"))
    check_terminal(printed(capsys, "visualize", "saved", "missing"))
    wanted = NAME if entity in ("parameter", "variable") else "x"
    check_terminal(printed(capsys, "visualize", "saved", wanted, "--output", "a.svg"))
    check_xml(Path("a.svg").read_text())
    printed(capsys, "report", "saved", "--html", "a.html")
    check_html(Path("a.html").read_text())


def test_names_of_an_onnx_model(folder, capsys):
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", [f"x{NAME}", f"w{NAME}"], [f"y{NAME}"], name=f"n{NAME}")],
        f"g{NAME}",
        [helper.make_tensor_value_info(f"x{NAME}", kind, [8, 8])],
        [helper.make_tensor_value_info(f"y{NAME}", kind, [8, 8])],
        [helper.make_tensor(f"w{NAME}", kind, [8, 8], [0.5] * 64)],
    )
    model = helper.make_model(graph, doc_string=NAME, producer_name=NAME, domain=NAME)
    helper.set_model_props(model, {NAME: NAME})
    graph.node[0].doc_string = graph.doc_string = NAME
    onnx.save(model, "model.onnx")
    sharded = ("--mesh", "tp=2", "--plan", "plan.json")
    Path("plan.json").write_text(json.dumps({"(?s)w.*": [None, "tp"]}))
    text = printed(capsys, "partition", "model.onnx", *sharded, "--phase", "propagated")
    assert "# w" in text
    check_python(text)
    check_terminal(printed(capsys, "report", "model.onnx", *sharded))
    Path("plan.json").write_text(json.dumps({NAME: [None, "tp"]}))
    check_terminal(printed(capsys, "report", "model.onnx", *sharded))


def test_locations_of_a_stablehlo_module(folder):
    """Names and places of operations, which errors give as the user's own."""
    name = "".join(f"\\{byte:02X}" for byte in NAME.encode())
    text = f"""module @"{name}" {{
      func.func public @main(%x: tensor<4x8xf32> loc("{name}")) -> tensor<4x8xf32> {{
        %0 = stablehlo.custom_call @"{name}"(%x)
          : (tensor<4x8xf32>) -> tensor<4x8xf32> loc("{name}"("{name}":1:2))
        return %0 : tensor<4x8xf32>
      }}
    }}"""
    with pytest.raises(ValueError, match="cannot be imported") as refusal:
        dx.interop.jax.from_stablehlo(text)
    for line in str(refusal.value).splitlines():
        check_terminal(line)


@pytest.mark.parametrize("name", [NAME, "a\udcff\x1b[2J", NAMES["a million letters"]])
def test_arguments_that_name_nothing(name, folder, capsys):
    """Files that are not there, options and words that nobody knows."""
    for arguments in (
        (name,),
        ("report", name),
        ("report", "--mesh", name),
        ("report", f"--{name}"),
        ("explain", name, name),
        ("diff", name, name),
        ("partition", "a.py", "--output", name),
        ("partition", "a.py", "--output", f"{name}/b"),
        ("passes", name),
        ("verify-hints", name),
        ("verify-hints", f"{name[-300:]}.py", "--configs", "tp-only"),
        ("demo", name),
        ("generate", name),
        ("host", "--bind", name),
        ("host", "--token-file", name),
        ("launch", "-n", name, "a"),
        ("token", f"{name}/b"),
        ("completion", name),
    ):
        out = printed(capsys, *arguments)
        check_terminal(out)
        assert len(out) < 20_000


@pytest.mark.every_case
@pytest.mark.parametrize(
    "text",
    [
        'passes: {"\\e[2J\\nEVIL": {}}',
        '"\\e[2J\\nEVIL": {}',
        'passes: {PadShards: {"\\e[2J\\nEVIL": 1}}',
        'passes: {PadShards: "\\e[2J\\nEVIL"}',
        '"\\e[2J\\nEVIL": 1\n"\\e[2J\\nEVIL": 2',
        "passes: " + "1" + ":1" * 100_000,
        "passes: " + "1" + ":1" * 100_000 + ".5",
        "passes: " + "9" * 200_000,
        "passes: 0x" + "f" * 200_000,
        "passes: 0b" + "1" * 200_000,
        "? [" + "1:1:1, " * 20_000 + "]\n: 1",
    ],
)
def test_yaml_says_where_and_in_time(text, folder):
    import time

    file = folder / "mine.yaml"
    file.write_text(text)
    for read, error in ((dx.pipelines.load, ValueError), (dx.hints.load, ValueError)):
        begun = time.process_time()
        with pytest.raises(error, match=r"mine\.yaml") as failure:
            read(file)
        assert time.process_time() - begun < 2
        assert str(failure.value) == printable_line(str(failure.value))
        assert len(str(failure.value)) < 2000
