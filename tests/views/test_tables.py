"""Tables that notebooks show of meshes, devices, clusters, reports and models."""

from __future__ import annotations

import logging
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from rich.table import Table
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.signature.signature import FunctionSpec, ParamSpec, Program
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.tables import amount, as_html, as_text, new_table
from distir_ext.views.tables.function import function_table


def tables_of(html):
    """From the caption of a table to its rows, heads first."""
    found = {}
    for table in ET.fromstring(f"<div>{html}</div>").iter("table"):
        rows = [[cell.text or "" for cell in row] for row in table.iter("tr")]
        found[table.find("caption").text] = rows
    return found


def test_text_is_escaped_and_numbers_are_at_the_right():
    table = new_table("a < b", "name", "count")
    table.add_row("<script>", "3")
    html = as_html([table])
    assert tables_of(html) == {"a < b": [["name", "count"], ["<script>", "3"]]}
    assert '<td style="text-align: right">3</td>' in html


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (2.5e9, "2.5 GB"), (3.2e-7, "320 nB")],
)
def test_amounts_have_decimal_prefixes(value, text):
    assert amount(value, "B") == text


def test_a_mesh_is_a_grid_of_its_devices():
    mesh = dx.Mesh((2, 2, 3), ("pp", "dp", "tp"), range(12, 24))
    ((title, rows),) = tables_of(mesh._repr_html_()).items()
    assert title == "Mesh pp=2, dp=2, tp=3: the ids of its 12 devices"
    assert rows[0] == ["pp", "dp", "tp 0", "tp 1", "tp 2"]
    ids = np.arange(12, 24).reshape(2, 2, 3)
    for (pp, dp), row in zip(np.ndindex(2, 2), rows[1:], strict=True):
        assert row == [str(pp), str(dp), *map(str, ids[pp, dp])]


def test_a_mesh_with_one_axis_is_a_row():
    (rows,) = tables_of(dx.Mesh(tp=2)._repr_html_()).values()
    assert rows == [["tp 0", "tp 1"], ["0", "1"]]


def test_of_a_large_mesh_the_first_and_the_last_devices_are_shown():
    (rows,) = tables_of(dx.Mesh(dp=64, tp=32)._repr_html_()).values()
    assert rows[0][-3:] == ["tp 13", "…", "tp 31"]
    assert rows[1][-3:] == ["13", "…", "31"]
    assert rows[-2] == ["…"] * len(rows[0])
    assert rows[-1][-1] == "2047"
    assert len(rows) == 17


def test_clusters_and_devices_have_their_figures():
    device = dx.Device("mine", {"float32": 2e12}, memory=16e9, bandwidth=100e9, launch=5e-6)
    links = {"host": dx.Link(1e-5, 5e10), "device": dx.Link(2e-6, 4e11, 5e-7)}
    cluster = dx.Cluster(dx.Mesh(host=2, device=4), links, device=device)
    tables = tables_of(cluster._repr_html_())
    assert tables["Device mine"][1:] == [
        ["float32 operations", "2 TFLOP/s"],
        ["memory", "16 GB"],
        ["memory bandwidth", "100 GB/s"],
        ["launch of a kernel", "5 us"],
    ]
    assert tables["Links"][1:] == [
        ["host", "2", "10 us", "50 GB/s", "0 s"],
        ["device", "4", "2 us", "400 GB/s", "500 ns"],
    ]
    assert "Starting a collective takes 8.4 us." in cluster._repr_html_()
    assert tables_of(device._repr_html_()) == {"Device mine": tables["Device mine"]}
    (rows,) = tables_of(dx.Cluster.uniform()._repr_html_()).values()
    assert rows[1][:2] == ["all", "any"]


def test_a_function_has_its_values_and_weights_of_a_type_in_one_row():
    def spec(sharding):
        return TensorSpec((8, 8), "float32", (2,), (0, 1), (0,), sharding)

    params = [ParamSpec("x", spec("('dp', None)"))]
    params += [ParamSpec(f"w.{i}", spec("('tp', None)")) for i in range(3)]
    program = Program("f", (0, 1), (0, 1, 2, 3), (0,))
    function = FunctionSpec("f", 1, tuple(params), spec("(None, None)"), (program,))
    table = function_table(function)
    assert isinstance(table, Table)
    assert tables_of(as_html([table])) == {
        "f, on 2 devices: 0, 1": [
            ["value", "what", "type and sharding"],
            ["x", "input", "float32[8, 8] ('dp', None)"],
            ["w.0 … w.2 (3)", "weight", "float32[8, 8] ('tp', None)"],
            ["return", "result", "float32[8, 8] (None, None)"],
        ]
    }


@I.ir_module
class Sum:
    @R.function
    def main(
        x: R.Tensor((8, 4), "float32"),
        a_1: R.Tensor((8, 4), "float32"),
        a_2: R.Tensor((8, 4), "float32"),
    ):
        y = R.add(x, a_1)
        z = R.add(y, a_2)
        return z


MESH = dx.Mesh(dp=2, tp=2)
PLAN = {"a_.*": (None, "tp"), "x": ("dp", None), "y": None}


def test_the_report_of_annotate_counts_what_each_entry_matched(caplog):
    with dx.pass_reports() as reports, caplog.at_level(logging.INFO, "distir_ext.passes"):
        mod = dx.annotate(Sum, MESH, PLAN)
    (report,) = reports
    assert report.name == "AnnotateSharding"
    assert report.done == {"a_.*: (None, 'tp')": 2, "x: ('dp', None)": 1, "y: replicated": 1}
    summary = "[SUMMARY] pass=AnnotateSharding matches=4 skipped=0: 2 a_.*: (None, 'tp')"
    assert summary in caplog.text
    (rows,) = tables_of(report._repr_html_()).values()
    assert rows[1] == ["a_.*: (None, 'tp')", "2"]
    with dx.pass_reports() as reports, pytest.warns(UserWarning, match="annotated already"):
        dx.annotate(mod, MESH, {"x": ("dp", None)})
    assert reports[0].skipped == {"annotate": {"stated already": 1}}
    *_, rows = tables_of(reports[0]._repr_html_()).values()
    assert rows[1] == ["annotate", "stated already", "1"]


def test_a_pass_has_a_report():
    with dx.pass_reports() as reports:
        dx.transform.AnnotateSharding(MESH, PLAN)(Sum)
    assert [report.name for report in reports] == ["AnnotateSharding"]


def summarized(mod):
    return {
        row.name: (row.kind, row.type, row.sharding and row.sharding.dims, row.count)
        for row in dx.summary(mod).folded()
    }


def test_a_summary_says_what_is_known_in_each_phase():
    plain = "float32[8, 4]"
    assert summarized(Sum) == {
        "x": ("input", plain, None, 1),
        "a_*": ("input", plain, None, 2),
        "return": ("result", plain, None, 1),
    }
    annotated = dx.annotate(Sum, MESH, PLAN)
    stated = {
        "x": ("input", plain, ("dp", None), 1),
        "a_*": ("input", plain, (None, "tp"), 2),
        "return": ("result", plain, None, 1),
    }
    assert summarized(annotated) == {**stated, "y": ("variable", plain, (None, None), 1)}
    decided = {**stated, "return": ("result", plain, (None, "tp"), 1)}
    for until in ("propagated", "legalized", "lowered"):
        mod = dx.lower(annotated, until=until)
        found = summarized(mod)
        assert {name: found[name] for name in decided} == decided
        assert dx.summary(mod).phase == until


def test_a_summary_counts_the_bytes_of_a_device():
    summary = dx.summary(dx.annotate(Sum, MESH, PLAN))
    x, folded, *_ = summary.folded()
    assert (x.bytes_per_device, folded.bytes_per_device) == (4 * 4 * 4, 8 * 2 * 4)
    assert "parameters on a device: 192 B" in str(summary)  # 64 + 2 * 64
    tables = tables_of(summary._repr_html_())
    assert tables["main (annotated)"][2][-2:] == ["2", "128 B"]
    assert "Mesh dp=2, tp=2: the ids of its 4 devices" in tables
    assert repr(summary) == str(summary)


def test_only_modules_have_a_summary():
    with pytest.raises(TypeError, match="IRModule"):
        dx.summary(Sum["main"])


def test_tables_in_text_have_their_titles_and_notes():
    table = new_table("title", "name")
    table.add_row("value")
    table.caption = "a note"
    assert [line.strip() for line in as_text([table]).splitlines() if line.strip()] == [
        "title",
        "name",
        "─────",
        "value",
        "a note",
    ]


def test_in_a_notebook_text_is_text(monkeypatch):
    """Rich shows what is printed to a console in a notebook, whatever its file is."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    table = new_table("title", "name")
    assert "title" in as_text([table])
    assert "4 x 4" in dx.visualize((8, 4), MESH, ("dp", None)).text()
    assert "4 x 4" in str(dx.visualize((8, 4), MESH, ("dp", None)))


def test_results_are_tables_where_a_prompt_shows_them():
    mod = dx.annotate(Sum, MESH, PLAN)
    cluster = dx.Cluster.preset("H100")
    for result in (
        dx.analysis.estimate(mod, cluster),
        dx.analysis.simulate(mod, cluster),
        dx.analysis.reshards(mod),
        dx.analysis.diff(mod, mod, cluster),
        dx.analysis.sweep(Sum, [MESH], {"plan": PLAN}, cluster),
        dx.analysis.redistribution(MESH, ("dp", None), (None, "tp"), (8, 4), cluster=cluster),
    ):
        assert repr(result) == str(result)
        assert "─────" in repr(result)


def test_a_summary_of_two_meshes_says_where_each_value_is():
    first, second = dx.Mesh(tp=2), dx.Mesh((1,), ("tp",), [2])
    of_calls = [{0: (first, None), 1: (first, ("tp", None))}, {1: (second, None)}]

    class EachOnItsMesh(dx.ShardingMutator):
        calls = iter(of_calls)

        def place(self, call):
            return next(self.calls)

    text = str(dx.summary(dx.transform.PropagateSharding()(EachOnItsMesh()(Sum))))
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "('tp', None) on devices 0, 1 " in rows["a_1"]
    assert "(None, None) on device 2 " in rows["a_2"]
    # Devices 0 and 1 have x and half of a_1, device 2 has a_2.
    assert rows["parameters"] == "parameters on a device: at most 192 B"
