"""Arguments for meshes, shardings, shapes and sizes."""

import json

import pytest

from distir_ext import Dim, TensorDims
from distir_ext.cli.shared.notation import parse_dims, parse_shape, parse_shard, parse_sizes
from distir_ext.cli.shared.sharded import read_plan
from distir_ext.mesh.dims import dims_data


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("dp,-", ("dp", None)),
        ("-,tp", (None, "tp")),
        (" dp , - ", ("dp", None)),
        ("dp", ("dp",)),
        ("-", (None,)),
        ("", ()),
        ("dp+tp,-", (("dp", "tp"), None)),
        ("(dp tp),-", (("dp", "tp"), None)),
        ("-,(tp dp sp)", (None, ("tp", "dp", "sp"))),
        ("(dp),-", ("dp", None)),
        ("replicated", None),
        ("('dp', None)", ("dp", None)),
        ("(('dp', 'tp'), None)", (("dp", "tp"), None)),
        ("(None,)", (None,)),
        ("'dp'", ("dp",)),
        ("dp+...,...", (("dp", ...), ...)),
        ("(dp tp ...),-", (("dp", "tp", ...), None)),
        ("(('dp', ...), None)", (("dp", ...), None)),
        ("dp@1,...@2", (Dim("dp", priority=1), Dim(open=True, priority=2))),
        ("(dp tp)@0,-", (("dp", "tp"), None)),
    ],
)
def test_shardings(text, dims):
    assert parse_dims(text) == dims


@pytest.mark.parametrize(
    "text",
    [
        "dp,,tp",
        "dp+,-",
        "(dp,-",
        "dp tp,-",
        "((dp tp)),-",
        "('dp'",
        "...+dp,-",
        "dp@,-",
        "dp@x,-",
        "dp+-",
    ],
)
def test_what_is_no_sharding(text):
    with pytest.raises(ValueError, match="is no sharding"):
        parse_dims(text)


def test_plans_in_files_say_all_that_dims_say(tmp_path):
    plan = {
        "x": (("dp", ...), None),
        "w": (Dim("tp", open=True, priority=2), ...),
        "h": TensorDims("dp", ..., replicated=("tp",)),
        "b": None,
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({name: dims_data(dims) for name, dims in plan.items()}))
    assert dict(read_plan(str(file))) == plan


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("x=dp,-", ("x", ("dp", None))),
        (r".*\.up(?=_proj).*=-,tp", (r".*\.up(?=_proj).*", (None, "tp"))),
        ("b=replicated", ("b", None)),
        ("scalar=", ("scalar", ())),
    ],
)
def test_patterns_and_shardings(text, shard):
    assert parse_shard(text) == shard


@pytest.mark.parametrize("text", ["x", "=dp,-", ""])
def test_what_is_no_pattern_and_sharding(text):
    with pytest.raises(ValueError, match="is not PATTERN=DIMS"):
        parse_shard(text)


def test_meshes_keep_their_order():
    assert list(parse_sizes("tp=4, dp=2").items()) == [("tp", 4), ("dp", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", "NAME=NUMBER"),
        ("dp=2,", "NAME=NUMBER"),
        ("dp=0", "NAME=NUMBER"),
        ("dp=-1", "NAME=NUMBER"),
        ("dp=2x4", "NAME=NUMBER"),
        ("=2", "NAME=NUMBER"),
        ("dp=2,dp=4", "'dp' occurs twice"),
    ],
)
def test_what_is_no_mesh(text, message):
    with pytest.raises(ValueError, match=message):
        parse_sizes(text)


def test_shapes():
    assert parse_shape("1024,1024") == parse_shape("1024x1024") == (1024, 1024)
    assert parse_shape("7") == (7,)
    assert parse_shape("") == ()


@pytest.mark.parametrize("text", ["n,4", "4,", "-4", "4.0"])
def test_what_is_no_shape(text):
    with pytest.raises(ValueError, match="is not a shape"):
        parse_shape(text)
