"""``distir diff``: the difference of the library, of two files or two plans."""

import json

import pytest
from tests.cli.conftest import SHARDED

import distir_ext as dx
from distir_ext.interop._program_files import read_program

# The weights over dp instead of tp, as FSDP has them.
OTHER = {"x": ["dp", None], "up": "dp,-", "down": "-,dp"}


def difference(model):
    mesh, cluster = dx.Mesh(dp=2, tp=2), dx.Cluster.preset("H100")
    plans = (
        {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)},
        {"x": ("dp", None), "up": ("dp", None), "down": (None, "dp")},
    )
    return dx.analysis.diff(
        *(dx.annotate(read_program(model), mesh, plan) for plan in plans), cluster
    )


def test_two_plans(model, file, printed, data):
    plans = [
        "--mesh",
        "dp=2,tp=2",
        "--plan",
        file("a.json", {"x": "dp,-", "up": "-,tp", "down": "tp,-"}),
    ]
    plans += ["--with-plan", file("b.json", OTHER)]
    assert printed("diff", model, *plans).rstrip() == str(difference(model)).rstrip()
    found = data("diff", model, *plans)
    assert (found["program"], found["with"]) == (model, model)
    assert found["rows"] == json.loads(difference(model).to_json())["rows"]


def test_single_shardings_come_before_the_others(model, data):
    found = data("diff", model, *SHARDED, "--with-shard", "up=dp,-", "--with-shard", "down=-,dp")
    assert found["rows"] == json.loads(difference(model).to_json())["rows"]


def test_two_files(model, printed, data):
    printed("partition", model, *SHARDED, "--phase", "annotated", "-o", "a.py")
    other = [
        "--mesh",
        "dp=2,tp=2",
        "--shard",
        "x=dp,-",
        "--shard",
        "up=dp,-",
        "--shard",
        "down=-,dp",
    ]
    printed("partition", model, *other, "--phase", "annotated", "-o", "b.py")
    found = data("diff", "a.py", "b.py")
    assert (found["program"], found["with"]) == ("a.py", "b.py")
    totals = {each["name"]: each for each in found["rows"] if each["what"] == "total"}
    expected = difference(model)
    for total in expected.totals:
        assert totals[total.name]["before"] == total.before
        assert totals[total.name]["after"] == total.after


def test_two_meshes(model, data):
    rows = data("diff", model, *SHARDED, "--with-mesh", "dp=2,tp=4")["rows"]
    (flops,) = (each for each in rows if each.get("name") == "flops")
    # Twice as many devices share the products.
    assert (flops["before"], flops["after"]) == (
        2 * (2 * 4 * 64 * 128) + 4 * 128,
        2 * (2 * 4 * 64 * 64) + 4 * 64,
    )


def test_a_program_does_not_differ_from_itself(model, data):
    rows = data("diff", model, model, *SHARDED)["rows"]
    assert {each["what"] for each in rows} == {"total"}
    assert all(each["before"] == each["after"] for each in rows)


def test_what_cannot_be_compared(model, file, refused):
    from tests.cli.conftest import MODEL

    line = refused("diff", model, *SHARDED, status=2)
    assert line == "state a second program, --with-plan, --with-shard or --with-mesh"
    assert "not 3" in refused("diff", model, model, model, *SHARDED, status=2)
    other = file("other.py", MODEL.replace("down", "dwon"))
    shards = ["--mesh", "dp=2,tp=2", "--shard", "x=dp,-"]
    assert "'down'; did you mean" not in refused("diff", model, other, *shards)
    assert "did you mean 'dwon'" in refused("diff", model, other, *shards)
    assert "did you mean 'a.json'" in refused(
        "diff", model, *shards, "--with-plan", file("a.json", OTHER)[:-1]
    )


@pytest.mark.parametrize("name", ["--with-shard", "--with-mesh"])
def test_arguments_that_are_none(model, refused, name):
    assert "as in" in refused("diff", model, *SHARDED, name, "up", status=2)
