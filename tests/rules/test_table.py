"""The table of operators is complete, describes each one, and equals docs/operators.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

from distir_ext import cli, rules

ROOT = Path(__file__).resolve().parents[2]

ROWS = {row.operator: row for row in rules.operators()}


def registered() -> set[str]:
    return {str(name) for name in tvm.ir.Op.list_op_names() if str(name).startswith("relax.")}


def test_every_registered_operator_has_a_row():
    assert registered() == set(ROWS)


@pytest.mark.every_case
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_says_how_the_operator_is_sharded_or_why_it_is_not(row):
    assert row.family
    assert bool(row.replicated) == (row.exploited == "replicated")


def test_an_operator_that_is_sharded_can_be_called_on_distributed_tensors():
    sharded = [row.operator for row in ROWS.values() if row.parallel or row.reduced]
    lacking = [name for name in sharded if not tvm.ir.Op.get(name).get_attr("dist.FInferType")]
    assert not lacking


def test_documentation_is_current():
    assert (ROOT / "docs" / "operators.md").read_text("utf-8") == rules.markdown()


def test_command_prints_the_table(capsys):
    assert cli.main(["rules"]) == 0
    printed = capsys.readouterr().out
    assert "relax.nn.conv2d_transpose" in printed
    assert cli.main(["rules", "--markdown"]) == 0
    assert capsys.readouterr().out == rules.markdown()


def test_command_prints_the_operators_that_are_named(capsys):
    assert cli.main(["rules", "matmul", "nn.softmax"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("relax.")] == [
        "relax.matmul",
        "relax.nn.softmax",
    ]
    assert ROWS["relax.matmul"].reduced in printed
    assert cli.main(["rules", "softm"]) == 0
    assert "relax.nn.log_softmax" in capsys.readouterr().out


def test_an_operator_that_does_not_exist_is_an_error_with_near_names(capsys):
    assert cli.main(["rules", "matmull"]) == 1
    assert "no operator 'matmull'; did you mean 'matmul" in capsys.readouterr().err
    assert cli.main(["rules", "matmul", "--markdown"]) == 2
    assert "--markdown prints all operators" in capsys.readouterr().err


def test_kinds_of_rows():
    assert ROWS["relax.matmul"].exploited == "parallel and reduction"
    assert ROWS["relax.unique"].exploited == "replicated"
    assert ROWS["relax.call_tir"].exploited == "decomposed"
