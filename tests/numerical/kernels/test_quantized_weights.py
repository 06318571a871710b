"""Products with quantised weights: numbers, and no byte but of Megatron's all-reduce."""

import numpy as np
import pytest
import tvm
from tests.numerical.kernels.quantized import FORMATS, IN, OUT, ROWS
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx

P = relax.transform
FUSE = (P.LegalizeOps, P.AnnotateTIROpPattern, P.FuseOps, P.FuseTIR)
X = np.random.default_rng(1).standard_normal((ROWS, IN)).astype("float32")


PASSES = {"operators": (), "FuseOps": FUSE[:-1], "FuseTIR": FUSE}


def program(layout, is_fused):
    mod = layout.module()
    return tvm.transform.Sequential([make() for make in FUSE])(mod) if is_fused else mod


def assert_right(session_of, layout, mesh, mod, plan):
    arrays = layout.make()
    exe = dx.build(dx.annotate(mod, mesh, plan), QUICK)
    model = session_of(mesh.shape).load(exe, params=arrays)
    wanted = layout.dense(X, arrays)
    got = model["main"](X).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    return {each.kind: each.bytes_per_device for each in dx.analysis.collectives(exe)}


@pytest.mark.parametrize("is_fused", [False, True], ids=["operators", "fused"])
@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("layout", FORMATS, ids=lambda each: each.name)
def test_rows_take_one_all_reduce(session_of, layout, tp, is_fused):
    mesh, mod = dx.Mesh(tp=tp), program(layout, is_fused)
    sent = assert_right(session_of, layout, mesh, mod, layout.plan("k"))
    assert sent == {"all_reduce": ROWS * OUT * 4 * 2 * (tp - 1) // tp}


@pytest.mark.parametrize("is_fused", [False, True], ids=["operators", "fused"])
@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("layout", FORMATS, ids=lambda each: each.name)
def test_columns_take_nothing(session_of, layout, tp, is_fused):
    mesh, mod = dx.Mesh(tp=tp), program(layout, is_fused)
    assert assert_right(session_of, layout, mesh, mod, layout.plan("n")) == {}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("layout", FORMATS, ids=lambda each: each.name)
def test_a_product_in_the_kernel_that_dequantises(session_of, layout, tp):
    """Six groups divide into both; a kernel's sum over groups is not padded."""
    mesh, mod = dx.Mesh(tp=tp), layout.module(in_one_kernel=True)
    sent = assert_right(session_of, layout, mesh, mod, layout.plan("k"))
    assert sent == {"all_reduce": ROWS * OUT * 4 * 2 * (tp - 1) // tp}
    assert assert_right(session_of, layout, mesh, mod, layout.plan("n")) == {}


def annotated_blocks(layout, tp, passes=()):
    """Three blocks of 16 columns."""
    mod = layout.of_blocks([16, 32])
    mod = tvm.transform.Sequential([make() for make in passes])(mod) if passes else mod
    return dx.annotate(mod, dx.Mesh(tp=tp), {**layout.plan("n"), "out": ("tp", None)})


def assert_product_of_blocks(session_of, layout, tp, annotated):
    arrays, out = layout.make(), X[:, :16].T.copy()
    product = layout.dense(X, arrays)
    wanted = product[:, :16] * product[:, 16:32] * product[:, 32:] @ out
    model = session_of((tp,)).load(dx.build(annotated, QUICK), params={**arrays, "out": out})
    got = model["main"](X).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("layout", FORMATS, ids=lambda each: each.name)
def test_weights_that_hold_several(session_of, layout, passes):
    """Words and scales are cut like the columns that are made of them."""
    tp = 3 if layout.is_transposed else 2  # a block is of two words, where these are of columns
    annotated = annotated_blocks(layout, tp, PASSES[passes])
    names = {str(param.name) for param in annotated["main"].params}
    assert {f"{name}_{i}" for name in ("w", "s") for i in range(3)} <= names
    (sent,) = dx.analysis.collectives(dx.lower(annotated))
    assert (sent.kind, sent.count) == ("all_reduce", 1)
    assert sent.bytes_per_device == -(-ROWS * ROWS * 4 * 2 * (tp - 1) // tp)
    assert_product_of_blocks(session_of, layout, tp, annotated)


def test_words_that_devices_cannot_share_stay_together(session_of):
    """Zeros of 16 columns are two words."""
    layout = next(each for each in FORMATS if each.name == "gptq")
    with dx.pass_reports() as reports:
        annotated = annotated_blocks(layout, 3)
    assert "a block has fewer elements than shards" in str(reports[0])
    assert {str(each.name) for each in annotated["main"].params} == {"x", "out", *layout.arrays}
    assert_product_of_blocks(session_of, layout, 3, annotated)


def test_a_wrong_group_shows(session_of):
    layout = FORMATS[0]
    arrays = layout.make()
    exe = dx.build(dx.annotate(layout.module(), dx.Mesh(tp=4), layout.plan("k")), QUICK)
    arrays["s"] = np.roll(arrays["s"], 1, 1)
    got = session_of((4,)).load(exe, params=arrays)["main"](X).numpy()
    wanted = layout.dense(X, layout.make())
    assert np.abs(got - wanted).max() > 0.1 * np.abs(wanted).max()
