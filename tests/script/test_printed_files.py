"""dx.script prints a file that runs, with shardings as comments; mod.script() runs when pasted."""

# TVMScript has statements only.
# ruff: noqa: SIM108

import re

import numpy as np
import pytest
import tvm
from tests.script.printed import run_file
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("dp", "tp"))


@I.ir_module
class Plain:
    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w: R.Tensor((16, 8), "float32"),
        flag: R.Tensor((), "bool"),
    ):
        R.func_attr({"num_input": 1})
        y = R.matmul(x, w)
        if flag:
            z = R.nn.relu(y)
        else:
            z = y
        u = R.split(z, 2, 1)
        return u


@pytest.fixture(scope="module")
def phases():
    annotated = dx.annotate(Plain, MESH, {"x": ("dp", None), "w": (None, "tp")})
    propagated = dx.transform.PropagateSharding()(annotated)
    legal = dx.transform.LegalizeRedistribute()(propagated)
    lowered = dx.transform.LowerDistIR()(dx.transform.OptimizeCollectives()(legal))
    return {
        "annotated": annotated,
        "propagated": propagated,
        "legalized": legal,
        "lowered": lowered,
        "called": dx.transform.LowerCCL()(lowered),
    }


PHASES = ["annotated", "propagated", "legalized", "lowered", "called"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("comments", [True, False])
def test_a_printed_file_makes_the_module(phases, phase, comments, tmp_path):
    text = dx.script(phases[phase], comments=comments)
    tvm.ir.assert_structural_equal(run_file(text, tmp_path / "printed.py"), phases[phase])
    assert ("# x: ('dp', None)" in text) == (comments and phase != "annotated")


@pytest.mark.parametrize("phase", PHASES)
def test_what_tvm_prints_runs_when_it_is_pasted(phases, phase, tmp_path):
    text = re.sub(r"^# (?=from|import)", "", phases[phase].script(), flags=re.MULTILINE)
    pasted = run_file("import distir_ext\n" + text, tmp_path / "printed.py")
    tvm.ir.assert_structural_equal(pasted, phases[phase])


def test_every_sharded_value_has_a_comment(phases):
    lines = dx.script(phases["propagated"]).splitlines()
    start = next(i for i, line in enumerate(lines) if "def main" in line)
    assert lines[start + 1 : start + 4] == [
        "        # x: ('dp', None)",
        "        # w: (None, 'tp')",
        "        # flag: ()",
    ]
    body = "\n".join(lines[start:])
    assert re.search(r"y: .* = R.matmul\(.*# \('dp', 'tp'\)", body)
    assert re.search(r"z_then: .* = R.nn.relu\(.*# \('dp', 'tp'\)", body)  # in a branch
    assert re.search(r"u: .* = R.split\(.*# \('dp', None\); \('dp', None\)", body)  # of a tuple


def test_values_of_workers_have_comments_with_placements(phases):
    for phase in ("lowered", "called"):
        lines = dx.script(phases[phase]).splitlines()
        start = next(i for i, line in enumerate(lines) if "def main" in line)
        assert lines[start + 1 : start + 4] == [
            "        # x: ('dp', None), placement \"S[0], R\"",
            "        # w: (None, 'tp'), placement \"R, S[1]\"",
            '        # flag: (), placement "R, R"',
        ]
        body = "\n".join(lines[start:])
        said = r"# \('dp', 'tp'\), placement \"S\[0\], S\[1\]\""
        assert re.search(r"y: .* = R.matmul\(.*" + said, body)


def test_long_attributes_stand_behind_the_functions(phases):
    text = dx.script(phases["called"])
    before, behind = text.split("@I.ir_module")[1].split("Module = Module.with_attr", 1)
    assert "distir.signature" not in before
    assert "distir.signature" in behind
    assert "distir.mesh_axes" in before
    assert max(map(len, before.splitlines())) < 500


def test_constants_are_in_the_file(tmp_path):
    values = [np.arange(12, dtype="float32").reshape(3, 4), np.float32("-inf"), np.float32("nan")]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    with builder.function("main", [x]):
        result = x
        for value in values:
            result = builder.emit(relax.op.add(result, relax.const(value, "float32")))
        builder.emit_func_output(result)
    mod = dx.transform.PropagateSharding()(
        dx.annotate(builder.get(), dx.Mesh((3,), ("tp",)), {"x": ("tp", None)})
    )
    printed = run_file(dx.script(mod), tmp_path / "printed.py")
    tvm.ir.assert_structural_equal(printed, mod)
