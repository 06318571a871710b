"""``distir explain``, ``partition``, ``redistribute`` and ``rules``."""

import json
import math
import runpy
import shutil

import pytest
from tests.cli.conftest import MODEL, SHARDED

import distir_ext as dx
from distir_ext.interop._program_files import read_program


def partitioned(model, until):
    mesh = dx.Mesh(dp=2, tp=2)
    plan = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}
    mod = dx.annotate(read_program(model), mesh, plan)
    return mod if until == "annotated" else dx.lower(mod, until=until)


@pytest.mark.parametrize("phase", ["annotated", "PadShards", "legalized", "lowered", "runtime"])
def test_partition_prints_a_file_that_runs(model, printed, file, phase):
    text = printed("partition", model, *SHARDED, "--phase", phase)
    expected = partitioned(model, phase)
    assert text == dx.script(expected)
    (mod,) = (
        value
        for value in runpy.run_path(file("result.py", text)).values()
        if isinstance(value, type(expected))
    )
    assert dx.phase(mod) == dx.phase(expected)
    assert [str(name) for name in mod.get_global_vars()] == [
        str(name) for name in expected.get_global_vars()
    ]


def test_partition_writes_and_says_what_passes_did(model, data, tmp_path):
    found = data("partition", model, *SHARDED, "-o", "lowered.py", "--dump", "passes")
    assert (found["phase"], found["output"]) == ("lowered", "lowered.py")
    done = {each["name"]: each["done"] for each in found["passes"]}
    assert done["LegalizeRedistribute"] == {"all_reduce": 1}
    assert (tmp_path / "lowered.py").read_text() == dx.script(partitioned(model, "lowered"))
    assert (tmp_path / "passes" / "index.html").exists()
    assert "script" in data("partition", model, *SHARDED)


def test_the_cluster_decides_what_is_written(model, printed):
    text = printed("partition", model, *SHARDED, "--cluster", "A100", "--phase", "propagated")
    assert json.dumps(dx.Cluster.preset("A100").as_data()["bandwidth"]) in text


def test_a_program_does_not_go_back(model, refused, printed):
    printed("partition", model, *SHARDED, "-o", "lowered.py")
    assert refused("partition", "lowered.py", "--phase", "legalized") == (
        "lowered.py is lowered already, which comes after legalized"
    )
    assert refused("report", "lowered.py", *SHARDED) == (
        "lowered.py is lowered already; leave --mesh out"
    )


def test_unknown_phases(model, refused):
    line = refused("partition", model, *SHARDED, "--phase", "lowerd")
    assert line.startswith("there is no phase or pass 'lowerd'; there are annotated, ")
    assert "did you mean 'lowered'" in line


def test_explanations_are_those_of_the_library(model, printed, data):
    expected = [
        str(each) for each in dx.explain(partitioned(model, "propagated"), ["up", "hidden"])
    ]
    assert printed("explain", model, *SHARDED, "up", "hidden") == "\n\n".join(expected) + "\n"
    assert printed("explain", model, "up", "hidden", *SHARDED) == "\n\n".join(expected) + "\n"
    found = data("explain", model, *SHARDED, "hidden")["explanations"]
    assert found == [{"variable": "hidden", "lines": expected[1].splitlines()}]


def test_explain_draws_the_graph(model, printed, tmp_path):
    listed = printed("explain", model, *SHARDED, "hidden")
    assert printed("explain", model, *SHARDED, "hidden", "--graph", "g.dot") == listed
    expected = dx.analysis.graph(partitioned(model, "annotated"))
    assert (tmp_path / "g.dot").read_text() == expected.to_dot()
    if shutil.which("dot"):
        printed("explain", model, *SHARDED, "--graph", "g.svg")
        assert (tmp_path / "g.svg").read_text() == expected.to_svg()


def test_explain_draws_no_other_files(model, refused):
    line = refused("explain", model, *SHARDED, "--graph", "g.png", status=2)
    assert line == "--graph g.png: a graph is a file .svg or .dot"


@pytest.mark.parametrize("phase", ["annotated", "propagated", "lowered"])
def test_without_names_variables_are_listed(model, printed, data, phase):
    printed("partition", model, *SHARDED, "--phase", phase, "-o", "program.py")
    text = printed("explain", "program.py")
    assert text.startswith("main: variables")
    found = {
        each["variable"]: each["sharding"] for each in data("explain", "program.py")["variables"]
    }
    names = ("x", "up", "down", "hidden", "active")
    shardings = ("('dp', None)", "(None, 'tp')", "('tp', None)", "('dp', 'tp')", "('dp', 'tp')")
    for name, sharding in zip(names, shardings, strict=True):
        assert found[name].startswith(sharding)
        assert name in text


def test_costs_of_explanations_are_of_the_cluster(file, printed):
    conflict = MODEL.replace("R.matmul(active, down)", "R.add(R.matmul(active, down), x)")
    program = file("conflict.py", conflict)
    shards = ["--mesh", "a=4", "--shard", "x=-,a", "--shard", "up=-,a", "--shard", "down=a,-"]
    near, far = (
        printed("explain", program, *shards, "gv2", "--cluster", cluster)
        for cluster in ("H100", "H100:4x1")
    )
    assert near != far


def test_redistribution_is_that_of_the_library(printed, data):
    command = ["redistribute", "dp,-", "-,dp", "--mesh", "dp=2,tp=4", "--shape", "1024,1024"]
    plan = dx.analysis.redistribution(dx.Mesh(dp=2, tp=4), ("dp", None), (None, "dp"), (1024, 1024))
    assert printed(*command).rstrip() == str(plan).rstrip()
    expected = json.loads(json.dumps({**plan.as_data(), "cluster": "H100"}))
    assert data(*command) == {"plans": [expected]}


def test_redistribution_on_several_clusters(data):
    found = data(
        *("redistribute", "(dp tp),-", "replicated", "--mesh", "dp=2,tp=4", "--shape", "16x16"),
        *("--dtype", "float16", "--cluster", "H100", "--cluster", "A100:2x4"),
    )
    near, far = found["plans"]
    assert [near["cluster"], far["cluster"]] == ["H100", "A100:2x4"]
    assert near["bytes_per_device"] == math.prod((16, 16)) * 2 * 7 / 8
    assert far["seconds"] > near["seconds"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["dp,-", "-,dq", "--shape", "8,8"], 1, "the target dimension 1: the mesh has no axis"),
        (["dp,-", "dp", "--shape", "8,8"], 1, "the target has"),
        (["dp,-", "-,dp", "--shape", "8;8"], 2, "argument --shape: '8;8' is not a shape"),
        (["dp,,", "-,dp", "--shape", "8,8"], 2, "argument SOURCE: 'dp,,' is no sharding"),
        (["dp,-", "-,dp"], 2, "required: --shape"),
        (["dp,-", "-,dp", "--shape", "8,8", "--dtype", "flot"], 1, "unknown dtype"),
    ],
)
def test_redistributions_that_are_none(refused, arguments, status, message):
    line = refused("redistribute", "--mesh", "dp=2", *arguments, status=status)
    assert message in line


def test_rules_as_data(data):
    (matmul,) = data("rules", "relax.matmul")["operators"]
    assert (matmul["operator"], matmul["family"]) == ("relax.matmul", "contraction")
    names = [each["operator"] for each in data("rules", "softmax", "matmul")["operators"]]
    assert names[0] == "relax.nn.softmax"
    assert "relax.matmul" in names
    assert len(data("rules")["operators"]) == len(dx.rules.operators())
