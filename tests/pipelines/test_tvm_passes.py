"""Every pass of relax.transform, after every phase: right numbers, or one error.

Passes are found by reflection, so a new one is noticed. What a pass makes of a phase is lowered,
built and run against NumPy; equal programs are run once. What cannot be is refused at once: by the
pass itself where PASSES_REFUSE says why, or by the next pass of ours or ``dx.build``.
"""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.meshes import meshes
from tests.targets import QUICK
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.relax.global_info import VDevice
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


@I.ir_module
class Program:
    """A call of a function on two signatures, a kernel, a redistribution, an uneven dimension, a
    constant, other names of a value, a match_cast, a tuple, and a symbolic dimension."""

    I.module_global_infos(meshes((2, 2)))

    @T.prim_func(private=True, s_tir=True)
    def scaled(a: T.Buffer((8, 12), "float32"), b: T.Buffer((8, 12), "float32")):
        for i, j in T.grid(8, 12):
            with T.sblock("scaled"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] * T.float32(3)

    @R.function(private=True)
    def block(x: R.Tensor((8, 12), "float32"), w: R.Tensor((12, 12), "float32")) -> R.Tensor(
        (8, 12), "float32"
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.nn.relu(y)
            r = z
            R.output(r)
        return r

    @R.function
    def main(
        x: R.Tensor((8, 12), "float32"),
        w1: R.Tensor((12, 12), "float32"),
        w2: R.Tensor((12, 12), "float32"),
        b: R.Tensor((12,), "float32"),
        s: R.Tensor((7,), "float32"),
    ):
        R.func_attr({"num_input": 1})
        cls = Program
        with R.dataflow():
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            w10 = R.dist.annotate_sharding(w1, "mesh[0]", "R, S[1]")
            w20 = R.dist.annotate_sharding(w2, "mesh[0]", "R, S[0]")
            h = cls.block(x0, w10)
            k = R.call_tir(cls.scaled, (h,), out_ty=R.Tensor((8, 12), "float32"))
            p = R.permute_dims(w20, axes=[1, 0])
            q = R.permute_dims(p, axes=[1, 0])
            y = cls.block(k, q)
            f = R.add(y, b)
            s0 = R.dist.annotate_sharding(s, "mesh[0]", "S[0], R")
            g = R.multiply(f, R.multiply(R.max(s0), R.const(2.0, "float32")))
            g0 = R.dist.annotate_sharding(g, "mesh[0]", "S[1], S[0]")
            u = R.reshape(g0, (96,))
            m = R.match_cast(u, R.Tensor((96,), "float32"))
            pair = (g0, m)
            first = pair[0]
            second = pair[1]
            one = first
            R.output(one, second)
        t = (one, second)
        return t

    @R.function
    def rows(x: R.Tensor(("n", 4), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
        y = R.exp(x0)
        return y


PHASES = {
    "annotated": None,
    "propagated": dx.transform.PropagateSharding,
    "padded": dx.transform.PadShards,
    "legalized": dx.transform.LegalizeRedistribute,
    "optimized": dx.transform.OptimizeCollectives,
    "lowered": dx.transform.LowerDistIR,
    "called": dx.transform.LowerCCL,
}
ON_DTENSORS = ("propagated", "padded", "legalized", "optimized")
# Between them lie phases that are alike to passes of TVM.
MAIN_PHASES = ("annotated", "propagated", "optimized", "lowered")
OTHER_PHASES = ("padded", "legalized", "called")

RANDOM = np.random.default_rng(0)
X, W1, W2, B, S, ROWS = (
    RANDOM.standard_normal(shape).astype("float32")
    for shape in [(8, 12), (12, 12), (12, 12), (12,), (7,), (6, 4)]
)

WEIGHTS = {"w1": W1, "w2": W2, "b": B, "s": S}
# BundleModelParams makes one tuple of them; LiftTransformParams a function that takes a tuple, and
# parameters for what it returns.
WEIGHTS |= {"model_params": (W1, W2, B, S), "w10": W1, "q": W2, "lv11": np.float32(2 * S.max())}

transform = relax.transform
FUSED = (transform.LegalizeOps, transform.AnnotateTIROpPattern, transform.FuseOps)

# Passes with the arguments that they need; others need none.
ARGUMENTS = {
    "AlterOpImpl": lambda: transform.AlterOpImpl({}, {}),
    "AttachExternModules": lambda: transform.AttachExternModules([]),
    "BindParams": lambda: transform.BindParams("main", {"b": B}),
    "BindSymbolicVars": lambda: transform.BindSymbolicVars(
        {"n": tvm.tirx.IntImm("int64", 6)}, "rows"
    ),
    "ConvertLayout": lambda: transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
    "FuseOps": lambda: tvm.transform.Sequential([make() for make in FUSED]),
    "FuseOpsByPattern": lambda: transform.FuseOpsByPattern(
        [("test.relu", is_op("relax.nn.relu")(wildcard()))]
    ),
    "FuseTIR": lambda: tvm.transform.Sequential([make() for make in (*FUSED, transform.FuseTIR)]),
    "Gradient": lambda: transform.Gradient("main"),
    "IPCAllReduceRewrite": lambda: transform.IPCAllReduceRewrite(0),
    "SplitCallTIRByPattern": lambda: transform.SplitCallTIRByPattern([], lambda *_: []),
    "UpdateParamType": lambda: transform.UpdateParamType(lambda _: None),
    "UpdateVDevice": lambda: transform.UpdateVDevice(VDevice("llvm", 0, "global"), 0),
}

NO_PASSES = {
    "DataflowBlockPass": "a base class",
    "FunctionPass": "a base class",
    "FusionPattern": "an argument of FuseOpsByPattern",
    "PatternCheckContext": "an argument of FuseOpsByPattern",
    "dataflowblock_pass": "a decorator",
    "function_pass": "a decorator",
    "MetaScheduleApplyDatabase": "needs a database of measurements and a target in context",
    "MetaScheduleTuneIRMod": "measures schedules on a device",
    "MetaScheduleTuneTIR": "measures schedules on a device",
}

EVERYWHERE = tuple(PHASES)
# Passes that refuse the program themselves, at once, and why.
PASSES_REFUSE = {
    "BindParams": (PHASES.keys() - {"annotated"}, "a local or distributed weight has another type"),
    "ConvertLayout": (ON_DTENSORS, "every variable of DTensor type is made anew"),
    "CallTIRRewrite": (ON_DTENSORS, "R.call_tir of a DTensor"),
    "FastMathTransform": (EVERYWHERE, "reads GlobalVar.name, which TVM 0.27 does not have"),
    "FoldConstant": (ON_DTENSORS, "legalises operators, which read dtypes of Tensors"),
    "Gradient": (EVERYWHERE, "needs a scalar result"),
    "MergeCompositeFunctions": (EVERYWHERE, "needs the output of FuseOpsByPattern"),
    "RemoveRedundantReshape": (ON_DTENSORS, "reads shapes of Tensors"),
    "RunCodegen": (ON_DTENSORS, "needs the output of MergeCompositeFunctions"),
    "SpecializePrimFuncBasedOnCallSite": (EVERYWHERE, "needs buffers of independent sizes"),
    "ToMixedPrecision": (EVERYWHERE, "knows no match_cast, no DTensor, no packed function"),
    "UpdateVDevice": (EVERYWHERE, "needs a virtual device in the module"),
    "VMShapeLower": (ON_DTENSORS, "lowers what only workers have"),
}

# Passes whose result no session can run, so that we refuse what they leave.
WE_REFUSE = {
    "BundleModelParams": (("lowered", "called"), "parameters"),
    "BindSymbolicVars": (("padded", "legalized", "optimized", "lowered", "called"), "rows"),
    "CallTIRRewrite": (("annotated", "lowered", "called"), "in a dataflow block"),
    "KillAfterLastUse": (EVERYWHERE, "ends the life"),
    "LazyGetInput": (EVERYWHERE, "fget_param"),
    "LazySetOutput": (EVERYWHERE, "fset_output|which is not defined there"),
    "LiftTransformParams": (("lowered", "called"), "parameter"),
    "VMShapeLower": (("annotated",), "leave that pass to dx.build"),
    "UpdateParamType": (EVERYWHERE, "calls `block`, which is no function of the module"),
}


def pass_names():
    return [
        name
        for name in sorted(dir(transform))
        if not name.startswith("_")
        and callable(getattr(transform, name))
        and getattr(getattr(transform, name), "__module__", "").startswith("tvm.relax")
        and name not in NO_PASSES
    ]


@pytest.fixture(scope="module")
def phases():
    """From a phase's name to the program there."""
    found, mod = {}, Program
    for name, make in PHASES.items():
        mod = mod if make is None else make()(mod)
        found[name] = mod
    return found


def expected():
    h = np.maximum(X @ W1, 0) * 3
    g = (np.maximum(h @ W2, 0) + B) * S.max() * 2
    return g, g.reshape(-1)


def is_broken(mod):
    return any(
        relax.analysis.free_vars(function)
        for function in mod.functions.values()
        if isinstance(function, relax.Function)
    )


class Runner:
    """Builds and runs modules; one that is equal to an earlier one is known to be right."""

    def __init__(self, session):
        self.session = session
        self.right = {}

    def check(self, mod):
        lowered = dx.transform.LowerCCL()(dx.lower(mod))
        key = tvm_ffi.structural_hash(lowered)
        if any(tvm_ffi.structural_equal(lowered, each) for each in self.right.get(key, ())):
            return
        exe = dx.build(lowered, QUICK)
        model = self.session.load(exe, params=WEIGHTS, strict=False)
        for result, wanted in zip(model["main"](X), expected(), strict=True):
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(model["rows"](ROWS).numpy(), np.exp(ROWS), rtol=1e-5)
        self.right.setdefault(key, []).append(lowered)


@pytest.fixture(scope="module")
def runner():
    with dx.Session(4, timeout=60) as session:
        yield Runner(session)


@pytest.mark.parametrize("name", pass_names())
@pytest.mark.parametrize(
    "among", [MAIN_PHASES, pytest.param(OTHER_PHASES, marks=pytest.mark.slow)], ids="-".join
)
def test_pass_gives_right_numbers_or_one_error(name, among, phases, runner):
    refused_in, _ = PASSES_REFUSE.get(name, ((), ""))
    we_refuse_in, message = WE_REFUSE.get(name, ((), ""))
    for phase in among:
        mod = phases[phase]
        user_pass = ARGUMENTS.get(name, getattr(transform, name))()
        if phase in refused_in:
            with pytest.raises(Exception):  # noqa: B017, PT011 - TVM's, of any kind
                user_pass(mod)
            continue
        changed = user_pass(mod)
        if phase in we_refuse_in:
            with pytest.raises(ValueError, match=message):
                dx.build(changed)
        elif is_broken(changed):
            # Passes of TVM leave uses of variables that they have redefined.
            assert phase in ON_DTENSORS
            with pytest.raises(ValueError, match=r"SplitFused: .* which is not defined"):
                dx.build(changed)
        else:
            runner.check(changed)
