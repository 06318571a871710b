"""Errors for TVM's passes that cannot run on DTensors."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


@I.ir_module
class Program:
    @R.function
    def main(x: R.Tensor((8, 12), "float32"), w: R.Tensor((12, 16), "float32")) -> R.Tensor(
        (8, 16), "float32"
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            R.output(z)
        return z


@pytest.fixture(scope="module")
def phases():
    annotated = dx.annotate(Program, dx.Mesh(tp=4), {"w": (None, "tp")})
    propagated = dx.transform.PropagateSharding()(annotated)
    legalized = dx.transform.LegalizeRedistribute()(propagated)
    lowered = dx.transform.LowerDistIR()(legalized)
    return {
        "annotated": annotated,
        "propagated": propagated,
        "legalized": legalized,
        "lowered": lowered,
    }


PASSES = {
    "FoldConstant": relax.transform.FoldConstant,
    "ToMixedPrecision": relax.transform.ToMixedPrecision,
    "CallTIRRewrite": relax.transform.CallTIRRewrite,
    "RemoveRedundantReshape": relax.transform.RemoveRedundantReshape,
    "VMShapeLower": relax.transform.VMShapeLower,
    "ConvertLayout": lambda: relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
}


@pytest.fixture
def checked():
    with tvm.transform.PassContext(instruments=[dx.CheckPasses()]):
        yield


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("phase", ["propagated", "legalized"])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_that_cannot_run_is_named_with_the_phase(name, phase, phases):
    with pytest.raises(ValueError, match=f"{name} cannot run on DTensors, .* is {phase}: .*run it"):
        PASSES[name]()(phases[phase])


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("phase", ["annotated", "lowered"])
@pytest.mark.parametrize("name", ["FoldConstant", "RemoveRedundantReshape"])
def test_it_runs_before_and_behind(name, phase, phases):
    assert dx.phase(PASSES[name]()(phases[phase])) == phase


@pytest.mark.usefixtures("checked")
def test_within_a_sequential(phases):
    run = tvm.transform.Sequential(
        [dx.transform.PropagateSharding(), relax.transform.FoldConstant()]
    )
    with pytest.raises(ValueError, match=r"FoldConstant cannot run on DTensors"):
        run(phases["annotated"])


@pytest.mark.usefixtures("checked")
def test_a_pass_that_breaks_a_function_is_named():
    from .test_tvm_passes import Program as Branching

    propagated = dx.transform.PropagateSharding()(Branching)
    with pytest.raises(ValueError, match=r"Canonicalize\w+ has broken function `\w+`"):
        relax.transform.CanonicalizeBindings()(propagated)


def test_the_default_context_has_it():
    import subprocess
    import sys

    text = (
        "import tvm, distir_ext as dx\n"
        "from tvm.script import ir as I, relax as R\n"
        "print(len(tvm.transform.PassContext.current().instruments))"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "1"
