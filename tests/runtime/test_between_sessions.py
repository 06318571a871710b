"""Weights and states go from the workers of one session to those of another, in memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext._runtime.moved_array import MovedArray, bring
from distir_ext._workers.cuts import Cut

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


def count_fetched(session, monkeypatch):
    """Bytes that the session's workers are asked for from now on."""
    fetched = []
    fetch = session._workers.fetch

    def counting(tensors):
        found = fetch(tensors)
        fetched.extend(each.numpy().nbytes for each in found.values())
        return found

    monkeypatch.setattr(session._workers, "fetch", counting)
    return fetched


@pytest.mark.parametrize(
    ("source", "target", "workers"),
    [
        ("2x2", "tp4", ("threads", "threads")),
        ("tp3", "tp2", ("processes", "threads")),
        ("pp3", "tp2", ("threads", "processes")),
        ("tp2", "tp3", ("threads", "threads")),
    ],
)
def test_weights(source, target, workers, monkeypatch):
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
        fetched = count_fetched(first, monkeypatch)
        model = second.load(executable(target), params=weights)
        assert sum(fetched) == 4 * blocks  # each block once, however many devices hold and need it
        assert sum(each.nbytes for each in weights.values()) <= sum(fetched)
        for name, weight in model.weights().items():
            np.testing.assert_array_equal(weight.numpy(), WEIGHTS[name])
        np.testing.assert_allclose(model(X).numpy(), EXPECTED, rtol=1e-4, atol=1e-5)


def test_boxes_of_an_array(monkeypatch):
    """Of 14 rows in 5, 5 and 4: those that lie across two shards, some with padding, and none."""
    cut = tvm_ffi.get_global_func("distir.runtime.cut_shard")
    with dx.Session(THREE) as session:
        weight = session.load(executable("tp3"), params=WEIGHTS).weights()["w1"]
        array = MovedArray(session._workers, weight.held)
        fetched = count_fetched(session, monkeypatch)
        for begin, extent, needed in [
            ((4, 1), (2, 3), 2),
            ((0, 0), (14, 12), 3),
            ((12, 10), (5, 2), 1),
            ((14, 0), (2, 12), 0),
        ]:
            fetched.clear()
            [[brought]] = bring([[Cut({0: (0, 0)}, {(0, 0): array.shard(begin, extent)})]])
            expected = np.zeros(extent, "float32")
            found = WEIGHTS["w1"][begin[0] : begin[0] + extent[0], begin[1] : begin[1] + extent[1]]
            expected[: found.shape[0]] = found
            np.testing.assert_array_equal(cut(brought[0]).numpy(), expected)
            assert len(fetched) == needed


def test_a_state_goes_on_in_another_session(monkeypatch):
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
        fetched = count_fetched(first, monkeypatch)
        np.testing.assert_allclose(function(state).numpy(), expected, rtol=1e-4, atol=1e-5)
        assert len(fetched) == len(set(state.held.spec.blocks.values()))
        first.close()
        with pytest.raises(ValueError, match=r'input "x".*another session, which is closed'):
            function(state)
