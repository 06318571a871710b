"""Timelines have a bar for each event, where and as long as it is."""

from __future__ import annotations

import itertools
import types

import pytest
from tests.analysis.programs import megatron

import distir_ext as dx
from distir_ext.session.stages import schedule, simulate
from distir_ext.text import palette
from distir_ext.views.drawing.timeline import Event, draw

FIELDS = {
    "device": 0,
    "stream": "compute",
    "name": "n",
    "kind": "k",
    "start": 0.0,
    "duration": 1.0,
}


def event(device=0, stream="compute", kind="kernel", start=0.0, duration=1.0, **others):
    return Event(device, stream, "name", kind, start, duration, **others)


def bars_of(figure):
    """From device and stream to begin and duration of its bars."""
    (axes,) = figure.axes
    rows = [tick.get_text() for tick in axes.get_yticklabels()]
    found = {}
    for patch in axes.patches:
        row = int(patch.get_y() + 0.01)
        stream = "communication" if patch.get_hatch() else "compute"
        found.setdefault((rows[row], stream), []).append((patch.get_x(), patch.get_width()))
    return {key: sorted(value) for key, value in found.items()}


def test_devices_have_a_lane_for_each_stream():
    events = [
        event(start=0.0, duration=2.0),
        event(stream="communication", kind="all_reduce", start=2.0, duration=0.5),
        event(device=7, start=1.0, duration=3.0),
    ]
    figure = draw(events, "title")
    assert bars_of(figure) == {
        ("device 0", "compute"): [(0.0, 2.0)],
        ("device 0", "communication"): [(2.0, 0.5)],
        ("device 7", "compute"): [(1.0, 3.0)],
    }
    (axes,) = figure.axes
    assert axes.get_xlim() == (0.0, 4.0)
    assert axes.get_xlabel() == "time (s)"
    assert axes.get_title().startswith("title\n")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["kernel", "all_reduce"]


def test_lanes_of_a_device_do_not_meet():
    figure = draw([event(), event(stream="communication"), event(device=1)])
    spans = sorted((p.get_y(), p.get_y() + p.get_height()) for p in figure.axes[0].patches)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_microbatches_have_their_colors_and_numbers():
    events = [event(microbatch=i, stage=0, start=float(i)) for i in range(3)]
    figure = draw(events)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["0", "1", "2"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert len(set(colors)) == 3
    assert "numbers: microbatch" in axes.get_title()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["microbatch 0", "microbatch 1", "microbatch 2"]


def test_numbers_are_said_only_where_there_are_any():
    events = [event(microbatch=i, stage=0, start=float(i)) for i in range(400)]
    (axes,) = draw(events).axes
    assert len(axes.texts) == 0
    assert "numbers" not in axes.get_title()


def test_names_stand_on_events_of_one_microbatch():
    (axes,) = draw([event(microbatch=0, stage=0)]).axes
    assert [text.get_text() for text in axes.texts] == ["name"]
    assert "numbers" not in axes.get_title()


def test_stages_are_said_where_a_device_has_several():
    events = [event(microbatch=i, stage=s, start=2.0 * i + s) for i in range(2) for s in range(2)]
    (axes,) = draw(events).axes
    assert sorted(text.get_text() for text in axes.texts) == ["0/0", "0/1", "1/0", "1/1"]
    assert "numbers: microbatch/stage" in axes.get_title()


def test_of_many_devices_the_first_and_the_last_are_drawn():
    figure = draw([event(device=d) for d in range(512)])
    rows = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert rows == [*(f"device {d}" for d in range(14)), "…", "device 511"]
    assert "15 of 512 devices are drawn" in figure.axes[0].get_title()
    assert bars_of(figure)["device 511", "compute"] == [(0.0, 1.0)]


def test_events_may_be_dicts_or_objects_of_others():
    expected = bars_of(draw([Event(**FIELDS)]))
    assert bars_of(draw([FIELDS])) == expected
    assert bars_of(draw([types.SimpleNamespace(**FIELDS, other=3)])) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stream": "comm"}, "event 0 is on stream 'comm'; streams are compute and communication"),
        ({"stream": "computed"}, "did you mean 'compute'"),
        ({"durations": 1}, "has the field 'durations'.*did you mean 'duration'"),
        ({"duration": -1.0}, "starts at 0.0 and takes -1.0"),
        ({"start": float("nan")}, "starts at nan"),
    ],
)
def test_events_that_are_none_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        draw([{**FIELDS, **changed}])


def test_a_field_that_lacks_is_named():
    with pytest.raises(ValueError, match="event 1 has no duration, start"):
        draw([event(), {"device": 0, "stream": "compute", "name": "n", "kind": "k"}])


def test_a_schedule_of_stages_is_a_timeline():
    timeline = simulate(schedule("gpipe", stages=2, microbatches=3), 2.0)
    assert bars_of(timeline.plot()) == {
        ("device 0", "compute"): [(0.0, 2.0), (2.0, 2.0), (4.0, 2.0)],
        ("device 1", "compute"): [(2.0, 2.0), (4.0, 2.0), (6.0, 2.0)],
    }
    assert "25% of the devices' time is idle" in timeline.plot().axes[0].get_title()


def test_a_simulation_is_a_timeline_of_devices_that_differ():
    cluster = dx.Cluster.preset("H100")
    timeline = dx.analysis.simulate(megatron(layers=2, rows=64, hidden=128, width=512), cluster)
    assert timeline.devices == (0, 1)
    (first,) = {group.device_ids[0] for group in timeline.groups}
    expected = {}
    for each in timeline.of_device(first):
        key = f"device {first}", each.stream
        expected.setdefault(key, []).append((each.start, each.duration))
    drawn = bars_of(timeline.plot())
    assert drawn.keys() == expected.keys()
    for key, bars in drawn.items():
        assert [x for bar in bars for x in bar] == pytest.approx(
            [x for bar in sorted(expected[key]) for x in bar]
        )
    assert "of devices that do the same, one is drawn" in timeline.plot().axes[0].get_title()
    assert {row for row, _ in bars_of(timeline.plot([0, 1]))} == {"device 0", "device 1"}
    with pytest.raises(KeyError, match="no device 9"):
        timeline.plot([9])


def test_no_event_is_an_empty_picture():
    assert bars_of(draw([])) == {}


def test_text_stands_on_bars_only_where_it_fits():
    (axes,) = draw([event(duration=10.0), event(start=10.0, duration=0.01)]).axes
    assert len(axes.texts) == 1
    assert axes.texts[0].get_color() == palette.text_on(palette.BLUE)
