"""Traffic counts of workers, compared with rings and pieces that are followed one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import distir_ext as dx
from distir_ext.mesh.mesh_axes import MeshAxes, NamedMesh
from distir_ext.session.statistics import parse_traffic, read_statistics, reset_statistics


def ring_all_gather(n, sizes):
    """Bytes that each member sends: in each of n-1 turns the block that it got last."""
    sent = [0] * n
    for turn in range(n - 1):
        for member in range(n):
            sent[member] += sizes[(member - turn) % n]
    return sent


def ring_reduce_scatter(n, sizes):
    """In each of n-1 turns the block that is reduced next by the neighbour."""
    sent = [0] * n
    for turn in range(n - 1):
        for member in range(n):
            sent[member] += sizes[(member - turn - 1) % n]
    return sent


def expected(kind, n, bytes_of_x):
    blocks = [bytes_of_x // n + (i < bytes_of_x % n) for i in range(n)]
    if kind == "all_gather":
        return max(ring_all_gather(n, [bytes_of_x] * n)), n - 1
    if kind == "reduce_scatter":
        return max(ring_reduce_scatter(n, blocks)), n - 1
    if kind == "all_to_all":
        return sum(sorted(blocks, reverse=True)[: n - 1]), n - 1  # a block to everybody else
    halves = zip(ring_reduce_scatter(n, blocks), ring_all_gather(n, blocks), strict=True)
    return max(map(sum, halves)), 2 * (n - 1)


# Arguments behind the groups, and the shape of the output for x of shape (2 * n, 3).
CALLS = {
    "all_reduce": (("sum",), lambda n: (2 * n, 3)),
    "all_gather": ((0,), lambda n: (2 * n * n, 3)),
    "reduce_scatter": ((0, "sum"), lambda n: (2, 3)),
    "all_to_all": ((0, 1), lambda n: (2, 3 * n)),
}


@pytest.mark.parametrize("kind", CALLS)
def test_groups_count_what_a_ring_sends(runner_of, groups, kind):
    runner, n = runner_of(sum(map(len, groups))), len(groups[0])
    args, shape_of = CALLS[kind]
    xs = [np.ones((2 * n, 3), "float32")] * runner.num_workers
    reset_statistics(runner.workers)
    for _ in range(2):
        runner(kind, xs, (json.dumps(groups), *args), [shape_of(n)] * runner.num_workers)
    found = read_statistics(runner.workers, []).of_devices(*range(runner.num_workers))
    sent, messages = expected(kind, n, 2 * n * 3 * 4)
    assert len(found.traffic) == runner.num_workers
    for each in found.traffic:
        (group,) = (group for group in groups if each.device in group)
        assert (each.kind, list(each.peers), each.calls) == (kind, group, 2)
        assert each.bytes_sent == each.bytes_received == 2 * sent
        assert each.messages == 2 * messages


def layout(devices, dims):
    return {"devices": [[device, 1, 1] for device in devices], "dims": dims}


def test_transfers_count_the_pieces_for_others(runner_of):
    """Rows on devices 0 and 1 become columns on 1 and 2; device 1 keeps a piece."""
    runner = runner_of(3)
    plan = {
        "channel": 5,
        "shape": [4, 6],
        "source": layout([0, 1], [[[1, 2]], []]),
        "target": layout([1, 2], [[], [[1, 2]]]),
    }
    x = np.arange(12, dtype="float64").reshape(2, 6)
    reset_statistics(runner.workers)
    text = json.dumps(plan)
    runner.calls(
        [("send", (x, text), None), ("transfer", (x, text), (4, 3)), ("recv", (text,), (4, 3))]
    )
    found = read_statistics(runner.workers, []).of_devices(0, 1, 2)
    piece = 2 * 3 * 8
    assert [
        (each.kind, each.bytes_sent, each.bytes_received, each.messages, each.peers)
        for each in found.traffic
    ] == [
        ("send", 2 * piece, 0, 2, ()),
        ("transfer", piece, piece, 1, (0,)),
        ("recv", 0, 2 * piece, 0, (0, 1)),
    ]
    assert found.by_kind() == {"send": 2 * piece, "transfer": piece, "recv": 0}
    assert {each.axes for each in found.traffic} == {()}


def test_functions_are_told_apart_and_counts_begin_again():
    mesh = dx.Mesh((2, 2), ("dp", "tp"))
    programs = {"first": ("tp", "dp"), "second": ("dp", "tp")}
    with dx.Session(mesh) as session:
        for name, axes in programs.items():
            model = session.load(dx.build(product(name, mesh, axes)))
            model(np.ones((8, 8), "float32"), np.ones((8, 8), "float32"))
        found = session.statistics()
        assert {each.function for each in found.traffic} == set(programs)
        # Of the sum of (4, 8) float32 each of two devices sends its half twice.
        assert found.of_function("first").by_axis() == {"dp": 4 * 8 * 4}
        assert found.by_axis() == {"dp": 4 * 8 * 4, "tp": 4 * 8 * 4}
        assert (found.collectives, found.bytes_sent) == (2, 2 * 4 * 8 * 4)
        text = str(found)
        assert "first" in text
        assert "256 B" not in text
        assert found._repr_html_().count("<tr>") == 3
        assert found.rows()[0]["axes"] == "dp"
        with pytest.raises(KeyError, match=r"'third' has not communicated, only \['first'"):
            found.of_function("third")
        session.reset_statistics()
        assert session.statistics().traffic == ()
    for ask in (session.statistics, session.reset_statistics):
        with pytest.raises(RuntimeError, match="the session is closed"):
            ask()


def product(name, mesh, axes):
    from tvm import relax

    rows, inner = axes
    builder = relax.BlockBuilder()
    x, w = (relax.Var(each, relax.TensorType((8, 8), "float32")) for each in "xw")
    with builder.function(name, [x, w]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
    return dx.annotate(builder.get(), mesh, {"x": (rows, inner), "w": (inner, None)}, func=name)


@pytest.mark.parametrize("answer", [None, [[1, 2]], [["f", "all_reduce", "[]", [9], 0, 0, 0, 0]]])
def test_what_is_no_answer_is_refused(answer):
    axes = MeshAxes([NamedMesh((2,), ("tp",), (0, 1))])
    with pytest.raises(ValueError, match="device 1 does not say what it has sent"):
        parse_traffic(answer, 1, (0, 1), axes)
