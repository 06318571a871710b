"""Moves weights and states from the workers of one session to those of another, in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext.params.host_array import host_array
from distir_ext.params.process_memory import process_memory
from distir_ext.params.stored_array import MappedFiles, StoredArray
from distir_ext.session import moved_array
from distir_ext.session.moved_array import MovedArray

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


def count_moved(session, monkeypatch, way, readers):
    """Bytes that the session's workers give from now on: all fetched, by a file, or in place."""
    monkeypatch.setattr(moved_array, "_SMALLEST_IN_MEMORY", 1 << 60 if way == "fetch" else 0)
    if way == "file":  # as where the system lets nobody read
        monkeypatch.setattr(readers._workers, "can_read", lambda places: False)
    moved = []
    fetch, share, addresses = (
        getattr(session._workers, name) for name in ("fetch", "share", "addresses")
    )

    def fetching(tensors):
        assert way == "fetch"
        moved.extend(num_bytes(each) for each in tensors.values())
        return fetch(tensors)

    def sharing(file, tensors):
        assert way == "file"
        moved.extend(num_bytes(each) for mine in tensors.values() for each, _ in mine)
        share(file, tensors)

    def showing(tensors):
        assert way != "fetch"
        if way == "place":
            moved.extend(num_bytes(each) for mine in tensors.values() for each in mine)
        return addresses(tensors)

    monkeypatch.setattr(session._workers, "fetch", fetching)
    monkeypatch.setattr(session._workers, "share", sharing)
    monkeypatch.setattr(session._workers, "addresses", showing)
    return moved


def descriptors():
    """Lists the in-memory files that this process has open."""
    links = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return [link for link in map(str, links) if "memfd:arrays" in link]


@pytest.mark.parametrize(
    ("source", "target", "workers", "way"),
    [
        ("2x2", "tp4", ("threads", "threads"), "fetch"),
        ("tp3", "tp2", ("processes", "threads"), "file"),
        ("tp2", "tp3", ("processes", "threads"), "place"),
        ("tp2", "tp3", ("processes", "processes"), "file"),
        ("2x2", "tp3", ("processes", "processes"), "place"),
        ("pp3", "tp2", ("threads", "processes"), "file"),
        ("tp3", "2x2", ("threads", "processes"), "place"),
        ("pp3", "tp2", ("processes", "processes"), "fetch"),
        ("tp2", "tp3", ("threads", "threads"), "fetch"),
    ],
)
def test_weights(source, target, workers, way, monkeypatch):
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
        moved = count_moved(first, monkeypatch, way, second)
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


@pytest.mark.parametrize("way", ["place", "file", "fetch"])
def test_a_state_goes_on_in_another_session(way, monkeypatch):
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
        moved = count_moved(first, monkeypatch, way, second)
        np.testing.assert_allclose(function(state).numpy(), expected, rtol=1e-4, atol=1e-5)
        assert len(moved) == len(set(state.held.spec.blocks.values()))
        first.close()
        with pytest.raises(ValueError, match=r'input "x".*another session, which is closed'):
            function(state)


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ((3, 5, 7), [((0, 0, 0), (3, 5, 7)), ((1, 2, 3), (2, 2, 3)), ((2, 4, 6), (2, 2, 2))]),
        ((40, 3000), [((3, 100), (30, 2800)), ((0, 2990), (40, 2))]),  # near rows, and distant ones
        ((2, 90000), [((0, 1), (2, 89000))]),  # rows larger than the buffer
        ((1500, 2048), [((0, 5), (1500, 3))]),  # more rows than the system takes at a time
    ],
)
def test_boxes_of_another_process(shape, cuts):
    """As boxes of this process's memory, also beyond the array, which is zero there."""
    cut = tvm_ffi.get_global_func("distir.runtime.cut_shard")
    values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    with dx.Session(2, workers="processes") as session:
        (held,), _ = session._workers.hold(
            "hold", [[host_array(values).shard((0,) * values.ndim, shape)], []]
        )
        where = session._workers.addresses({0: [held]})[0]
        stored = StoredArray(
            "moved", process_memory(where.process), where.begins[0], shape, "float32", "float32"
        )
        assert session._workers.can_read([(where.process, where.begins[0])])
        assert not session._workers.can_read([(where.process, 8)])
        for begin, extent in cuts:
            found = cut(MappedFiles().native(stored.shard(begin, extent))).numpy()
            expected = cut(host_array(values).shard(begin, extent)).numpy()
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(RuntimeError, match="cannot be read: No such process; the worker"):
        stored.numpy()


@pytest.mark.large
def test_whose_memory_is_read_is_heard_from(monkeypatch):
    """A worker that ends while others read: its number may be another process's then."""
    with (
        dx.Session(MESHES["tp2"][0], workers="processes") as first,
        dx.Session(THREE, workers="processes") as second,
    ):
        weights = first.load(executable("tp2"), params=WEIGHTS).weights()
        count_moved(first, monkeypatch, "place", second)
        keep = second._workers.keep

        def keeping(*arguments):
            found = keep(*arguments)
            first._workers._started.hosts[0].kill()
            return found

        monkeypatch.setattr(second._workers, "keep", keeping)
        with pytest.raises(dx.WorkerError, match="SIGKILL"):
            second.load(executable("tp3"), params=weights)
        monkeypatch.undo()
        model = second.load(executable("tp3"), params=WEIGHTS)  # it goes on
        np.testing.assert_allclose(model(X).numpy(), EXPECTED, rtol=1e-4, atol=1e-5)
