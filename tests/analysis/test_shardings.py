"""Tests of shardings of parameters and results, and of the tables of tensors and collectives."""

import dataclasses
import io
import json

import pytest
import tvm
from rich.console import Console
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.analysis import Collective, collective_table, sharding_table, shardings
from distir_ext.text.tables import as_html, as_text, print_tables

MESH = dx.Mesh(dp=2, tp=4)


@I.ir_module
class Program:
    I.module_attrs({"distir.mesh_axes": {"mesh": [["dp", "tp"], []]}})
    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 4), I.Range(0, 8)), R.device_mesh((2,), [9, 11])]}
    )

    @R.function
    def main(
        x: R.DTensor((8, 16), "float32", "mesh[0]", "S[0], R"),
        w0: R.DTensor((16, 16), "float32", "mesh[0]", "R, S[1]"),
        w1: R.DTensor((16, 16), "float32", "mesh[0]", "R, S[1]"),
        w2: R.DTensor((16, 16), "float32", "mesh[0]", "S[0], S[0]"),
        v0: R.DTensor((16,), "float16", "mesh[1]", "S[0]"),
    ):
        R.func_attr({"num_input": 1})
        return (x, v0)


def rows():
    return {row.name: row for row in shardings(Program)}


def test_rows_say_where_a_tensor_is():
    found = rows()
    assert list(found) == ["x", "w0", "w1", "w2", "v0", "return.0", "return.1"]
    x, w2, v0 = found["x"], found["w2"], found["v0"]
    assert (x.sharding, x.local_shape, x.devices) == ("('dp', None)", (4, 16), "2x4: 0..7")
    assert (w2.sharding, w2.local_shape) == ("(('dp', 'tp'), None)", (2, 16))
    assert (v0.dtype, v0.sharding, v0.devices) == ("float16", "('x',)", "2: 9, 11")
    assert [found[name].bytes_per_device for name in ("x", "w2", "v0")] == [256, 128, 16]
    assert [row.role for row in found.values()] == ["input", *["weight"] * 4, *["result"] * 2]


def test_parameters_are_inputs_where_nothing_is_stated_as_for_sessions():
    mod = Program.clone()
    mod["main"] = mod["main"].without_attr("num_input")
    assert {row.role for row in shardings(mod)} == {"input", "result"}


@pytest.mark.parametrize("until", ["propagated", "legalized", "lowered", "runtime"])
def test_every_phase_says_the_same(until):
    assert shardings(dx.lower(Program, until=until)) == shardings(Program)


def uneven():
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 7), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    return dx.annotate(builder.get(), MESH, {"x": ("dp", "tp")})


def test_symbolic_sizes_stay_and_others_are_rounded_up():
    x = shardings(uneven())[0]
    assert (x.shape, x.local_shape, x.bytes_per_device) == (("n", 7), ("n/2", 2), None)


def test_tensors_that_differ_in_numbers_only_share_a_row_of_the_table():
    table = sharding_table(shardings(Program))
    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert [tuple(map(str, row[:2])) for row in cells] == [
        ("x", "1"),
        ("w*", "2"),
        ("w2", "1"),
        ("v0", "1"),
        ("return.0", "1"),
        ("return.1", "1"),
    ]
    text = as_text([table])
    for row in rows().values():
        assert row.sharding in text
        assert row.devices in text


def test_one_mesh_is_said_once():
    text = as_text([sharding_table([row for row in shardings(Program) if row.name != "v0"][:4])])
    assert text.count("2x4: 0..7") == 1


def test_equal_collectives_are_counted_together():
    text = as_text(
        [
            collective_table(
                [
                    Collective("all_reduce", 4, 1000, 2, "main", ("tp",)),
                    Collective("all_gather", 2, 512, 1, "main", ("dp",)),
                    Collective("all_reduce", 4, 1000, 3, "main", ("tp",)),
                ]
            )
        ]
    )
    (line,) = (line for line in text.splitlines() if "all_reduce" in line)
    assert line.split() == ["all_reduce", "tp", "main", "4", "5", "1,000", "5,000"]
    assert text.count("all_gather") == 1


def test_collective_of_symbolic_size():
    symbolic = Collective("all_reduce", 4, None, 2, "main", bytes_per_unit=96.0, unit="n")
    text = as_text([collective_table([symbolic])])
    assert "96.0 n" in text
    assert "192.0 n" in text


def test_tables_can_be_printed_again():
    table = sharding_table(shardings(Program))
    texts = []
    for _ in range(2):
        console = Console(file=io.StringIO(), width=120)
        print_tables([table], console)
        texts.append(console.file.getvalue())
    assert texts[0] == texts[1]
    assert "tensors" in texts[0]


def test_names_are_shown_as_they_are():
    row = dataclasses.replace(shardings(Program)[0], name="x[red]")
    assert "x[red]" in as_text([sharding_table([row])])


def test_numbers_are_aligned_to_the_right_in_html():
    html = as_html([collective_table([Collective("all_reduce", 4, 1000, 2, "main", ("tp",))])])
    assert '<td style="text-align: right">2,000</td>' in html
    assert '<td style="text-align: left">tp</td>' in html


def test_rows_are_data():
    json.dumps([vars(row) for row in shardings(Program)])


def test_nothing_distributed_is_refused():
    with pytest.raises(ValueError, match="no sharding annotations"):
        shardings(tvm.IRModule())


@pytest.mark.parametrize("table", [sharding_table, collective_table])
def test_tables_say_what_they_are_of(table):
    with pytest.raises(TypeError, match=rf"{table.__name__} takes what \w+ finds"):
        table(Program)
