"""Draws a timeline: the times in which devices compute and communicate.

Events are objects or dicts with the fields of :class:`Event`. A device has two lanes: what it
computes, and what it communicates meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.palette import series, text_on
from distir_ext.views.drawing.abbreviation import shown
from distir_ext.views.drawing.figure import engineering, label_text, new_figure

STREAMS = ("compute", "communication")

_MOST_DEVICES = 16
_MOST_IN_LEGEND = 12
_ROOM = 0.012  # which share of the width a character needs
# Where lanes begin, and how high they are: of devices that communicate, and of those that do not.
_TWO_LANES = {"compute": (0.0, 0.55), "communication": (0.58, 0.3)}
_ONE_LANE = {"compute": (0.05, 0.8)}


@dataclass(frozen=True)
class Event:
    """Interval of computation or communication on a device."""

    device: int
    """Its id."""

    stream: str
    """``"compute"`` or ``"communication"``."""

    name: str
    """Name of the operator or collective."""

    kind: str
    """Category: ``"kernel"``, ``"all_reduce"``, ``"forward"``."""

    start: float
    """In seconds."""

    duration: float
    """In seconds."""

    microbatch: int | None = None
    """Index of the microbatch; None where there are none."""

    stage: int | None = None
    """Index of the stage; None where there are none."""


def draw(events: Iterable[Any], title: str = "") -> Any:
    """The figure. Colours are microbatches where there are several, else kinds.

    Args:
        events: Objects or dicts with the fields of :class:`Event`; `microbatch` and `stage` may be
            absent.
        title: Of the figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: An event has no such field, another stream, or a time that is none.
    """
    read = [_event(each, index) for index, each in enumerate(events)]
    devices = sorted({each.device for each in read})
    rows = shown(len(devices), _MOST_DEVICES)
    place = {devices[index]: row for row, index in enumerate(rows) if index is not None}
    figure = new_figure(10, 1.8 + 0.45 * max(1, len(rows)))
    axes = figure.subplots()
    begin = min((each.start for each in read), default=0.0)
    end = max((each.start + each.duration for each in read), default=1.0)
    group, groups = _groups(read)
    text_of, meaning = _texts(read)
    communicates = any(each.stream == "communication" for each in read)
    lanes = _TWO_LANES if communicates else _ONE_LANE
    notes = ["upper lane: computing, lower lane: communicating"] if communicates else []
    chosen: dict[str, list[Event]] = {key: [] for key in groups}
    for each in read:
        if each.device in place:
            chosen[group(each)].append(each)
    for number, (key, of_group) in enumerate(chosen.items()):
        _bars(axes, of_group, place, number, key, end - begin, text_of, lanes)
    if meaning and axes.texts:  # there may be no room for any
        notes.append(f"numbers: {meaning}")
    if None in rows:
        notes.append(f"{len(place)} of {len(devices)} devices are drawn")
    axes.set_yticks(
        [row + 0.45 for row in range(len(rows))],
        ["…" if index is None else f"device {devices[index]}" for index in rows],
    )
    axes.set(xlim=(begin, end if end > begin else begin + 1.0), ylim=(max(1, len(rows)), 0))
    axes.set(
        xlabel="time (s)", title="\n".join(filter(None, [label_text(title), "; ".join(notes)]))
    )
    engineering(axes.xaxis, "s")
    axes.tick_params(axis="y", length=0)
    for row in range(1, len(rows)):
        axes.axhline(row - 0.03, color="black", linewidth=0.3)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MOST_IN_LEGEND:
        handles, labels = handles[:_MOST_IN_LEGEND], [*labels[: _MOST_IN_LEGEND - 1], "…"]
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize="small")
    return figure


def _groups(events: Sequence[Event]) -> tuple[Callable[[Event], str], list[str]]:
    """Returns the function that gives an event's colour group, and all groups."""
    if len({each.microbatch for each in events} - {None}) > 1:

        def by_microbatch(event: Event) -> str:
            if event.microbatch is None:
                return event.kind
            return f"microbatch {event.microbatch}"

        numbers = sorted({each.microbatch for each in events if each.microbatch is not None})
        others = dict.fromkeys(each.kind for each in events if each.microbatch is None)
        return by_microbatch, [*(f"microbatch {number}" for number in numbers), *others]
    return (lambda event: event.kind), list(dict.fromkeys(each.kind for each in events))


def _bars(
    axes: Any,
    events: Sequence[Event],
    place: Mapping[int, int],
    number: int,
    label: str,
    width: float,
    text_of: Callable[[Event], str],
    lanes: Mapping[str, tuple[float, float]],
) -> None:
    color = series(number)
    in_legend = "compute" if any(each.stream == "compute" for each in events) else "communication"
    for stream, (offset, height) in lanes.items():
        of_stream = [each for each in events if each.stream == stream]
        axes.barh(
            [place[each.device] + offset + height / 2 for each in of_stream],
            [each.duration for each in of_stream],
            left=[each.start for each in of_stream],
            height=height,
            color=color,
            edgecolor=text_on(color) if stream == "communication" else "black",
            hatch="////" if stream == "communication" else "",
            linewidth=0.5,
            label=label if stream == in_legend else "_",
        )
        for each in of_stream:
            text = text_of(each)
            if stream == "compute" and each.duration > _ROOM * len(text) * width:
                axes.text(
                    each.start + each.duration / 2,
                    place[each.device] + offset + height / 2,
                    text,
                    ha="center",
                    va="center",
                    color=text_on(color),
                    fontsize="x-small",
                )


def _texts(events: Sequence[Event]) -> tuple[Callable[[Event], str], str]:
    """Returns the function that gives an event's label, and the meaning of labels."""
    if len({each.microbatch for each in events} - {None}) < 2:
        return (lambda event: event.name), ""
    stages: dict[int, set[int | None]] = {}
    for each in events:
        stages.setdefault(each.device, set()).add(each.stage)
    if any(len(each - {None}) > 1 for each in stages.values()):
        return (lambda event: _numbers(event.microbatch, event.stage)), "microbatch/stage"
    return (lambda event: _numbers(event.microbatch)), "microbatch"


def _numbers(*numbers: int | None) -> str:
    return "/".join("-" if number is None else str(number) for number in numbers)


def _event(value: Any, index: int) -> Event:
    """An event from an object or a dict."""
    if isinstance(value, Mapping):
        given = dict(value)
    else:
        names = [field.name for field in fields(Event)]
        given = {name: getattr(value, name) for name in names if hasattr(value, name)}
    known = {field.name for field in fields(Event)}
    for name in given:
        if name not in known:
            raise ValueError(
                f"event {index} has the field {name!r}, which events have not"
                f"{did_you_mean(str(name), known)}"
            )
    missing = sorted(known - {"microbatch", "stage"} - set(given))
    if missing:
        raise ValueError(f"event {index} has no {', '.join(missing)}")
    event = Event(**given)
    if event.stream not in STREAMS:
        raise ValueError(
            f"event {index} is on stream {event.stream!r}; streams are {' and '.join(STREAMS)}"
            f"{did_you_mean(str(event.stream), STREAMS)}"
        )
    if not (event.start >= 0 and event.duration >= 0):
        raise ValueError(
            f"event {index} starts at {event.start} and takes {event.duration}; both are at least 0"
        )
    return event
