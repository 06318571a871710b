"""Fused weights, such as Q | K | V, under plans without hints: numbers, and bytes sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tvm
from safetensors.numpy import load_file
from tests.targets import QUICK
from tests.unfuse import layer
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.params.stored_array import StoredArray

from .padding.checks import whole

TOKENS, WIDTH, HEADS, GROUPS, SIZE = 4, 32, 6, 2, 4
QUERIES, KEYS = HEADS * SIZE, GROUPS * SIZE
COLUMNS = QUERIES + 2 * KEYS


def function(write: Callable[..., Any], weights: dict[str, tuple[int, ...]]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((TOKENS, WIDTH), "float32"))
    params = [relax.Var(name, relax.TensorType(s, "float32")) for name, s in weights.items()]
    with builder.function("main", [x, *params], {"num_input": 1}):
        with builder.dataflow():
            value = write(lambda each: builder.emit(each), x, *params)
            result = builder.emit_output(builder.normalize(value))
        builder.emit_func_output(result)
    return builder.get()


def fields(emit, parts, count=3):
    return [emit(relax.TupleGetItem(parts, index)) for index in range(count)]


def attention(emit, query, key, value, out, num_heads=HEADS):
    """Of what is (tokens, columns) or (tokens, heads, size) already."""
    heads = []
    for each in (query, key, value):
        each = emit(op.reshape(each, (TOKENS, -1, SIZE)))
        missing = num_heads // int(each.ty.shape[1])
        heads.append(emit(op.repeat(each, missing, 1)) if missing > 1 else each)
    query, key, value = (emit(op.permute_dims(each, [1, 0, 2])) for each in heads)
    scores = emit(op.matmul(query, emit(op.permute_dims(key, [0, 2, 1]))))
    found = emit(op.matmul(emit(op.nn.softmax(scores, -1)), value))
    found = emit(op.reshape(emit(op.permute_dims(found, [1, 0, 2])), (TOKENS, num_heads * SIZE)))
    return op.matmul(found, out)


def split(emit, x, w, out):
    parts = op.split(emit(op.matmul(x, w)), [QUERIES, QUERIES + KEYS], -1)
    return attention(emit, *fields(emit, emit(parts)), out)


def slices(emit, x, w, out):
    points = [0, QUERIES, QUERIES + KEYS, COLUMNS]
    product = emit(op.matmul(x, w))
    parts = [
        emit(op.strided_slice(product, [1], [begin], [end])) for begin, end in pairwise(points)
    ]
    return attention(emit, *parts, out)


def linear(emit, x, w, bias, out):
    """A weight (out, in), as torch has it, with a bias."""
    product = emit(op.add(emit(op.matmul(x, emit(op.permute_dims(w)))), bias))
    return attention(
        emit, *fields(emit, emit(op.split(product, [QUERIES, QUERIES + KEYS], 1))), out
    )


def heads_first(emit, x, w, out):
    """Cut between heads, as MLC's models do."""
    product = emit(op.reshape(emit(op.matmul(x, w)), (TOKENS, HEADS + 2 * GROUPS, SIZE)))
    return attention(emit, *fields(emit, emit(op.split(product, [HEADS, HEADS + GROUPS], 1))), out)


def three_taken(emit, x, w, out):
    """A dimension of three, of which each is taken, as torch's unbind does."""
    product = emit(op.reshape(emit(op.matmul(x, w)), (TOKENS, 3, HEADS, SIZE)))
    product = emit(op.permute_dims(product, [1, 0, 2, 3]))
    parts = [emit(op.take(product, relax.const(index, "int64"), 0)) for index in range(3)]
    return attention(emit, *parts, out)


def converted(emit, x, w, out):
    return split(emit, x, emit(op.astype(emit(op.astype(w, "float64")), "float32")), out)


def gate_and_up(emit, x, w, out):
    gate, up = fields(emit, emit(op.split(emit(op.matmul(x, w)), 2, -1)), 2)
    return op.matmul(emit(op.multiply(emit(op.nn.silu(gate)), up)), out)


COLUMN_PLAN = {"w": (None, "tp"), "out": ("tp", None)}
CASES = {
    "split": (split, {"w": (WIDTH, COLUMNS)}, COLUMN_PLAN, [24, 8, 8]),
    "slices": (slices, {"w": (WIDTH, COLUMNS)}, COLUMN_PLAN, [24, 8, 8]),
    "linear": (
        linear,
        {"w": (COLUMNS, WIDTH), "bias": (COLUMNS,)},
        {"w": ("tp", None), "out": ("tp", None)},
        [24, 8, 8],
    ),
    "heads": (heads_first, {"w": (WIDTH, COLUMNS)}, COLUMN_PLAN, [24, 8, 8]),
    "taken": (three_taken, {"w": (WIDTH, 3 * QUERIES)}, COLUMN_PLAN, [24, 24, 24]),
    "converted": (converted, {"w": (WIDTH, COLUMNS)}, COLUMN_PLAN, [24, 8, 8]),
    "gate": (gate_and_up, {"w": (WIDTH, 2 * QUERIES)}, COLUMN_PLAN, [24, 24]),
}


def case_of(name: str) -> tuple[tvm.IRModule, dict[str, Any], list[int]]:
    write, weights, plan, sizes = CASES[name]
    return function(write, {**weights, "out": (QUERIES, WIDTH)}), plan, sizes


def arrays_of(mod: tvm.IRModule) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        str(each.name): rng.uniform(-0.5, 0.5, [int(s) for s in each.ty.shape]).astype("float32")
        for each in mod["main"].params
    }


def kinds(annotated: tvm.IRModule) -> Counter[str]:
    """Counts the collectives of a program by kind."""
    found: Counter[str] = Counter()
    for each in dx.analysis.collectives(dx.lower(annotated)):
        found[each.kind] += each.count
    return found


def assert_close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert np.linalg.norm(got - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_plan_alone_takes_one_reduction(name, devices, session_of):
    mod, plan, sizes = case_of(name)
    annotated = dx.annotate(mod, dx.Mesh(tp=devices), plan)
    blocks = [each for each in annotated["main"].params if str(each.name).startswith("w_")]
    dim = 0 if name == "linear" else 1
    assert [int(each.ty.shape[dim]) for each in blocks] == sizes
    assert kinds(annotated) == {"all_reduce": 1}
    arrays = arrays_of(mod)
    given = {key: value for key, value in arrays.items() if key != "x"}
    model = session_of((devices,)).load(dx.build(annotated, QUICK), params=given)
    (wanted,) = whole(mod, list(arrays.values()))
    assert_close(model(arrays["x"]).numpy(), wanted)


@pytest.mark.parametrize("order", ["LegalizeOps", "FuseTIR"])
@pytest.mark.parametrize("name", CASES)
def test_behind_passes_of_tvm(name, order, session_of):
    """Kernels of products for all columns, and kernels that cut them."""
    mod, plan, sizes = case_of(name)
    annotated = dx.annotate(layer.after(layer.ORDERS[order], mod), dx.Mesh(tp=3), plan)
    blocks = [each for each in annotated["main"].params if str(each.name).startswith("w_")]
    assert len(blocks) == len(sizes)
    assert kinds(annotated) == {"all_reduce": 1}
    arrays = arrays_of(mod)
    given = {key: value for key, value in arrays.items() if key != "x"}
    model = session_of((3,)).load(dx.build(annotated, QUICK), params=given)
    (wanted,) = whole(mod, list(arrays.values()))
    assert_close(model(arrays["x"]).numpy(), wanted)


@pytest.mark.parametrize("devices", [3, 5, 6, 7])
def test_a_decoder_layer_with_eight_heads_of_keys(devices, session_of):
    """Two reductions, and no device has more than its share of keys and values."""
    columns = [16 * SIZE, 8 * SIZE, 8 * SIZE]

    def write(emit, x, qkv, out, gate_up, down):
        parts = op.split(emit(op.matmul(x, qkv)), [columns[0], columns[0] + columns[1]], -1)
        x = emit(op.add(x, emit(attention(emit, *fields(emit, emit(parts)), out, 16))))
        return op.add(x, emit(gate_and_up(emit, x, gate_up, down)))

    mod = function(
        write,
        {
            "qkv": (WIDTH, sum(columns)),
            "out": (columns[0], WIDTH),
            "gate_up": (WIDTH, 2 * 56),
            "down": (56, WIDTH),
        },
    )
    plan = {"qkv|gate_up": (None, "tp"), "out|down": ("tp", None)}
    annotated = dx.annotate(mod, dx.Mesh(tp=devices), plan)
    assert kinds(annotated) == {"all_reduce": 2}
    lowered = dx.lower(annotated)
    held = {str(each.name): int(each.ty.shape[1]) for each in lowered["main"].params[1:4]}
    assert held["qkv_1"] == held["qkv_2"] == -(-8 // devices) * SIZE
    arrays = arrays_of(mod)
    given = {key: value for key, value in arrays.items() if key != "x"}
    model = session_of((devices,)).load(dx.build(annotated, QUICK), params=given)
    (wanted,) = whole(mod, list(arrays.values()))
    assert_close(model(arrays["x"]).numpy(), wanted)


def test_blocks_in_another_order_are_seen(session_of):
    mod, plan, _ = case_of("gate")
    arrays = arrays_of(mod)
    turned = np.roll(arrays["w"], QUERIES, axis=1)
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=2), plan), QUICK)
    model = session_of((2,)).load(exe, params={"w": turned, "out": arrays["out"]})
    (wanted,) = whole(mod, list(arrays.values()))
    with pytest.raises(AssertionError):
        assert_close(model(arrays["x"]).numpy(), wanted)


def test_a_weight_of_two_stages_in_text(session_of):
    """Names with dots are others once they are printed; each stage has the blocks."""
    name = "layers.0.w"

    def write(emit, x, w, out):
        for _ in range(2):
            x = emit(op.add(x, emit(gate_and_up(emit, x, w, out))))
        return op.multiply(x, x)

    mod = function(write, {name: (WIDTH, 2 * QUERIES), "out": (QUERIES, WIDTH)})
    mesh = dx.Mesh(pp=2, tp=2)
    annotated = dx.annotate(
        mod, mesh, {name.replace(".", r"\."): (None, "tp"), "out": ("tp", None)}
    )
    arrays = arrays_of(mod)
    for program in (annotated, tvm.script.from_source(annotated.script())):
        staged = dx.transform.AssignStages(mesh, "pp")(program)
        names = [str(each.name).replace("_", ".") for each in staged["main"].params]
        assert names.count(f"{name}.0") == 2
        model = session_of((4,)).load(
            dx.build(staged, QUICK), params={name: arrays[name], "out": arrays["out"]}
        )
        (wanted,) = whole(mod, list(arrays.values()))
        assert_close(model(arrays["x"]).numpy(), wanted)


def test_two_axes_and_layers(session_of):
    """Two layers on a mesh of two axes, one of which shards the tokens."""

    def write(emit, x, first, out, second, last):
        x = emit(op.add(x, emit(split(emit, x, first, out))))
        return op.add(x, emit(gate_and_up(emit, x, second, last)))

    mod = function(
        write,
        {
            "first": (WIDTH, COLUMNS),
            "out": (QUERIES, WIDTH),
            "second": (WIDTH, 2 * QUERIES),
            "last": (QUERIES, WIDTH),
        },
    )
    plan = {"first|second": (None, "tp"), "out|last": ("tp", None), "x": ("dp", None)}
    annotated = dx.annotate(mod, dx.Mesh(dp=2, tp=2), plan)
    found = kinds(annotated)
    # Keys and values of all tokens, which are over "dp", and a reduction for each layer.
    assert found == {"all_gather": 1, "all_reduce": 2}
    arrays = arrays_of(mod)
    given = {key: value for key, value in arrays.items() if key != "x"}
    model = session_of((2, 2)).load(dx.build(annotated, QUICK), params=given)
    (wanted,) = whole(mod, list(arrays.values()))
    assert_close(model(arrays["x"]).numpy(), wanted)


class Weights:
    """Weights for loading, by name or in order."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = {key: value for key, value in arrays.items() if key != "x"}

    def by_name(self, path: Any) -> Any:
        return self.arrays

    def in_order(self, path: Any) -> Any:
        return list(self.arrays.values())

    def by_function(self, path: Any) -> Any:
        return {"main": self.in_order(path)}

    def of_tvm(self, path: Any) -> Any:
        return {key: tvm.runtime.tensor(value) for key, value in self.arrays.items()}

    def blocks(self, path: Any) -> Any:
        first, second = np.split(self.arrays["w"], 2, axis=1)
        return {"w_1": second, "w_0": first, "out": self.arrays["out"]}

    def file(self, path: Any) -> Any:
        tvm.runtime.save_param_dict_to_file(self.of_tvm(path), str(path / "model.params"))
        return path / "model.params"


@pytest.mark.parametrize("form", ["by_name", "in_order", "by_function", "of_tvm", "blocks", "file"])
def test_forms_of_the_weights(form, session_of, tmp_path):
    mod, plan, _ = case_of("gate")
    arrays = arrays_of(mod)
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=3), plan), QUICK)
    model = session_of((3,)).load(exe, params=getattr(Weights(arrays), form)(tmp_path))
    (wanted,) = whole(mod, list(arrays.values()))
    assert_close(model(arrays["x"]).numpy(), wanted)
    assert list(model.weights()) == ["w_0", "w_1", "out"]
    again = session_of((3,)).load(exe, params=model.weights())
    assert_close(again(arrays["x"]).numpy(), wanted)


def test_weights_are_whole_in_files_for_others(session_of, tmp_path):
    mod, plan, _ = case_of("linear")
    arrays = arrays_of(mod)
    given = {key: value for key, value in arrays.items() if key != "x"}
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=3), plan), QUICK)
    session_of((3,)).load(exe, params=given).save_safetensors(tmp_path, rename={"w": "qkv.weight"})
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == {"qkv.weight", "bias", "out"}
    for name, value in {**given, "qkv.weight": given["w"]}.items():
        if name != "w":
            np.testing.assert_array_equal(found[name], value)


def test_weights_of_other_sessions(session_of, tmp_path):
    """Of a mesh of another size, which has the same blocks; and of a plan that cuts nothing."""
    mod, plan, _ = case_of("gate")
    arrays = arrays_of(mod)
    (wanted,) = whole(mod, list(arrays.values()))
    given = {key: value for key, value in arrays.items() if key != "x"}
    exes = [dx.build(dx.annotate(mod, dx.Mesh(tp=n), plan), QUICK) for n in (1, 2)]
    whole_exe = dx.build(dx.annotate(mod, dx.Mesh(tp=2), {"out": ("tp", None)}), QUICK)
    one = session_of((1,)).load(exes[0], params=given)
    two = session_of((2,)).load(exes[1], params=one.weights())
    two.save_shards(tmp_path)
    uncut = session_of((2,)).load(whole_exe, params=given)
    assert list(uncut.weights()) == ["w", "out"]
    for model in (
        one,
        two,
        session_of((1,)).load(exes[0], params=tmp_path),
        session_of((2,)).load(exes[1], params=uncut.weights()),
    ):
        assert_close(model(arrays["x"]).numpy(), wanted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["out"], r'no value was given for weight "w" \(1 of 2\)'),
        (["w_0", "out"], r'no value was given for weight "w" \(1 of 2\)'),
        (
            ["w", "out", "v"],
            r'the executable has no weight "v", which was given; it has "w", "out"',
        ),
        (["w", "w_0", "out"], r'the executable has no weight "w_0", which was given'),
    ],
)
def test_messages_name_the_weight_of_the_user(given: Sequence[str], message: str, session_of):
    mod, plan, _ = case_of("gate")
    arrays = arrays_of(mod)
    arrays.update(v=arrays["out"], w_0=arrays["w"][:, :QUERIES])
    exe = dx.build(dx.annotate(mod, dx.Mesh(tp=2), plan), QUICK)
    with pytest.raises(ValueError, match=message):
        session_of((2,)).load(exe, params={name: arrays[name] for name in given})
    short = {"w": arrays["w"][:, 1:], "out": arrays["out"]}
    with pytest.raises(
        ValueError, match=r"weight w has the shape \[32, 47\]: dimension 1 is to be"
    ):
        session_of((2,)).load(exe, params=short)


def test_workers_read_their_part_of_a_block(tmp_path):
    """A block of a file is a place in the file: nothing is read before a worker does."""
    (tmp_path / "w").write_bytes(np.arange(24, dtype="float32").tobytes())
    stored = StoredArray("w", tmp_path / "w", 0, (4, 6), "float32", "float32")
    block = stored.part(1, 2, 5)
    assert (block.shape, block.num_bytes, block.num_stored_bytes) == ((4, 3), 48, 96)
    wanted = np.arange(24, dtype="float32").reshape(4, 6)[:, 2:5]
    np.testing.assert_array_equal(block.numpy(), wanted)
    np.testing.assert_array_equal(block.part(0, 1, 3).numpy(), wanted[1:3])
