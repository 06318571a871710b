"""The demonstration's tables group what belongs together and name axes and devices."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console
from tvm.relax.distributed import DeviceMesh
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from distir_ext.analysis import Collective
from distir_ext.demo.case import Case, normal_weights
from distir_ext.demo.report import (
    collective_table,
    mesh_label,
    placement_rows,
    placement_table,
)
from distir_ext.demo.run import relative_rmse
from distir_ext.mesh import Mesh


@I.ir_module
class Propagated:
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
        t: R.Tensor((16,), "int32"),
    ):
        return x


def text(*renderables):
    console = Console(width=120, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as captured:
        for each in renderables:
            console.print(each)
    return captured.get()


@pytest.fixture
def case():
    mesh = Mesh((2, 4), ("dp", "tp"))
    return Case("c", "title", Propagated, "main", lambda mod: mod, (mesh,), {}, {})


def test_rows_of_parameters_that_differ_in_numbers_only_are_one(case):
    rows = placement_rows(case, Propagated)
    assert [(row.name, count) for row, count in rows] == [
        ("x", 1),
        ("w*", 2),
        ("w2", 1),
        ("v0", 1),
        ("t", 1),
    ]


def test_rows_say_where_a_tensor_is(case):
    rows = {row.name: row for row, _ in placement_rows(case, Propagated)}
    assert (rows["x"].sharding, rows["x"].local_shape) == ("('dp', None)", (4, 16))
    assert (rows["w*"].sharding, rows["w*"].local_shape) == ("(None, 'tp')", (16, 4))
    assert (rows["w2"].sharding, rows["w2"].local_shape) == ("(('dp', 'tp'), None)", (2, 16))
    assert rows["x"].devices == "2x4: 0-7"
    assert rows["v0"].devices == "2: 9,11"
    assert (rows["v0"].dtype, rows["v0"].sharding) == ("float16", "('x',)")
    assert rows["t"].sharding == "not placed"
    table = text(placement_table(placement_rows(case, Propagated)))
    for row in rows.values():
        assert row.sharding in table
        assert row.name in table


def test_equal_collectives_are_counted_together():
    table = text(
        collective_table(
            [
                Collective("all_reduce", 4, 1000, 2, "main"),
                Collective("all_gather", 2, 512, 1, "main"),
                Collective("all_reduce", 4, 1000, 3, "main"),
            ]
        )
    )
    reduce_line = next(line for line in table.splitlines() if "all_reduce" in line)
    assert [word for word in reduce_line.split() if word[0].isdigit()] == [
        "4",
        "5",
        "1,000",
        "5,000",
    ]
    assert table.count("all_reduce") == 1
    assert table.count("all_gather") == 1


def test_collective_of_symbolic_size():
    symbolic = Collective("all_reduce", 4, None, 2, "main", bytes_per_unit=96.0, unit="n")
    table = text(collective_table([symbolic]))
    assert "96.0 n" in table
    assert "192.0 n" in table


def test_mesh_label():
    assert mesh_label(DeviceMesh([1], [3])) == "1: 3"
    assert mesh_label(DeviceMesh([2, 2], [4, 5, 6, 7])) == "2x2: 4-7"
    assert mesh_label(DeviceMesh([2, 2], [0, 2, 1, 3])) == "2x2: 0,2,1,3"


def test_relative_rmse():
    expected = np.array([3.0, 4.0], dtype="float32")
    assert relative_rmse(expected, expected) == 0
    assert relative_rmse(expected * np.float32(1.5), expected) == pytest.approx(0.5)
    assert relative_rmse(np.ones(2), np.zeros(2)) == np.inf
    assert relative_rmse(np.zeros(2), np.zeros(2)) == 0
    assert np.isnan(relative_rmse(np.array([np.nan, 1]), np.ones(2)))


@pytest.mark.parametrize("other", [np.ones((2, 1), "float32"), np.ones(2, "float64")])
def test_results_of_another_shape_or_type_are_refused(other):
    with pytest.raises(ValueError, match="the partitioned program returns"):
        relative_rmse(other, np.ones(2, "float32"))


def test_weights_keep_the_variance():
    weights = normal_weights({"w": (512, 256), "scale": (512,)}, np.random.default_rng(0))
    assert weights["w"].dtype == np.float32
    assert np.std(weights["w"]) == pytest.approx(1 / 16, rel=0.02)
    assert np.mean(weights["scale"]) == pytest.approx(1, abs=0.02)
