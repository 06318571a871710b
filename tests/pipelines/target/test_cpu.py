"""Compilation for CPUs: the host's target, scheduled kernels, exponentials."""

import math
import re
import time

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.target import codegen

import distir_ext as dx
from distir_ext.compile import cpu
from distir_ext.compile.kernel_values import tir_pipeline
from distir_ext.compile.kernels.cpu.cpu_math import legalizations
from distir_ext.native.machine import cpu_target


def run(mod, *inputs, blas=True):
    target = cpu_target.host_target()
    executable = tvm.compile(
        mod,
        target,
        relax_pipeline=cpu.pipeline(target, blas),
        tir_pipeline=tir_pipeline(for_cpu=True),
    )
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def module(shapes, make, dtype="float32"):
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(make(*params)))
        builder.emit_func_output(result)
    return builder.get()


def test_the_host_target_is_this_cpu():
    assert str(cpu_target.host_target().attrs["mcpu"]) == codegen.llvm_get_system_cpu()
    assert cpu_target.is_cpu("llvm")
    assert not cpu_target.is_cpu("nvidia/nvidia-h100")


@pytest.mark.parametrize("blas", [True, False])
def test_products_with_blas_and_without_it(blas):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 40, 50), "float32"), rng.standard_normal((60, 50), "float32")
    mod = module((x.shape, y.shape), lambda x, y: relax.op.matmul(x, relax.op.permute_dims(y)))
    assert np.abs(run(mod, x, y, blas=blas) - x @ y.T).max() < 1e-4


def test_exponentials_are_those_of_numpy():
    x = np.concatenate(
        [
            [np.nan, np.inf, -np.inf, 0.0, -0.0, 88.72, 88.73, -87.3, -87.4, -103.9, -104],
            np.random.default_rng(0).uniform(-110, 110, 8181),
        ]
    ).astype("float32")
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.exp(x.astype("float64"))
        wanted = exact.astype("float32")
    found = run(module((x.shape,), relax.op.exp), x)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    assert np.array_equal(np.isinf(found), np.isinf(wanted))
    normal = np.isfinite(wanted) & (wanted > 1.2e-38)
    assert np.abs(found[normal] / exact[normal] - 1).max() < 2 * 2.0**-23
    small = wanted <= 1.2e-38
    assert np.abs(found[small] - wanted[small]).max() <= 3e-45


def test_masked_scores_take_no_longer():
    # Powers that are subnormal would take tens of times as long as the others.
    target = cpu_target.host_target()
    mod = module(((8192, 128),), lambda x: relax.op.nn.softmax(x, -1))
    executable = tvm.compile(mod, target, relax_pipeline=cpu.pipeline(target))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def seconds(masked):
        x = np.tile(np.array([0, masked], "float32"), (8192, 64))
        tensor = tvm.runtime.tensor(x)
        times = []
        for _ in range(20):
            start = time.process_time()
            main(tensor)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(-1e30) < 2 * seconds(0)


@pytest.mark.parametrize("axis", [None, [-1], [0, 2], [1]])
@pytest.mark.parametrize("keepdims", [True, False])
def test_mean(axis, keepdims):
    x = np.random.default_rng(0).standard_normal((3, 20, 32), "float32")
    wanted = np.mean(
        x.astype("float64") ** 2, None if axis is None else tuple(axis), keepdims=keepdims
    )
    mod = module((x.shape,), lambda x: relax.op.mean(relax.op.multiply(x, x), axis, keepdims))
    assert np.abs(run(mod, x) / wanted - 1).max() < 1e-6


def test_a_mean_over_a_symbolic_dimension():
    x = np.random.default_rng(0).standard_normal((6, 40), "float32")
    mod = module(((6, tvm.tirx.Var("n", "int64")),), lambda x: relax.op.mean(x, [1], False))
    assert np.abs(run(mod, x) - x.mean(1)).max() < 1e-6


def test_the_squares_of_a_norm_are_part_of_their_sum():
    mod = module(((64, 256),), lambda x: relax.op.mean(relax.op.multiply(x, x), [-1], True))
    passes = [relax.transform.LegalizeOps(legalizations()), relax.transform.AnnotateTIROpPattern()]
    passes += [relax.transform.FuseOps(), relax.transform.FuseTIR()]
    with cpu_target.host_target():
        fused = tvm.transform.Sequential(passes)(mod)
    kernels = {name.name_hint for name in fused.get_global_vars()} - {"main"}
    assert kernels == {"fused_multiply_sum", "mean"}


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("shape", [(4, 8, 128), (3, 5, 7), (2, 1, 48)])
def test_softmax(shape, axis):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") * 10
    powers = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    wanted = powers / powers.sum(axis, keepdims=True)
    found = run(module((shape,), lambda x: relax.op.nn.softmax(x, axis)), x)
    assert np.abs(found - wanted).max() < 1e-6


FUNCTIONS = {
    "exp": (relax.op.exp, np.exp),
    "log": (relax.op.log, np.log),
    "tanh": (relax.op.tanh, np.tanh),
    "erf": (relax.op.erf, np.vectorize(math.erf)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_over_all_floats(name, sample):
    """Every so many of all floats: at most two units in the last place, and signs of zeros."""
    function, exact = FUNCTIONS[name]
    stride = sample(400_009, 100_003, 10_007)
    x = np.arange(0, 2**32, stride, dtype="uint32").view("float32")
    x = x[~np.isnan(x)]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.0, 1.0000001, 0.99999994]
    x = np.concatenate([x, np.linspace(-6, 6, 20001), special]).astype("float32")
    with np.errstate(all="ignore"):
        wanted = exact(x.astype("float64"))
        rounded = wanted.astype("float32")
    found = run(module((x.shape,), function), x)
    assert np.array_equal(np.isnan(found), np.isnan(rounded))
    finite = np.isfinite(rounded) & ((np.abs(rounded) > 1.2e-38) | (name != "exp"))
    unit = np.spacing(np.abs(rounded[finite])).astype("float64")
    assert (np.abs(found[finite] - wanted[finite]) / unit).max() <= 2
    others = ~np.isfinite(rounded) & ~np.isnan(rounded)
    assert np.array_equal(found[others], rounded[others])
    zeros = x == 0
    assert np.array_equal(np.signbit(found[zeros]), np.signbit(rounded[zeros]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_activations(dtype):
    """float16 is computed in float32 and rounded once."""
    x = np.linspace(-80, 11, 3 * 701).reshape(3, 701).astype(dtype)
    exact = x.astype("float64")
    erf = np.vectorize(math.erf)
    inner = math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
    unit = {"float32": 1e-6, "float16": 2.0**-10}[dtype]
    least = {"float32": 1e-30, "float16": 2.0**-14}[dtype]
    # 1 + erf(x) and 1 + tanh(x) of negative numbers are differences.
    cancelled = 2e-7 * np.abs(exact)
    for make, wanted, more in (
        (relax.op.sigmoid, 1 / (1 + np.exp(-exact)), 0),
        (relax.op.nn.silu, exact / (1 + np.exp(-exact)), 0),
        (relax.op.nn.gelu, exact * (0.5 + 0.5 * erf(exact * math.sqrt(0.5))), cancelled),
        (relax.op.nn.gelu_tanh, 0.5 * exact * (1 + np.tanh(inner)), cancelled),
        (relax.op.tanh, np.tanh(exact), 0),
        (relax.op.exp, np.exp(exact), 0),
    ):
        found = run(module((x.shape,), make, dtype), x).astype("float64")
        allowed = unit * np.maximum(np.abs(wanted), least) + more
        assert (np.abs(found - wanted) <= allowed).all(), make.__name__


@pytest.mark.parametrize("shape", [(64, 512), (7, 33), (1, 40000), (40000, 2), (3, 4, 5, 64)])
def test_norms_and_maps_of_many_shapes(shape):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(shape, "float32"), rng.standard_normal(shape[-1:], "float32")

    def norm(x, w):
        scale = relax.op.rsqrt(relax.op.mean(relax.op.multiply(x, x), [-1], keepdims=True))
        return relax.op.add(relax.op.multiply(relax.op.multiply(x, scale), w), x)

    wide = x.astype("float64")
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True)) * w + wide
    assert np.abs(run(module((x.shape, w.shape), norm), x, w) - wanted).max() < 1e-5


def test_build_takes_blas_and_a_target_of_the_user():
    mesh = dx.Mesh((2,), ("x",))
    mod = dx.annotate(module(((64, 48), (48, 80)), relax.op.matmul), mesh, {"x1": (None, "x")})
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((64, 48), "float32"), rng.standard_normal((48, 80), "float32")
    with dx.Session(mesh) as session:
        for target, blas in (("llvm", True), ("llvm", False), ({"kind": "llvm"}, True)):
            executable = dx.build(mod, tvm.target.Target(target), blas=blas)
            assert ("distir.runtime.einsum" in executable.as_text()) == blas
            assert np.abs(session.load(executable)["main"](x, w).numpy() - x @ w).max() < 1e-4


def partial_sums(rows):
    """A product whose sum is partial, with a norm of it, and what ``dx.build`` makes of that."""
    mod = module(
        ((rows, 64), (64, 512), (512,)),
        lambda x, w, g: relax.op.nn.rms_norm(relax.op.matmul(x, w), g, axes=[1]),
    )
    mesh = dx.Mesh((4,), ("tp",))
    return dx.annotate(mod, mesh, {"x0": (None, "tp"), "x1": ("tp", None)}), mesh


@pytest.mark.parametrize(("rows", "collective"), [(256, "reduce_scatter"), (8, "all_reduce")])
def test_large_sums_are_scattered_so_that_norms_run_on_shards(rows, collective):
    mod, mesh = partial_sums(rows)
    executable = dx.build(mod)
    found = set(re.findall(r"distir\.runtime\.(?:shared_)?(\w+)", executable.as_text()))
    assert ("all_gather" in found) == (collective == "reduce_scatter")
    assert collective in found
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(s).astype("float32") for s in [(rows, 64), (64, 512), (512,)])
    y = x @ w
    wanted = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * g
    with dx.Session(mesh) as session:
        found = session.load(executable)["main"](x, w, g).numpy()
    assert np.abs(found - wanted).max() < 1e-4


def test_what_the_user_has_optimised_stays_as_it_is():
    mod, _ = partial_sums(256)
    mod = dx.transform.LegalizeRedistribute()(dx.transform.PropagateSharding()(mod))
    executable = dx.build(dx.transform.OptimizeCollectives()(mod))
    assert "reduce_scatter" not in executable.as_text()
