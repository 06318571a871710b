"""Events on devices as a trace for Perfetto and ``chrome://tracing``.

The format is the JSON of "Trace Event Format" (Google, 2016): complete events (``"ph": "X"``) with
times in microseconds, and metadata events (``"ph": "M"``) that name processes and threads. A device
is a process, a stream of it a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TraceEvent:
    """What a device does for some time."""

    device: int
    """Its id."""

    stream: str
    """The row that it is shown in, as ``"compute"``."""

    name: str
    """What is written on it."""

    category: str
    """What it is coloured and filtered by, as ``"kernel"``."""

    start: float
    """In seconds."""

    duration: float
    """In seconds."""

    details: Mapping[str, Any] = field(default_factory=dict)
    """What is shown when it is clicked on."""


def write_trace(path: str | os.PathLike[str], events: Iterable[TraceEvent], title: str) -> None:
    """Writes a trace that https://ui.perfetto.dev opens.

    Args:
        path: A file that is made or replaced.
        events: In any order; those of a device and stream do not overlap, or lie in each other.
        title: What it is of.

    Raises:
        OSError: The file cannot be written.
    """
    rows: list[dict[str, Any]] = []
    streams: dict[tuple[int, str], int] = {}
    for event in events:
        thread = streams.setdefault((event.device, event.stream), len(streams) + 1)
        rows.append(
            {
                "ph": "X",
                "name": event.name,
                "cat": event.category,
                "ts": event.start * 1e6,
                "dur": event.duration * 1e6,
                "pid": event.device,
                "tid": thread,
                "args": dict(event.details),
            }
        )
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"device {device}"}}
        for device in sorted({device for device, _ in streams})
    ]
    named += [
        {"ph": "M", "name": "thread_name", "pid": device, "tid": thread, "args": {"name": stream}}
        for (device, stream), thread in streams.items()
    ]
    trace = {"traceEvents": named + rows, "displayTimeUnit": "ms", "otherData": {"title": title}}
    Path(path).write_text(json.dumps(trace), encoding="utf-8")
