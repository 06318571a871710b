"""A vocabulary that devices do not divide: embedding and logits of 32003 words."""

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx

WORDS, HIDDEN, TOKENS = 32003, 16, (2, 5)
PLAN = {"embed|head": ("tp", None)}


def model(is_tied=False, gathers=None):
    """main(ids, embed, head): logits and their softmax; one weight for both if tied.

    The logits are replicated on the mesh ``gathers``, where there is one.
    """
    weights = ["embed"] if is_tied else ["embed", "head"]
    ids = relax.Var("ids", relax.TensorType(TOKENS, "int64"))
    params = {
        name: relax.Var(name, relax.TensorType((WORDS, HIDDEN), "float32")) for name in weights
    }
    builder = relax.BlockBuilder()
    emit = builder.emit
    with builder.function("main", [ids, *params.values()], attrs={"num_input": 1}):
        with builder.dataflow():
            flat = emit(op.reshape(ids, (TOKENS[0] * TOKENS[1],)))
            x = emit(op.reshape(emit(op.take(params["embed"], flat, 0)), (*TOKENS, HIDDEN)))
            head = emit(op.permute_dims(params[weights[-1]]))
            logits = emit(op.matmul(emit(op.nn.silu(x)), head))
            if gathers is not None:
                logits = emit(dx.constrain(logits, gathers, (None, None, None)))
            chances = emit(op.nn.softmax(logits))
            result = builder.emit_output(relax.Tuple([logits, chances]))
        builder.emit_func_output(result)
    return builder.get()


def by_numpy(ids, embed, head):
    x = embed[ids]
    logits = (x / (1 + np.exp(-x))) @ head.T
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    return logits, chances / chances.sum(-1, keepdims=True)


def sent(mod, mesh):
    """Lists (kind, bytes sent per device) of each collective."""
    return [
        (each.kind, each.bytes_per_device)
        for each in dx.analysis.collectives(dx.lower(dx.annotate(mod, mesh, PLAN)))
        for _ in range(each.count)
    ]


def reduced(devices, elements):
    return ("all_reduce", -(-2 * (devices - 1) * elements * 4 // devices))


@pytest.mark.parametrize("is_tied", [False, True], ids=["two weights", "tied"])
@pytest.mark.parametrize("devices", [3, 5, 7])
def test_numbers(session_of, devices, is_tied):
    """The last words are on the device with padding, and are looked up."""
    mesh = dx.Mesh(tp=devices)
    lowered = dx.lower(dx.annotate(model(is_tied), mesh, PLAN))
    words = -(-WORDS // devices)
    assert all(int(each.ty.shape[0]) == words for each in lowered["main"].params[1:])
    rng = np.random.default_rng(0)
    ids = rng.integers(0, WORDS, TOKENS)
    ids[0, :3] = 0, WORDS - 1, words
    weights = [rng.standard_normal((WORDS, HIDDEN)).astype("float32") for _ in range(2 - is_tied)]
    loaded = session_of(mesh.shape).load(dx.build(lowered, QUICK), params=weights)
    for got, wanted in zip(
        loaded["main"](ids), by_numpy(ids, weights[0], weights[-1]), strict=True
    ):
        assert got.numpy().shape == (*TOKENS, WORDS)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_tied", [False, True], ids=["two weights", "tied"])
@pytest.mark.parametrize("devices", [3, 5, 7])
def test_nothing_of_the_vocabulary_is_sent(devices, is_tied):
    """One sum of what is looked up; of the softmax a maximum and a sum per token."""
    tokens = TOKENS[0] * TOKENS[1]
    assert sent(model(is_tied), dx.Mesh(tp=devices)) == [
        reduced(devices, tokens * HIDDEN),
        reduced(devices, tokens),
        reduced(devices, tokens),
    ]


@pytest.mark.parametrize("devices", [3, 7])
def test_logits_that_are_wanted_replicated_are_gathered_once(devices):
    mesh = dx.Mesh(tp=devices)
    tokens = TOKENS[0] * TOKENS[1]
    words = -(-WORDS // devices)
    assert sent(model(gathers=mesh), mesh) == [
        reduced(devices, tokens * HIDDEN),
        ("all_gather", (devices - 1) * tokens * words * 4),
    ]
