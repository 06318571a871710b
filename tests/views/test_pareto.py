"""The Pareto front, against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distir_ext.views.drawing.pareto import Point, draw, front


def is_beaten(point, points):
    return any(
        other.seconds <= point.seconds
        and other.memory <= point.memory
        and (other.seconds, other.memory) != (point.seconds, point.memory)
        for other in points
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_no_point_of_the_front_is_beaten_and_all_others_are(pairs):
    points = [Point(str(i), t, m, 0) for i, (t, m) in enumerate(pairs)]
    expected = {point for point in points if not is_beaten(point, points)}
    found = front(points)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert [each.seconds for each in found] == sorted(each.seconds for each in found)


def test_all_points_are_drawn_and_the_front_is_marked():
    points = [
        Point("fast", 1.0, 9e9, 5.0),
        Point("small", 3.0, 2e9, 9.0),
        Point("bad", 3.0, 9e9, 1.0),
    ]
    figure = draw(points, capacity=8e9, title="choices")
    axes, colors = figure.axes
    marked, drawn = axes.collections
    assert drawn.get_offsets().tolist() == [[each.seconds, each.memory] for each in points]
    assert marked.get_offsets().tolist() == [[1.0, 9e9], [3.0, 2e9]]
    assert list(drawn.get_array()) == [5.0, 9.0, 1.0]
    labels = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert labels == {"fast": "bold", "small": "bold", "bad": "normal"}
    line, limit = axes.lines
    assert list(line.get_xdata()) == [1.0, 3.0]
    assert list(limit.get_ydata()) == [8e9, 8e9]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time (s)", "memory of a device (B)")
    assert colors.get_ylabel() == "sent by a device (B)"


def test_labels_of_points_that_are_near_do_not_lie_on_each_other():
    points = [Point(f"configuration {i}", 1 + i / 100, 9e9, 5.0) for i in range(4)]
    figure = draw([*points, Point("far", 3.0, 2e9, 9.0)])
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 5
    overlaps = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert overlaps == []


def test_without_points_there_is_no_picture():
    with pytest.raises(ValueError, match="no point is given"):
        draw([])
