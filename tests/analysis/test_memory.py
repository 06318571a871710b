"""Peak memory is what TVM's virtual machine really holds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tvm
from tests.analysis.programs import CPU, function, on, on_two
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

SHAPE = (8, 16)
BYTES = 4 * 8 * 16


class HeldStorages:
    """An instrument of a virtual machine: bytes of storages that anybody but it refers to."""

    def __init__(self):
        self._known = []
        self.sizes = []
        self.peak = 0

    def __call__(self, called, name, before_run, result, *arguments):
        del called
        if name == "vm.builtin.alloc_storage" and not before_run:
            size = int(next(iter(arguments[1])))
            self._known.append((result, size))
            self.sizes.append(size)
        held = sum(size for storage, size in self._known if _references(storage) > 1)
        if name.startswith("vm.builtin.") and not name.endswith(("alloc_storage", "alloc_tensor")):
            return  # between kernels, what is forgotten is forgotten one by one
        self.peak = max(self.peak, held)


def _references(value):
    """Reference count of an object: the low half of the first word of every tvm-ffi object."""
    return ctypes.c_uint64.from_address(value.__chandle__()).value & 0xFFFFFFFF


def run(mod, shapes):
    """Runs a worker's program alone, and records the storages that it holds."""
    machine = relax.VirtualMachine(dx.build(mod, blas=True), tvm.cpu())
    held = HeldStorages()
    machine.set_instrument(held)
    machine["main"](*(tvm.runtime.tensor(np.ones(shape, "float32")) for shape in shapes))
    return held


def chain(emit, x):
    for _ in range(4):
        x = emit(op.nn.softmax(x))
    return x


def residual(emit, x):
    y = emit(op.nn.softmax(x))
    z = emit(op.nn.softmax(emit(op.nn.softmax(y))))
    return op.add(emit(op.sum(y, 1)), emit(op.sum(z, 1)))


def views(emit, x):
    y = emit(op.reshape(emit(op.nn.softmax(x)), (16, 8)))
    z = emit(op.nn.softmax(emit(op.nn.softmax(y))))
    return op.matmul(emit(op.permute_dims(y)), z)


def several_results(emit, x):
    y, z = (emit(op.nn.softmax(each)) for each in (x, emit(op.exp(x))))
    return relax.Tuple([y, emit(op.sum(emit(op.nn.softmax(z)), 1)), y])


def parts(emit, x):
    both = emit(op.split(emit(op.nn.softmax(x)), 2, axis=1))
    left, right = (emit(relax.TupleGetItem(both, i)) for i in (0, 1))
    return op.nn.softmax(emit(op.subtract(left, emit(op.nn.softmax(right)))))


def growing(emit, x):
    wide = emit(op.concat([emit(op.nn.softmax(x)), x], axis=1))
    return op.nn.softmax(emit(op.matmul(wide, emit(op.permute_dims(wide)))))


@pytest.mark.parametrize(
    "write",
    [chain, residual, views, several_results, parts, growing],
    ids=lambda each: each.__name__,
)
def test_the_peak_is_what_the_virtual_machine_holds(write):
    mod = on_two(function({"x": SHAPE}, write), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    held = run(mod, [SHAPE])
    assert program.memory.activations == held.peak
    assert sum(size for _, size in program.memory.alive) == held.peak


@I.ir_module
class Calls:
    @R.function(private=True)
    def inner(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            y = R.nn.softmax(x)
            z = R.nn.softmax(y)
            w = R.nn.softmax(z)
            both = R.matmul(R.matmul(y, R.permute_dims(w)), z)
            R.output(both)
        return both

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Calls
        with R.dataflow():
            y = R.nn.softmax(x)
            a = cls.inner(y)
            b = cls.inner(a)
            c = R.subtract(b, y)
            R.output(c)
        return c


@I.ir_module
class Branches:
    @R.function
    def main(x: R.Tensor((8, 16), "float32"), flag: R.Tensor((), "bool")) -> R.Tensor(
        (8, 16), "float32"
    ):
        y = R.nn.softmax(x)
        if flag:
            a = R.nn.softmax(y)
            z = R.nn.softmax(R.nn.softmax(a))
        else:
            z = R.nn.relu(y)
        return R.add(z, y)


def test_a_call_holds_what_its_function_holds():
    mod = dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    assert program.memory.activations == run(mod, [SHAPE]).peak


def test_the_side_of_a_branch_that_holds_more_counts():
    mod = dx.annotate(Branches, dx.Mesh(tp=2), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    machine = relax.VirtualMachine(dx.build(mod), tvm.cpu())
    held = HeldStorages()
    machine.set_instrument(held)
    flag = tvm.runtime.tensor(np.array(True))
    machine["main"](tvm.runtime.tensor(np.ones(SHAPE, "float32")), flag)
    assert program.memory.activations >= held.peak
    # The value of a branch may be a tensor of before: it counts anew.
    assert program.memory.activations <= held.peak + BYTES


def test_weights_inputs_and_constants():
    constant = relax.const(np.ones((16, 16), "float32"))
    mod = function(
        {"x": SHAPE, "w": (16, 32)},
        lambda emit, x, w: op.matmul(emit(op.matmul(x, constant)), w),
        num_input=1,
    )
    (program,) = dx.analysis.estimate(on_two(mod, {"w": (None, "tp")}), on(CPU)).programs
    memory = program.memory
    assert (memory.weights, memory.inputs) == (4 * 16 * 16, BYTES)
    assert memory.constants == 4 * 16 * 16
    assert memory.peak_memory == 4 * 16 * 16 * 2 + BYTES + memory.activations


def test_what_a_session_takes_as_an_input_is_one():
    """Without num_input, all parameters are inputs of each call."""
    mod = on_two(
        function({"x": SHAPE, "w": (16, 32)}, lambda emit, x, w: op.matmul(x, w)),
        {"w": (None, "tp")},
    )
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    assert (program.memory.weights, program.memory.inputs) == (0, BYTES + 4 * 16 * 16)


def test_constants_of_functions_and_branches_count_once():
    own, shared = (relax.const(np.full((8, 16), value, "float32")) for value in (1.0, 2.0))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("inner", [x], private=True):
        inner = builder.emit_func_output(builder.emit(op.add(op.multiply(x, own), shared)))
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        value = builder.emit(op.add(x, shared))
        for _ in range(2):
            value = builder.emit(relax.Call(inner, [value]))
        builder.emit_func_output(value)
    mod = on_two(builder.get(), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    assert program.memory.constants == 2 * BYTES


def test_what_is_alive_has_its_name():
    def write(emit, x):
        kept = emit(op.nn.softmax(x), "kept")
        return op.add(kept, emit(op.nn.softmax(emit(op.nn.softmax(kept, 0), "middle"), 1), "last"))

    mod = on_two(function({"x": SHAPE}, write), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    assert "kept" in dict(program.memory.alive)


def test_names_and_sizes_at_the_peak():
    """A large value, then a small one in its storage; the peak is in computing ``wide``."""

    def write(emit, x):
        large = emit(op.nn.softmax(x), "large")
        small = emit(op.sum(large, 1, keepdims=True), "small")
        part = emit(op.nn.softmax(small, 0), "part")
        rows = emit(op.matmul(part, emit(op.permute_dims(part), "turned")), "rows")
        wide = emit(op.concat([rows] * 4, axis=1), "wide")
        return emit(op.sum(emit(op.nn.softmax(wide), "end"), 1), "out")

    mod = on_two(function({"x": SHAPE}, write), {"x": (None, None)})
    (program,) = dx.analysis.estimate(mod, on(CPU)).programs
    memory, sizes = program.memory, {"large": BYTES, "small": 32, "part": 32, "rows": 256}
    sizes |= {"wide": 4 * 256, "end": 4 * 256, "turned": 32, "out": 32}
    alive = dict(memory.alive)
    unused = alive.pop("unused in storages", 0)
    assert sum(alive.values()) + unused == memory.activations
    assert {name: sizes.get(name, size) for name, size in alive.items()} == alive
    # What is computed at the peak is held there.
    assert memory.at in alive
    held = [(each.name, each.live_bytes) for each in program.kernels]
    assert dict(held)[memory.at] == max(size for _, size in held) == memory.activations
