"""Pipelines on workers that are threads and on processes: order of events, overlap, failures."""

import dataclasses
import signal
import threading
import time

import numpy as np
import pytest
from tests.stages.programs import PP_TP, chain, chain_result, chain_values
from tests.stages.timelines import (
    ON_WORKERS,
    acting,
    check_order,
    check_runs_ahead,
    most_in_flight,
)

import distir_ext as dx
from distir_ext.session.session import WorkerError
from distir_ext.session.stages import Timeline, simulate

KINDS = ("threads", "processes")


def open_session(kind, num_workers, **options):
    imports = ON_WORKERS if kind == "processes" else ()
    return dx.Session(num_workers, workers=kind, imports=imports, **options)


@pytest.fixture(scope="module", params=KINDS)
def session(request):
    """Four workers for tests that do not end them."""
    with open_session(request.param, 4, timeout=60) as opened:
        yield opened


def check(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_microbatches_give_what_the_batch_gives_in_the_order_of_the_schedule(session, schedule):
    widths = [8, 16, 8, 16, 8]
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), PP_TP, plan)
    exe = dx.build(dx.transform.AssignStages(PP_TP, "pp")(mod))
    x, weights = chain_values(widths, rows=12)
    main = session.load(exe, weights)["main"]
    for microbatches in (1, 3, 12):
        pipeline = main.pipeline(microbatches, schedule=schedule)
        check(pipeline(x).numpy(), chain_result(x, weights))
        check_order(pipeline.timeline, pipeline.schedule)
    check(main(x).numpy(), chain_result(x, weights))


def test_an_order_that_is_not_the_schedules_is_noticed(session):
    x = np.arange(6, dtype="float32")
    pipeline = session.load(dx.build(acting([(0, "sleep", 0.0), (1, "sleep", 0.0)])))[
        "main"
    ].pipeline(6)
    pipeline(x)
    check_order(pipeline.timeline, pipeline.schedule)
    first, second = pipeline.schedule.devices
    swapped = (first, (second[1], second[0], *second[2:]))
    with pytest.raises(AssertionError):
        check_order(pipeline.timeline, dataclasses.replace(pipeline.schedule, devices=swapped))
    early = [dataclasses.replace(each, begin=0.0) for each in pipeline.timeline.of_device(1)]
    with pytest.raises(AssertionError):
        check_order(Timeline((*pipeline.timeline.of_device(0), *early)), pipeline.schedule)


def test_stages_overlap_and_1f1b_bounds_how_far_they_run_ahead(session):
    x = np.arange(6, dtype="float32")
    main = session.load(dx.build(acting([(0, "sleep", 0.01), (1, "sleep", 0.03)])))["main"]
    timelines = {}
    for schedule in ("gpipe", "1f1b"):
        pipeline = main.pipeline(6, schedule=schedule)
        np.testing.assert_array_equal(pipeline(x).numpy(), x)
        check_order(pipeline.timeline, pipeline.schedule)
        timelines[schedule] = pipeline.timeline
    for timeline in timelines.values():
        # While the second stage has a microbatch, the first works on a later one.
        assert any(
            event.begin < other.end and other.begin < event.end
            for event in timeline.of_device(0)
            for other in timeline.of_device(1)
            if event.microbatch > other.microbatch
        )
        # Waiting for a value is not computing.
        assert timeline.of_device(1)[0].begin >= timeline.of_device(0)[0].begin + 0.01
    assert most_in_flight(timelines["gpipe"], 0, 1) > 2
    assert most_in_flight(timelines["1f1b"], 0, 1) <= 2


def test_three_stages_have_the_bound_of_1f1b(session):
    stages = [(0, "sleep", 0.002), (1, "sleep", 0.002), (2, "sleep", 0.02)]
    pipeline = session.load(dx.build(acting(stages)))["main"].pipeline(8, schedule="1f1b")
    pipeline(np.arange(8, dtype="float32"))
    assert most_in_flight(pipeline.timeline, 0, 2) <= 3
    assert most_in_flight(pipeline.timeline, 1, 2) <= 2


def test_transfers_overlap_computation(session):
    """Sends of a megabyte do not wait for a stage that is busy: the stage before runs through."""
    size, count = 1 << 18, 5
    exe = dx.build(acting([(0, "sleep", 0.0), (1, "sleep", 0.2)], size))
    x = np.arange(size * count, dtype="float32")
    pipeline = session.load(exe)["main"].pipeline(count)
    np.testing.assert_array_equal(pipeline(x).numpy(), x)
    check_runs_ahead(pipeline.timeline, slow=1)


def test_sends_that_wait_for_the_receiver_are_noticed():
    """A stage whose sends waited would end a microbatch when the next stage begins it."""
    ran = simulate(dx.stages.schedule("gpipe", 2, 5), [0.01, 0.2])
    check_runs_ahead(ran, slow=1)
    receives = {event.microbatch: event.begin for event in ran.of_device(1)}
    waiting = [
        dataclasses.replace(event, end=receives[event.microbatch]) for event in ran.of_device(0)
    ]
    with pytest.raises(AssertionError):
        check_runs_ahead(Timeline((*waiting, *ran.of_device(1))), slow=1)


@pytest.mark.large
@pytest.mark.parametrize(
    ("kind", "what", "schedule", "timeout", "message"),
    [
        ("threads", "raise", "gpipe", None, "a microbatch that fails"),
        ("threads", "raise", "1f1b", None, "a microbatch that fails"),
        ("processes", "raise", "1f1b", None, "a microbatch that fails"),
        ("processes", "kill", "gpipe", None, "was ended by SIGKILL"),
        ("processes", "stall", "1f1b", 1.0, "within the session's timeout of 1 seconds"),
    ],
)
def test_a_microbatch_that_fails_ends_the_call(kind, what, schedule, timeout, message):
    session = open_session(kind, 2, timeout=timeout)
    main = session.load(dx.build(acting([(0, "sleep", 0.0), (1, what, 0.0)])))["main"]
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=message) as error:
        main.pipeline(8, schedule=schedule)(np.arange(8, dtype="float32"))
    assert time.monotonic() - begin < 5
    assert error.value.worker == 1
    assert session.closed


def test_the_time_limit_is_for_each_microbatch(session, monkeypatch):
    main = session.load(dx.build(acting([(0, "sleep", 0.1), (1, "sleep", 0.1)])))["main"]
    monkeypatch.setattr(session._workers, "timeout", 1.0)
    begin = time.monotonic()
    main.pipeline(12)(np.arange(12, dtype="float32"))
    assert time.monotonic() - begin > 1.0


@pytest.mark.large
def test_an_interrupt_ends_a_pipeline_of_processes():
    session = open_session("processes", 2)
    main = session.load(dx.build(acting([(0, "sleep", 0.0), (1, "stall", 0.0)])))["main"]

    main_thread = threading.main_thread().ident
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            main.pipeline(4)(np.arange(4, dtype="float32"))
    finally:
        signal.signal(signal.SIGINT, handler)
    timer.join()
    assert session.closed


@pytest.mark.parametrize("session", ["processes"], indirect=True)
def test_times_of_different_clocks_are_not_shown(session, monkeypatch):
    main = session.load(dx.build(acting([(0, "sleep", 0.0), (1, "sleep", 0.0)])))["main"]
    pipeline = main.pipeline(2)
    monkeypatch.setattr(session._workers, "share_a_clock", False)
    pipeline(np.arange(2, dtype="float32"))
    with pytest.raises(RuntimeError, match="no clock in common"):
        _ = pipeline.timeline
