"""Microbatches through stages: numbers, inputs and results, errors."""

import numpy as np
import pytest
from tests.stages.programs import (
    PP_TP,
    Layers,
    chain,
    chain_result,
    chain_values,
    layers_result,
    layers_values,
)
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.session.stages import simulate


def check(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def staged_chain():
    widths = [8, 16, 8, 16, 8]
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), PP_TP, plan)
    exe = dx.build(dx.transform.AssignStages(PP_TP, "pp")(mod))
    x, weights = chain_values(widths, rows=12)
    with dx.Session(PP_TP) as session:
        yield session.load(exe, weights)["main"], x, chain_result(x, weights)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("microbatches", [1, 3, 12])
def test_microbatches_give_what_the_whole_batch_gives(staged_chain, schedule, microbatches):
    main, x, expected = staged_chain
    pipeline = main.pipeline(microbatches, schedule=schedule)
    y = pipeline(x)
    assert y.shape == expected.shape
    check(y.numpy(), expected)
    check(np.asarray(main(x)), expected)
    assert not np.allclose(np.asarray(pipeline(x[::-1].copy())), expected)


def test_timelines_are_text(staged_chain):
    main, x, _ = staged_chain
    pipeline = main.pipeline(6)
    pipeline(x)
    timeline = pipeline.timeline
    assert timeline.devices == (0, 1, 2, 3)
    assert len(timeline.text(40).splitlines()) == 4
    assert 0 <= timeline.bubble < 1


def test_a_list_of_weights_inputs_of_one_microbatch_and_several_results():
    plan = {r"up\d": (None, "tp"), r"down\d": ("tp", None)}
    mod = dx.transform.AssignStages(PP_TP, "pp")(dx.annotate(Layers, PP_TP, plan))
    (x, scale), weights = layers_values(rows=12)
    expected = layers_result(x, scale, weights)
    with dx.Session(PP_TP) as session:
        main = session.load(dx.build(mod), weights)["main"]
        pipeline = main.pipeline(3)
        logits, hidden = pipeline(x, scale)
        check(logits.numpy(), expected[0])
        check(hidden.numpy(), expected[1])
        # Results go back in as they are.
        again, _ = main.pipeline(3, batch_dims={"x": 0})(pipeline(x, scale)[0], scale)
        check(again.numpy(), layers_result(expected[0], scale, weights)[0])
        # An input of one microbatch's size is the same for all.
        logits, parts = main.pipeline(3, result_dims=[0, None])(x, scale[:4])
        same = layers_result(x, np.tile(scale[:4], (3, 1)), weights)
        check(logits.numpy(), same[0])
        assert [part.shape for part in parts] == [(4, 16)] * 3
        check(parts[1].numpy(), same[1][4:8])


def test_programs_of_one_stage_and_batches_along_another_dimension():
    mesh = dx.Mesh((2,), ("tp",))

    @I.ir_module
    class Columns:
        @R.function
        def main(x: R.Tensor((3, 4), "float32"), y: R.Tensor((3, 4), "float32")):
            z = R.add(R.sum(x, axis=0), R.sum(y, axis=0))
            return z

    x, y = (np.arange(24, dtype="float32").reshape(3, 8) * k for k in (1, 2))
    with dx.Session(mesh) as session:
        exe = dx.build(dx.annotate(Columns, mesh, {"x": (None, "tp")}))
        pipeline = session.load(exe)["main"].pipeline(2, batch_dims={"x": 1, "y": 1})
        check(pipeline(x, y).numpy(), 3 * x.sum(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"microbatches": 0}, "microbatches is 0"),
        ({"schedule": "zigzag"}, "no schedule 'zigzag'"),
        ({"schedule": "interleaved"}, '"main" have one stage each'),
        ({"batch_dims": {"y": 0}}, 'has no input "y"; it has x'),
        ({"batch_dims": {"x": 2}}, 'input "x" of "main" has no dimension 2'),
        ({"result_dims": 2}, 'result 0 of "main" is .* cannot be joined along dimension 2'),
        ({"result_dims": [0, 0]}, "has 2 entries"),
    ],
)
def test_pipelines_that_do_not_fit(staged_chain, options, message):
    main, _, _ = staged_chain
    with pytest.raises(ValueError, match=message):
        main.pipeline(**{"microbatches": 2, **options})


def test_inputs_that_do_not_fit(staged_chain):
    main, x, expected = staged_chain
    with pytest.raises(ValueError, match=r'dimension 0 of input "x".* 12, .*into 5 microbatches'):
        main.pipeline(5)(x)
    with pytest.raises(TypeError, match=r"takes 1 input \("):
        main.pipeline(2)(x, x)
    with pytest.raises(ValueError, match="size 9, expected 8"):
        main.pipeline(2)(np.zeros((4, 9), "float32"))
    with pytest.raises(RuntimeError, match="has not run yet"):
        _ = main.pipeline(2).timeline
    check(main.pipeline(2)(x).numpy(), expected)


def test_a_measured_schedule_can_be_simulated(staged_chain):
    main, _, _ = staged_chain
    plan = main.pipeline(4).schedule
    assert simulate(plan).bubble == pytest.approx(1 / 5)
