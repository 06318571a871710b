"""Makes a table of the traffic of workers."""

from __future__ import annotations

from typing import Any

from distir_ext.session.statistics import Statistics
from distir_ext.text.tables import amount, new_table


def traffic_table(statistics: Statistics) -> Any:
    """Sent and received bytes and messages, by collective."""
    columns = ("function", "collective", "axes", "devices", "calls", "sent", "received", "messages")
    table = new_table("sent and received, by the device that sends most", *columns, texts=3)
    groups: dict[tuple[str, str, str], dict[int, list[int]]] = {}
    for each in statistics.traffic:
        key = (each.function, each.kind, ", ".join(each.axes))
        counts = groups.setdefault(key, {}).setdefault(each.device, [0, 0, 0, 0])
        mine = (each.calls, each.bytes_sent, each.bytes_received, each.messages)
        counts[:] = [old + new for old, new in zip(counts, mine, strict=True)]
    for key, by_device in groups.items():
        calls, sent, received, messages = max(by_device.values(), key=lambda each: each[1:3])
        table.add_row(
            *key,
            str(len(by_device)),
            str(calls),
            amount(sent, "B"),
            amount(received, "B"),
            str(messages),
        )
    return table
