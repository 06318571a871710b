"""``distir profile``: programs run on workers, and their figures are printed."""

import gzip
import io
import json
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from tests.cli.conftest import MODEL

from distir_ext import cli
from distir_ext.cli.array_files import read_arrays
from distir_ext.cli.shared.arguments import Arguments, arrays_taken
from distir_ext.native.machine import cores
from distir_ext.params.host_array import numpy_dtype
from distir_ext.signature.signature import (
    FunctionSpec,
    FusedWeight,
    ParamSpec,
    Program,
    Signature,
)
from distir_ext.signature.specs import TensorSpec, TupleSpec

TWO = ["--mesh", "tp=2", "--shard", "up=-,tp", "--shard", "down=tp,-", "--inputs", "x"]

# Fails in a kernel where an index is out of range; gives NaN where floats are large.
LOOKUP = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Lookup:
    @R.function
    def main(
        ids: R.Tensor((6,), "int64"), table: R.Tensor((10, 8), "float32")
    ) -> R.Tensor((6, 8), "float32"):
        return R.take(table, ids, axis=0)
"""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """So many that two workers share none."""
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1])


def test_fused_weights_are_given_whole_or_made_in_blocks():
    """A weight that holds several has the name that the program has for it."""
    blocks = [
        ParamSpec(f"w_{i}", TensorSpec((4, size), "float32", (2,), (0, 1), (1,)))
        for i, size in enumerate((6, 2))
    ]
    x = ParamSpec("x", TensorSpec((3, 4), "float32", (2,), (0, 1), (-1,)))
    fused = (FusedWeight("w", 1, ("w_0", "w_1"), (6, 2)),)
    programs = (Program("main", (0, 1), (0, 1, 2), (0,)),)
    main = FunctionSpec("main", 1, (x, *blocks), x.spec, programs, fused)
    signature = Signature((0, 1), 1, {"main": main})
    assert [each.shape for each in arrays_taken(signature)["w"]] == [(4, 8)]
    whole = np.ones((4, 8), "float32")
    assert Arguments({"w": whole}, 0, 2).weights(signature) == {"w": whole}
    made = Arguments({}, 0, 2).weights(signature)
    assert {name: value.shape for name, value in made.items()} == {"w_0": (4, 6), "w_1": (4, 2)}


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_json_has_every_kernel_and_collective(model, data, workers):
    found = data("profile", model, *TWO, "--workers", workers, "--repeat", 2)
    assert (found["function"], found["repetitions"], found["devices"]) == ("main", 2, [0, 1])
    totals = {each["name"]: each for each in found["totals"]}
    assert totals["hidden"]["kind"] == "kernel"
    (collective,) = (each for each in totals.values() if each["kind"] == "collective")
    assert (collective["callee"], collective["axes"]) == ("all_reduce", ["tp"])
    assert all(each["devices"] == [0, 1] and each["seconds"] > 0 for each in totals.values())
    assert found["seconds"] >= max(each["seconds"] for each in totals.values())


def test_tables_a_trace_and_a_comparison(model, printed, tmp_path):
    text = printed("profile", model, *TWO, "-o", "t.json.gz", "--compare", "--cluster", "H100")
    for line in (
        "for a call, median of 5 calls",
        "main: kernels by time",
        "main: collectives",
        "predicted and measured, largest difference first",
    ):
        assert line in text
    with gzip.open(tmp_path / "t.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1}


def test_a_comparison_as_json(model, data):
    compared = data("profile", model, *TWO, "--compare", "--cluster", "H100")["comparison"]
    kinds = {each["kind"] for each in compared["rows"]}
    assert kinds == {"kernel", "collective"}
    assert compared["predicted"] == pytest.approx(sum(r["predicted"] for r in compared["rows"]))
    assert compared["measured"] == pytest.approx(sum(r["measured"] for r in compared["rows"]))


def test_it_compares_with_this_host_by_default(model, data, monkeypatch):
    import distir_ext as dx

    asked = []

    def measure(workers):
        asked.append(workers)
        return dx.Cluster.preset("H100")

    monkeypatch.setattr(dx.Cluster, "measure", measure)
    data("profile", model, *TWO, "--compare")
    assert asked == [2]


def test_random_integers_are_said(file, capsys):
    name = file("lookup.py", LOOKUP)
    command = ["profile", name, "--mesh", "dp=2", "--shard", "ids=dp", "--inputs", "ids"]
    assert cli.main([*command, "--repeat", "1"]) == 0
    assert capsys.readouterr().err == (
        "distir profile: warning: ids: random integers below 2; --integers-below and --values "
        "state others\n"
    )
    np.savez("ids.npz", ids=np.arange(6))
    assert cli.main([*command, "--repeat", "1", "--values", "ids.npz"]) == 0
    assert capsys.readouterr().err == ""


def test_values_reach_the_program(model, refused):
    np.savez("wrong.npz", up=np.zeros((64, 255), np.float32))
    line = refused("profile", model, *TWO, "--values", "wrong.npz")
    assert line == "'up' of wrong.npz has the shape [64, 255]; the parameter takes [64, 256]"


def test_files_of_values_that_are_none(model, file, refused):
    np.savez("values.npz", dwon=np.zeros(1))
    line = refused("profile", model, *TWO, "--values", "values.npz")
    assert line.startswith("values.npz has 'dwon', which no parameter is called; they are x, up,")
    assert line.endswith("did you mean 'down'?")
    assert "did you mean 'values.npz'" in refused("profile", model, *TWO, "--values", "value.npz")
    text = file("text.npz", "text")
    assert "no file that numpy.savez writes" in refused("profile", model, *TWO, "--values", text)
    np.savez("objects.npz", x=np.array([{}]))
    line = refused("profile", model, *TWO, "--values", "objects.npz")
    assert "no file that numpy.savez writes" in line
    np.savez_compressed("damaged.npz", x=np.random.default_rng(0).random(1000))
    content = bytearray(Path("damaged.npz").read_bytes())
    content[200:220] = bytes(20)
    Path("damaged.npz").write_bytes(content)
    line = refused("profile", model, *TWO, "--values", "damaged.npz")
    assert "no file that numpy.savez writes" in line
    np.save("single.npy", np.zeros(1))
    line = refused("profile", model, *TWO, "--values", "single.npy")
    assert "no file that numpy.savez writes" in line


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--repeat", "0"], 2, "argument --repeat: '0' is not a positive number"),
        (["--workers", "thread"], 2, "there is no 'thread', only threads, processes; did you"),
        (["--seed", "-1"], 2, "--seed is at least 0, not -1"),
        (["--mesh", "tp=128"], 1, "the program has 128 devices; this host's CPU runs at most 64"),
    ],
)
def test_what_cannot_be_measured(model, refused, arguments, status, message):
    assert message in refused("profile", model, *TWO, *arguments, status=status)


def test_workers_that_share_cores(model, capsys, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0])
    assert cli.main(["profile", model, *TWO, "--repeat", "1"]) == 0
    assert "warning: 2 workers share 1 core," in capsys.readouterr().err


def test_symbolic_sizes_are_to_be_stated(file, refused):
    name = file("symbolic.py", MODEL.replace("(8, 64)", '("n", 64)'))
    assert refused("profile", name, *TWO) == "the program has symbolic sizes; state --size n=.."


def signature(*params, num_input):
    function = FunctionSpec("main", num_input, params, TupleSpec(()), ())
    return Signature((0,), 1, {"main": function})


def tensor(name, shape, dtype):
    return ParamSpec(name, TensorSpec(shape, dtype, (1,), (0,), (-1,)))


def test_random_arrays_have_the_types_of_parameters():
    pair = TupleSpec((tensor("", (3,), "bool").spec, tensor("", (50,), "uint8").spec))
    params = [
        tensor("x", (1000,), "float16"),
        ParamSpec("pair", pair),
        tensor("w", (1000,), "bfloat16"),
    ]
    found = signature(*params, num_input=2)
    arguments = Arguments({}, seed=1, integers_below=7)
    x, (flags, numbers) = arguments.inputs(found.functions["main"])
    w = arguments.weights(found)["w"]
    assert [str(each.dtype) for each in (x, flags, numbers, w)] == [
        "float16",
        "bool",
        "uint8",
        "bfloat16",
    ]
    # The deviations of a thousand numbers are within a tenth of what is said.
    assert np.std(x.astype("float64")) == pytest.approx(1, rel=0.1)
    assert np.std(w.astype("float64")) == pytest.approx(0.02, rel=0.1)
    assert set(numbers) == set(range(7))
    assert list(arguments.random_integers) == ["pair.1"]
    again, _ = Arguments({}, seed=1, integers_below=7).inputs(found.functions["main"])
    other, _ = Arguments({}, seed=2, integers_below=7).inputs(found.functions["main"])
    assert (x == again).all()
    assert (x != other).any()


def test_fields_of_tuples_have_names(tmp_path):
    pair = ParamSpec("pair", TupleSpec((tensor("", (2,), "float32").spec,) * 2))
    found = signature(pair, num_input=1)
    np.savez(tmp_path / "pair.npz", **{"pair.1": np.array([1, 2], "float32")})
    given = read_arrays(str(tmp_path / "pair.npz"), arrays_taken(found))
    ((first, second),) = Arguments(given, 0, 2).inputs(found.functions["main"])
    assert first.shape == (2,)
    assert second.tolist() == [1, 2]


def test_types_that_numpy_does_not_know(tmp_path):
    found = signature(tensor("x", (2,), "bfloat16"), num_input=1)
    np.savez(tmp_path / "x.npz", x=np.array([1, 2], numpy_dtype("bfloat16")))
    given = read_arrays(str(tmp_path / "x.npz"), arrays_taken(found))
    assert given["x"].astype("float32").tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(4096, 4096), (1 << 40, 1 << 40), (1 << 40,), (3,)])
def test_a_small_file_does_not_fill_the_memory(tmp_path, shape):
    """Neither one that claims much nor one that is compressed a thousandfold."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(4096 * 4096 * 8))
    assert (tmp_path / "x.npz").stat().st_size < 200_000
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"x\.npz"):
        read_arrays(str(tmp_path / "x.npz"), {"x": [tensor("x", (2, "n"), "float64").spec]})
    with pytest.raises(ValueError, match=r"x\.npz"):
        read_arrays(str(tmp_path / "x.npz"), {"x": [tensor("x", (5,), "float64").spec]})
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr("x.npy", b"")
    with pytest.raises(ValueError, match="two arrays of one name"):
        read_arrays(str(tmp_path / "twice.npz"), {"x": [tensor("x", (5,), "float64").spec]})
