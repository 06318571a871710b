"""Tensors that grow from call to call, in place, which those that hold them never see."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

APPEND = tvm_ffi.get_global_func("distir.runtime.append")


def tensor(*shape, dtype="float32"):
    generator = np.random.default_rng(len(shape) + sum(shape))
    return tvm.runtime.tensor((generator.standard_normal(shape) * 50).astype(dtype))


def address(x):
    return np.from_dlpack(x).ctypes.data


def test_equals_numpy_and_leaves_what_it_was_given():
    for dtype in ("float32", "float16", "int8", "bool"):
        for shape, axis in [
            ((5, 3, 2), 0),
            ((1, 5, 3), 1),
            ((1, 1, 6), 2),
            ((2, 5, 3), 1),
            ((2, 1, 7), 2),
            ((4,), 0),
            ((0, 3), 0),
            ((3, 0), 0),
            ((2, 0, 3), 1),
        ]:
            held = [tensor(*shape, dtype=dtype)]
            wanted = [held[0].numpy()]
            for size in (1, 3, 0, 40, 1, 1):
                more = [size if d == axis else each for d, each in enumerate(shape)]
                added = tensor(*more, dtype=dtype)
                held.append(APPEND(held[-1], added, axis))
                wanted.append(np.concatenate([wanted[-1], added.numpy()], axis))
            for found, expected in zip(held, wanted, strict=True):
                np.testing.assert_array_equal(found.numpy(), expected)


def test_memory_is_shared_until_there_is_no_room():
    first = APPEND(tensor(800, 4), tensor(1, 4), 0)
    second = APPEND(first, tensor(1, 4), 0)
    assert address(second) == address(first)
    other = APPEND(first, tensor(2, 4), 0)  # another end of the same beginning
    assert address(other) != address(first)
    np.testing.assert_array_equal(second.numpy()[:801], other.numpy()[:801])
    np.testing.assert_array_equal(second.numpy()[801:], tensor(1, 4).numpy())
    np.testing.assert_array_equal(other.numpy()[801:], tensor(2, 4).numpy())
    longest, addresses = second, set()
    for _ in range(800):
        longest = APPEND(longest, tensor(1, 4), 0)
        addresses.add(address(longest))
    assert len(addresses) < 10
    rows = tensor(1, 4).numpy()
    np.testing.assert_array_equal(longest.numpy()[802:], np.repeat(rows, 800, 0))


def test_threads_that_extend_the_same_tensor_have_ends_of_their_own():
    first = APPEND(tensor(300, 4), tensor(1, 4), 0)
    found = {}

    def extend(number):
        mine = first
        for _ in range(50):
            mine = APPEND(mine, tvm.runtime.tensor(np.full((1, 4), number, "float32")), 0)
        found[number] = mine.numpy()[301:]

    threads = [threading.Thread(target=extend, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(found) == list(range(4))
    for number, rows in found.items():
        assert (rows == number).all()


def test_errors():
    for left, right, axis in [((3, 4), (3, 5), 0), ((3, 4), (4,), 0), ((3, 4), (3, 4), 2)]:
        with pytest.raises(ValueError, match=r"append: .* does not fit behind"):
            APPEND(tensor(*left), tensor(*right), axis)
    with pytest.raises(ValueError, match="does not fit"):
        APPEND(tensor(3, 4), tensor(3, 4, dtype="float16"), 0)


@I.ir_module
class Grows:
    """Caches that are returned longer, with what is computed of them; joined weights stay."""

    @R.function
    def main(
        x: R.Tensor((1, 4, 6), "float32"),
        caches: R.Tuple(R.Tensor(("n", 4, 6), "float32"), R.Tensor((4, "n", 6), "float32")),
        w: R.Tensor((2, 6), "float32"),
    ):
        R.func_attr({"num_input": 2})
        n = T.int64()
        with R.dataflow():
            cache = caches[0]
            longer = R.concat((cache, x), axis=0)
            other = caches[1]
            turned = R.permute_dims(x, axes=[1, 0, 2])
            also = R.concat((other, turned), axis=-2)
            both = R.concat((w, w), axis=0)
            y = R.sum(longer, axis=[0])
            z = R.matmul(R.sum(also, axis=[1]), R.permute_dims(both))
            gv = ((y, z), (longer, also))
            R.output(gv)
        return gv


def test_caches_of_a_program_grow_in_place_on_workers():
    mesh = dx.Mesh((2, 2), ("a", "b"))
    generator = np.random.default_rng(0)
    w = generator.standard_normal((2, 6)).astype("float32")
    rows = generator.standard_normal((12, 4, 6)).astype("float32")
    for plan in (
        {"x": (None, None, None)},
        {"x": (None, "a", None)},
        {"x": (None, None, ("a", "b"))},
    ):
        executable = dx.build(dx.annotate(Grows, mesh, plan))
        with dx.Session(mesh) as session:
            function = session.load(executable, params={"w": w})["main"]
            caches = (rows[:3], np.ascontiguousarray(rows[:3].transpose(1, 0, 2)))
            steps = []
            for at in range(3, 12):
                (y, z), caches = function(rows[at : at + 1], caches)
                steps.append((at, y, z, caches))
            again = function(rows[3:4], steps[0][3])[1]  # another end of the first cache
            places = {address(next(iter(each[3][0].shards.values()))) for each in steps[2:]}
            # Shards that are padded are cut anew for every call.
            assert (len(places) == 1) == ((None, None, ("a", "b")) not in plan.values())
            for at, y, z, (longer, also) in steps:
                seen = rows[: at + 1]
                np.testing.assert_array_equal(longer.numpy(), seen)
                np.testing.assert_array_equal(also.numpy(), seen.transpose(1, 0, 2))
                np.testing.assert_allclose(y.numpy(), seen.sum(0), rtol=1e-5, atol=1e-5)
                wanted = seen.sum(0) @ np.concatenate([w, w]).T
                np.testing.assert_allclose(z.numpy(), wanted, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(again[0].numpy(), np.concatenate([rows[:4], rows[3:4]]))


def test_only_what_is_returned_grows():
    text = dx.transform.AppendInPlace()(Grows).script()
    assert text.count("distir.runtime.append") == 2
    assert text.count("R.concat") == 1
