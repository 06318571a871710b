"""Bytes that programs send, beside what a textbook counts."""

from __future__ import annotations

import pytest

from . import pieces, uneven, whole

TABLES = {"pieces": pieces.table, "uneven": uneven.table, "whole": whole.table}


@pytest.mark.parametrize("name", TABLES)
def test_devices_send_what_a_textbook_counts(name):
    wrong, seen = [], set()
    for row in TABLES[name]():
        assert row.what not in seen, row.what
        seen.add(row.what)
        found, wanted = row.measured(), row.right if row.sent is None else row.sent
        if not abs(found - wanted) <= 0.002 * wanted + 8:
            wrong.append(f"{row.what}: {found:,} bytes, {wanted:,} wanted, right {row.right:,}")
    assert seen
    assert not wrong, "\n".join(wrong)
