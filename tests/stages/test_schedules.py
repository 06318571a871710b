"""Pipeline schedules as data, and their simulated timelines."""

import pytest

from distir_ext.session.stages import Event, Schedule, Timeline, schedule, simulate

SIZES = [(1, 1), (2, 1), (2, 3), (3, 5), (4, 16)]


def events_of(plan: Schedule) -> list[Event]:
    return [event for events in plan.devices for event in events]


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_bubble_of_stages_in_order(kind, stages, microbatches):
    timeline = simulate(schedule(kind, stages, microbatches))
    assert timeline.seconds == pytest.approx(stages + microbatches - 1)
    assert timeline.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1))


@pytest.mark.parametrize("virtual_stages", [1, 2, 3])
@pytest.mark.parametrize(("devices", "groups"), [(1, 2), (2, 1), (2, 4), (3, 2), (4, 2)])
def test_bubble_of_interleaved_stages(devices, groups, virtual_stages):
    microbatches = devices * groups
    plan = schedule(
        "interleaved", devices * virtual_stages, microbatches, virtual_stages=virtual_stages
    )
    assert len(plan.devices) == devices
    expected = (devices - 1) / (virtual_stages * microbatches + devices - 1)
    assert simulate(plan).bubble == pytest.approx(expected)


@pytest.mark.parametrize(
    "plan",
    [
        schedule("gpipe", 3, 4),
        schedule("1f1b", 3, 4),
        schedule("interleaved", 6, 5, virtual_stages=2),
        schedule("interleaved", 6, 7, virtual_stages=3),
    ],
)
def test_every_stage_runs_every_microbatch_once(plan):
    events = events_of(plan)
    assert len(set(events)) == len(events) == plan.stages * plan.microbatches
    done = {(each.stage, each.microbatch): each for each in simulate(plan).events}
    for (stage, microbatch), event in done.items():
        if stage > 0:
            assert done[stage - 1, microbatch].end <= event.begin


def test_interleaved_events_alternate_between_the_stages_of_a_device():
    plan = schedule("interleaved", 4, 4, virtual_stages=2)
    assert [(event.stage, event.microbatch) for event in plan.devices[1]] == [
        *((1, 0), (1, 1), (3, 0), (3, 1)),
        *((1, 2), (1, 3), (3, 2), (3, 3)),
    ]


def in_flight(timeline: Timeline, stages: int, stage: int) -> int:
    """The most microbatches that a stage has begun and the last stage has not finished."""
    begins = [each.begin for each in timeline.events if each.stage == stage]
    ends = [each.end for each in timeline.events if each.stage == stages - 1]
    return max(sum(b <= at for b in begins) - sum(e <= at for e in ends) for at in begins)


def test_1f1b_does_not_run_ahead_of_a_slow_stage():
    seconds = [1.0, 1.0, 5.0]
    for stage in range(3):
        bounded = simulate(schedule("1f1b", 3, 8), seconds)
        assert in_flight(bounded, 3, stage) <= 3 - stage
    assert in_flight(simulate(schedule("gpipe", 3, 8), seconds), 3, 0) > 3
    assert bounded.seconds == pytest.approx(simulate(schedule("gpipe", 3, 8), seconds).seconds)


@pytest.mark.parametrize("virtual_stages", [2, 3])
def test_interleaved_stages_do_not_run_ahead_of_a_slow_one(virtual_stages):
    seconds = [1.0] * (3 * virtual_stages - 1) + [9.0]
    timeline = simulate(schedule("interleaved", 3 * virtual_stages, 12, virtual_stages), seconds)
    assert in_flight(timeline, 3 * virtual_stages, 0) <= 2 * 3


def test_unequal_stages_and_transfers():
    timeline = simulate(schedule("gpipe", 2, 3), seconds=[1.0, 2.0], transfer=0.5)
    assert [(each.stage, each.begin) for each in timeline.events] == [
        *((0, 0.0), (0, 1.0), (0, 2.0)),
        *((1, 1.5), (1, 3.5), (1, 5.5)),
    ]
    assert timeline.of_device(1)[-1].end == 7.5


def test_text_has_a_line_per_device():
    text = simulate(schedule("gpipe", 2, 3)).text(width=8)
    assert text.splitlines() == ["device 0 |001122..|", "device 1 |..001122|"]
    assert Timeline(()).text() == ""


def test_what_a_timeline_has_not_is_an_error():
    timeline = simulate(schedule("gpipe", 2, 3))
    with pytest.raises(KeyError, match="no device 2; it has"):
        timeline.of_device(2)
    with pytest.raises(ValueError, match="width is 0; it must be at least 1"):
        timeline.text(width=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zigzag", 2, 2), "there is no schedule 'zigzag'"),
        (("gpipe", 0, 2), "stages is 0"),
        (("gpipe", 2, 0), "microbatches is 0"),
        (("gpipe", 2, 2, 2), "one stage per device"),
        (("interleaved", 3, 2, 2), "3 stages do not divide into virtual_stages=2 per device"),
    ],
)
def test_impossible_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)


def test_events_that_wait_for_each_other():
    backwards = ((Event(0, 0),), (Event(1, 1), Event(1, 0)))
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(Schedule("by hand", 2, 2, backwards))
    with pytest.raises(ValueError, match="1 times were given for 2 stages"):
        simulate(schedule("gpipe", 2, 2), seconds=[1.0])
