"""Weights and states go from the workers of one session to those of another, in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext._runtime import moved_array
from distir_ext._runtime.moved_array import MovedArray

WIDTHS = [8, 14, 12, 6]
X, WEIGHTS = chain_values(WIDTHS, rows=6)
EXPECTED = chain_result(X, WEIGHTS)
TENSOR_PARALLEL = {"w0": (None, "tp"), "w1": ("tp", None), "w2": (None, "tp")}

SQUARE = dx.Mesh(a=2, b=2)
THREE = dx.Mesh((3,), ("tp",))
MESHES = {
    "2x2": (SQUARE, {"w0": ("a", "b"), "w1": ("b", "a"), "w2": ("a", None)}),
    "tp4": (dx.Mesh((4,), ("tp",)), TENSOR_PARALLEL),
    "tp3": (THREE, TENSOR_PARALLEL),  # 14 is no multiple of 3
    "tp2": (dx.Mesh((2,), ("tp",)), TENSOR_PARALLEL),
    "pp3": (dx.Mesh((3,), ("pp",)), {}),
}


def executable(name):
    mesh, plan = MESHES[name]
    mod = dx.annotate(chain(WIDTHS, rows=6), mesh, plan)
    if "pp" in mesh.axis_names:
        mod = dx.transform.AssignStages(mesh, "pp")(mod)
    return dx.build(mod)


def num_bytes(tensor):
    return int(np.prod(tensor.shape)) * np.dtype(str(tensor.dtype)).itemsize


def count_moved(session, monkeypatch, by_file):
    """Bytes that the session's workers give from now on, all of them to files or none."""
    monkeypatch.setattr(moved_array, "_SMALLEST_IN_FILE", 0 if by_file else 1 << 60)
    moved = []
    fetch, share = session._workers.fetch, session._workers.share

    def fetching(tensors):
        assert not by_file
        moved.extend(num_bytes(each) for each in tensors.values())
        return fetch(tensors)

    def sharing(file, tensors):
        assert by_file
        moved.extend(num_bytes(each) for mine in tensors.values() for each, _ in mine)
        share(file, tensors)

    monkeypatch.setattr(session._workers, "fetch", fetching)
    monkeypatch.setattr(session._workers, "share", sharing)
    return moved


def descriptors():
    """What this process has open in memory."""
    links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [link for link in map(str, links) if "memfd:arrays" in link]


@pytest.mark.parametrize(
    ("source", "target", "workers", "by_file"),
    [
        ("2x2", "tp4", ("threads", "threads"), False),
        ("tp3", "tp2", ("processes", "threads"), True),
        ("tp2", "tp3", ("processes", "processes"), True),
        ("pp3", "tp2", ("threads", "processes"), True),
        ("pp3", "tp2", ("processes", "processes"), False),
        ("tp2", "tp3", ("threads", "threads"), False),
    ],
)
def test_weights(source, target, workers, by_file, monkeypatch):
    with (
        dx.Session(MESHES[source][0], workers=workers[0]) as first,
        dx.Session(MESHES[target][0], workers=workers[1]) as second,
    ):
        weights = first.load(executable(source), params=WEIGHTS).weights()
        blocks = sum(
            np.prod(each.held.spec.local_shape(each.shape))
            * len(set(each.held.spec.blocks.values()))
            for each in weights.values()
        )
        moved = count_moved(first, monkeypatch, by_file)
        model = second.load(executable(target), params=weights)
        assert sum(moved) == 4 * blocks  # each block once, however many devices hold and need it
        assert sum(each.nbytes for each in weights.values()) <= sum(moved)
        assert not descriptors()
        monkeypatch.undo()
        for name, weight in model.weights().items():
            np.testing.assert_array_equal(weight.numpy(), WEIGHTS[name])
        np.testing.assert_allclose(model(X).numpy(), EXPECTED, rtol=1e-4, atol=1e-5)


def test_boxes_of_an_array():
    """Of 14 rows in 5, 5 and 4: those that lie across two shards, some with padding, and none."""
    cut = tvm_ffi.get_global_func("distir.runtime.cut_shard")
    with dx.Session(THREE) as session:
        weight = session.load(executable("tp3"), params=WEIGHTS).weights()["w1"]
        array = MovedArray(session._workers, weight.held)
        for begin, extent, needed in [
            ((4, 1), (2, 3), 2),
            ((0, 0), (14, 12), 3),
            ((12, 10), (5, 2), 1),
            ((14, 0), (2, 12), 0),
        ]:
            box = array.shard(begin, extent)
            found = moved_array._fetch(array, set(box.blocks()))
            assert len(found) == needed
            brought = box.native(found)
            expected = np.zeros(extent, "float32")
            found = WEIGHTS["w1"][begin[0] : begin[0] + extent[0], begin[1] : begin[1] + extent[1]]
            expected[: found.shape[0]] = found
            np.testing.assert_array_equal(cut(brought).numpy(), expected)


@pytest.mark.parametrize("by_file", [True, False])
def test_a_state_goes_on_in_another_session(by_file, monkeypatch):
    """A result, as an input: also where its shards have padding."""
    with (
        dx.Session(THREE, workers="processes") as first,
        dx.Session(MESHES["tp2"][0], workers="processes") as second,
    ):
        mod = dx.annotate(chain([6, 14], rows=6), THREE, {"w0": (None, "tp")})
        w0 = {"w0": WEIGHTS["w0"][:6]}
        state = first.load(dx.build(mod), params=w0)(X[:, :6])
        mesh = MESHES["tp2"][0]
        mod = dx.annotate(chain([14, 6], rows=6), mesh, {"w0": ("tp", None)})
        function = second.load(dx.build(mod), params={"w0": WEIGHTS["w1"][:, :6]})["main"]
        expected = chain_result(X[:, :6], w0 | {"w1": WEIGHTS["w1"][:, :6]})
        moved = count_moved(first, monkeypatch, by_file)
        np.testing.assert_allclose(function(state).numpy(), expected, rtol=1e-4, atol=1e-5)
        assert len(moved) == len(set(state.held.spec.blocks.values()))
        first.close()
        with pytest.raises(ValueError, match=r'input "x".*another session, which is closed'):
            function(state)
