"""All-reduces as reduce-scatters and all-gathers, with the operators between them on shards."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import tvm
from tests.meshes import meshes
from tests.optimize.programs import counts, legal, sent
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import optimized, tally

NAME = "sequence_parallel"
SOURCE = Path(__file__).resolve().parents[2] / "benchmarks" / "models" / "llama_stack.py"


def load_stack():
    spec = importlib.util.spec_from_file_location("llama_stack", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their module
    spec.loader.exec_module(module)
    return module


llama_stack = load_stack()
SMALL = llama_stack.StackConfig(
    hidden=64, heads=8, kv_heads=8, feed_forward=128, sequence=16, dtype="float32"
)


def program(body, params, plan):
    """A legalised program on (4,) of a function ``main`` that emits its result with ``body``."""
    builder = tvm.relax.BlockBuilder()
    variables = [
        tvm.relax.Var(name, tvm.relax.TensorType(shape, "float32"))
        for name, shape in params.items()
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *variables))
        builder.emit_func_output(result)
    return legal(dx.annotate(builder.get(), dx.Mesh((4,), ("tp",)), plan))


def test_is_off_unless_enabled():
    mod = legal(llama_stack.annotated(llama_stack.build_stack(1, SMALL)))
    assert counts(mod) == counts(dx.transform.OptimizeCollectives()(mod)) == {"all_reduce": 2}


@pytest.mark.parametrize("config", [SMALL, llama_stack.LLAMA_70B], ids=["small", "70b"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_llama_layer_has_two_scatters_and_two_gathers(config, layers):
    mod = legal(llama_stack.annotated(llama_stack.build_stack(layers, config)))
    result = dx.transform.OptimizeCollectives(enable=(NAME,))(mod)
    # The first norm reads the whole input; in its place the last sum is gathered.
    assert counts(result) == {"reduce_scatter": 2 * layers, "all_gather": 2 * layers}
    assert sent(result) == sent(mod)
    assert tally(result, NAME).matched == 2 * layers


def test_a_layer_that_is_called_has_them_too():
    mod = legal(llama_stack.annotated(llama_stack.build_calls(3, SMALL)))
    result = optimized(mod, NAME)
    assert counts(result) == {"reduce_scatter": 6, "all_gather": 6}
    assert sent(result) == sent(mod)


def test_everything_between_is_a_shard():
    mod = legal(llama_stack.annotated(llama_stack.build_stack(2, SMALL)))
    result = optimized(mod, NAME)
    whole = re.findall(r'"mesh\[0\]", "R"\) = R\.(\w+)\(', result.script())
    # The norm of the input, which is whole to begin with, and its two multiplications.
    norm = ["square", "mean", "add", "rsqrt", "multiply", "multiply"]
    assert [each for each in whole if each != "matmul"] == norm


def test_a_gather_stands_in_front_of_what_grows():
    op = tvm.relax.op

    def logits(emit, x, w, head):
        reduced = emit(op.matmul(x, w))
        hidden = emit(op.nn.relu(reduced))
        return emit(op.nn.softmax(emit(op.matmul(hidden, head)), axis=-1))

    params = {"x": (8, 32), "w": (32, 16), "head": (16, 64)}
    plan = {"x": (None, "tp"), "w": ("tp", None), "head": (None, None)}
    mod = program(logits, params, plan)
    result = optimized(mod, NAME)
    assert counts(result) == {"reduce_scatter": 1, "all_gather": 1}
    assert sent(result) == sent(mod)


def test_a_gather_stands_behind_what_shrinks():
    op = tvm.relax.op

    def norm(emit, x, w):
        return emit(op.max(emit(op.nn.relu(emit(op.matmul(x, w)))), axis=[1]))

    params = {"x": (8, 32), "w": (32, 16)}
    mod = program(norm, params, {"x": (None, "tp"), "w": ("tp", None)})
    result = optimized(mod, NAME)
    assert counts(result) == {"reduce_scatter": 1, "all_gather": 1}
    assert sent(result) < 0.6 * sent(mod)


def skipped(body, rows):
    params = {"x": (rows, 32), "w": (32, 6)}
    mod = program(body, params, {"x": (None, "tp"), "w": ("tp", None)})
    result = optimized(mod, NAME)
    assert counts(result) == counts(mod)
    assert tally(result, NAME).matched == 0
    return tally(result, NAME).skipped


def test_what_is_used_whole_at_once_stays():
    op = tvm.relax.op
    assert skipped(lambda emit, x, w: emit(op.matmul(x, w)), 8) == {"needs replication at once": 1}


def test_what_does_not_divide_stays():
    op = tvm.relax.op
    assert skipped(lambda emit, x, w: emit(op.nn.relu(emit(op.matmul(x, w)))), 6) == {
        "no dimension divides": 1
    }


def test_what_would_send_more_stays():
    op = tvm.relax.op

    def grows(emit, x, w):
        value = emit(op.matmul(x, w))
        value = emit(op.broadcast_to(emit(op.reshape(value, (8, 1, 6))), (8, 16, 6)))
        for _ in range(40):
            value = emit(op.nn.relu(value))
        return value

    assert skipped(grows, 8) == {"would send more bytes": 1}


def test_what_sends_little_stays_where_that_is_wanted():
    op = tvm.relax.op

    def body(emit, x, w):
        return emit(op.nn.relu(emit(op.matmul(x, w))))

    mod = program(body, {"x": (8, 32), "w": (32, 6)}, {"x": (None, "tp"), "w": ("tp", None)})
    sends = 2 * 3 / 4 * 8 * 6 * 4  # bytes of the all-reduce's ring
    for bytes_wanted, matched in ((sends, 1), (sends + 1, 0)):
        result = optimized(mod, NAME, sequence_bytes=int(bytes_wanted))
        assert tally(result, NAME).matched == matched
        assert tally(result, NAME).skipped == ({} if matched else {"sends too little": 1})


def test_a_slice_of_what_is_gathered_is_the_shard():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.nn.relu(b)
                d = R.dist.slice(c, "mesh[0]", "S[0]")
                e = R.sum(c)
                R.output(d, e)
            return (d, e)

    result = optimized(Before, NAME)
    text = result.script()
    assert "dist.slice" not in text
    assert counts(result) == {"reduce_scatter": 1, "all_gather": 1}


def test_lowering_again_keeps_it():
    mod = legal(llama_stack.annotated(llama_stack.build_stack(2, SMALL)))
    once = dx.transform.OptimizeCollectives(enable=(NAME,))(mod)
    assert counts(dx.transform.OptimizeCollectives()(once)) == counts(once)
