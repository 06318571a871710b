"""Devices with several stages each: how they are cut, their order, overlap and numbers."""

import dataclasses
import random

import numpy as np
import pytest
import tvm
from tests.stages.programs import (
    PP_TP,
    Layers,
    chain,
    chain_result,
    chain_values,
    layers_result,
    layers_values,
    programs,
    skips,
    staged,
)
from tests.stages.timelines import ON_WORKERS, acting, check_order
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.session.function_calls import FunctionCalls, LoadedFunction
from distir_ext.session.session import WorkerError
from distir_ext.session.stages import simulate


@pytest.fixture(scope="module", params=["threads", "processes"])
def session(request):
    """Four workers for tests that do not end them."""
    imports = ON_WORKERS if request.param == "processes" else ()
    with dx.Session(4, workers=request.param, imports=imports, timeout=60) as opened:
        yield opened


def check(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_stages_follow_each_other_around_the_devices():
    found = programs(staged(chain([8] * 5), dx.Mesh((2,), ("pp",)), "pp", interleave=2))
    assert [(each["virtual_stage"], each["device_ids"], each["params"]) for each in found] == [
        (0, [0], ["x", "w0"]),
        (0, [1], ["w1"]),
        (1, [0], ["w2"]),
        (1, [1], ["w3"]),
    ]
    assert [each["results"] for each in found] == [[], [], [], [0]]
    meshes = [dx.Mesh((1,), ("tp",), device_ids=[i]) for i in (1, 0)]
    again = programs(staged(chain([8] * 5), meshes, interleave=2))
    assert [each["device_ids"] for each in again] == [[1], [0], [1], [0]]


def test_a_weight_of_two_stages_on_one_mesh_is_one_parameter():
    rng = random.Random(0)
    mod, _, _ = skips(rng, layers=4, width=4, rows=2, weights=1)
    found = programs(staged(mod, dx.Mesh((2,), ("pp",)), "pp", interleave=2))
    assert [name for each in found for name in each["params"] if name != "x"].count("w0") == 4
    signature = staged(mod, dx.Mesh((2,), ("pp",)), "pp", interleave=2)["main"].params
    assert len(signature) == 1 + 2  # x, and w0 for each mesh


def test_interleaved_stages_give_what_the_batch_gives_in_the_order_of_the_schedule(session):
    widths = [8, 16, 8, 16, 8, 16, 8, 16, 8]
    plan = {r"w[0246]": (None, "tp"), r"w[1357]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), PP_TP, plan)
    exe = dx.build(staged(mod, PP_TP, "pp", interleave=2))
    x, weights = chain_values(widths, rows=12)
    expected = chain_result(x, weights)
    main = session.load(exe, weights)["main"]
    check(main(x).numpy(), expected)
    for microbatches in (1, 2, 3, 4, 12):  # also numbers that the two devices do not divide
        pipeline = main.pipeline(microbatches)
        assert pipeline.schedule.kind == "interleaved"
        check(pipeline(x).numpy(), expected)
        check_order(pipeline.timeline, pipeline.schedule)
    assert not np.allclose(np.asarray(pipeline(x[::-1].copy())), expected)


def test_devices_go_on_with_their_next_stage_while_others_run_theirs(session):
    """As long as the schedule says: stages that all waited would take 1.8 times as long."""
    seconds, count = 0.04, 4
    stages = [(0, "sleep", seconds), (1, "sleep", seconds)] * 2
    pipeline = session.load(dx.build(acting(stages, interleaved=True)))["main"].pipeline(count)
    x = np.arange(count, dtype="float32")
    np.testing.assert_array_equal(pipeline(x).numpy(), x)
    check_order(pipeline.timeline, pipeline.schedule)
    ideal = simulate(pipeline.schedule, seconds)
    assert ideal.bubble == pytest.approx((2 - 1) / (2 * count + 2 - 1))
    assert ideal.seconds == pytest.approx(9 * seconds)
    assert ideal.seconds <= pipeline.timeline.seconds < 13 * seconds  # one by one: 16


def test_another_order_is_noticed(session, monkeypatch):
    stages = [(0, "sleep", 0.0), (1, "sleep", 0.0)] * 2
    main = session.load(dx.build(acting(stages, interleaved=True)))["main"]
    pipeline = main.pipeline(4)
    x = np.arange(4, dtype="float32")
    one_by_one = [(index, microbatch) for microbatch in range(4) for index in range(2)]
    monkeypatch.setattr(
        "distir_ext.session.pipeline.virtual_stages_in_order", lambda *_: one_by_one
    )
    np.testing.assert_array_equal(pipeline(x).numpy(), x)  # as right, but slower
    with pytest.raises(AssertionError):
        check_order(pipeline.timeline, pipeline.schedule)
    monkeypatch.undo()
    pipeline(x)
    check_order(pipeline.timeline, pipeline.schedule)
    events = pipeline.schedule.devices[0]
    wrong = (events[::-1], pipeline.schedule.devices[1])
    with pytest.raises(AssertionError):
        check_order(pipeline.timeline, dataclasses.replace(pipeline.schedule, devices=wrong))


def test_calls_tied_weights_inputs_and_results_of_several_virtual_stages():
    plan = {r"up\d": (None, "tp"), r"down\d": ("tp", None), "embed": (None, "tp")}
    mod = staged(dx.annotate(Layers, PP_TP, plan), PP_TP, "pp", interleave=2)
    assert [each["virtual_stage"] for each in programs(mod)] == [0, 0, 1, 1]
    (x, scale), weights = layers_values(rows=12)
    with dx.Session(PP_TP) as session:
        pipeline = session.load(dx.build(mod), weights)["main"].pipeline(3)
        for actual, expected in zip(
            pipeline(x, scale), layers_result(x, scale, weights), strict=True
        ):
            check(actual.numpy(), expected)


@I.ir_module
class Boxed:
    """An object of the first stage that the third one opens."""

    @R.function
    def main(
        x: R.Tensor((2, 4), "float32"),
        w0: R.Tensor((4, 4), "float32"),
        w1: R.Tensor((4, 4), "float32"),
        w2: R.Tensor((4, 4), "float32"),
    ):
        R.func_attr({"num_input": 1})
        a = R.matmul(x, w0)
        held = R.call_pure_packed("distir_test.stages.box", a, ty_args=(R.Object,))
        b = R.matmul(a, w1)
        c = R.matmul(b, w2)
        again = R.call_pure_packed(
            "distir_test.stages.unbox", held, ty_args=(R.Tensor((2, 4), "float32"),)
        )
        d = R.add(c, again)
        return d


def test_what_is_no_tensor_stays_for_a_later_stage_of_the_same_mesh(session):
    first, second = (dx.Mesh((1,), ("tp",), device_ids=[i]) for i in (0, 1))
    exe = dx.build(staged(Boxed, [first, second, first]))
    x, weights = chain_values([4, 4, 4, 4], rows=6)
    pipeline = session.load(exe, weights)["main"].pipeline(3)
    a = x @ weights["w0"]
    check(pipeline(x).numpy(), a @ weights["w1"] @ weights["w2"] + a)
    with pytest.raises(ValueError, match="`held` is used in two stages, and what is no tensor"):
        staged(Boxed, [dx.Mesh((1,), ("tp",), device_ids=[i]) for i in range(3)])


def test_a_batch_in_shards_of_a_symbolic_size():
    mesh = dx.Mesh((2, 2, 2), ("pp", "dp", "tp"))
    widths = [8, 16, 8, 16, 8]
    plan = {"x": ("dp", None), r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), mesh, plan)
    x, weights = chain_values(widths, rows=12)
    with dx.Session(mesh) as session:
        exe = dx.build(staged(mod, mesh, "pp", interleave=2))
        pipeline = session.load(exe, weights)["main"].pipeline(3)
        check(pipeline(x).numpy(), chain_result(x, weights))


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_with_skips_on_meshes_in_random_order(seed):
    rng = random.Random(seed)
    rows, layers, width = rng.choice([2, 3]), rng.randint(5, 8), rng.choice([4, 6])
    mod, compute, weights = skips(
        rng, layers, width, "n" if seed % 2 else rows, weights=rng.randint(2, layers)
    )
    meshes, first = [], 0
    for _ in range(rng.randint(2, 3)):
        size = rng.choice([1, 2, 3])
        meshes.append(dx.Mesh((size,), ("tp",), device_ids=range(first, first + size)))
        first += size
    order = [*meshes, *(rng.choice(meshes) for _ in range(rng.randint(0, 2))), meshes[0]]
    dims = [(None, "tp"), ("tp", None), (None, None)]
    plan = {name: rng.choice(dims) for name in weights}
    exe = dx.build(staged(dx.annotate(mod, meshes[0], plan), order))
    microbatches = rng.randint(1, 5)
    x = np.random.default_rng(seed).standard_normal((rows * microbatches, width), "float32")
    with dx.Session(first) as session:
        pipeline = session.load(exe, weights)["main"].pipeline(microbatches)
        check(pipeline(x).numpy(), compute(x, weights))
        wrong = dict(weights, w0=weights["w0"] + 1)
        assert not np.allclose(pipeline(x).numpy(), compute(x, wrong), rtol=1e-4, atol=1e-5)


@pytest.mark.large
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_stage_of_the_second_virtual_stage_that_fails_ends_the_call(kind):
    imports = ON_WORKERS if kind == "processes" else ()
    session = dx.Session(2, workers=kind, imports=imports, timeout=30)
    stages = [(0, "sleep", 0.0), (1, "sleep", 0.0), (0, "raise", 0.0), (1, "sleep", 0.0)]
    main = session.load(dx.build(acting(stages, interleaved=True)))["main"]
    with pytest.raises(WorkerError, match="a microbatch that fails") as error:
        main.pipeline(6)(np.arange(6, dtype="float32"))
    assert error.value.worker == 0
    assert session.closed


def test_schedules_that_do_not_fit():
    stages = [(0, "sleep", 0.0), (1, "sleep", 0.0), (0, "sleep", 0.0)]
    with dx.Session(2) as session:
        main = session.load(dx.build(acting(stages, interleaved=True)))["main"]
        for schedule in ("gpipe", "1f1b"):
            with pytest.raises(ValueError, match="have several stages each; schedule"):
                main.pipeline(2, schedule=schedule)
    with pytest.raises(ValueError, match="interleave is 0"):
        dx.transform.AssignStages(PP_TP, "pp", interleave=0)


def test_devices_whose_sends_wait_are_refused(monkeypatch):
    stages = [(0, "sleep", 0.0), (1, "sleep", 0.0), (0, "sleep", 0.0)]
    with dx.Session(2) as session:
        main = session.load(dx.build(acting(stages, interleaved=True)))["main"]
        cuda = int(tvm.cuda().dlpack_device_type())
        monkeypatch.setattr(session._workers, "device_type", cuda)
        with pytest.raises(ValueError, match="have several stages each, which GPUs cannot run"):
            FunctionCalls(
                LoadedFunction(main._calls.origin, session._workers, main._spec, [], [], {})
            )
