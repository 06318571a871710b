"""Collectives of a program, as they are printed."""

import time

from tvm import relax

import distir_ext as dx
from distir_ext.structure.circles import circles


def layers(count):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType((8, 8), "float32")) for i in range(2 * count)]
    with builder.function("main", [x, *weights]):
        value = x
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            value = builder.emit(relax.op.nn.relu(relax.op.matmul(value, up)))
            value = builder.emit(relax.op.matmul(value, down))
        builder.emit_func_output(value)
    plan = {f"w{i}": ((None, "tp"), ("tp", None))[i % 2] for i in range(2 * count)}
    return dx.annotate(builder.get(), dx.Mesh(dp=1, tp=2), plan)


def test_a_list_prints_as_a_table():
    found = dx.analysis.collectives(dx.lower(layers(200)))
    assert found == list(found)
    assert sum(each.count for each in found) == 200
    for text in (str(found), repr(found)):
        assert "all_reduce" in text
        assert max(map(len, text.splitlines())) <= 120
    assert str(dx.analysis.collective_table(found).title) in str(found)
    # One of them by itself, or in a list of another kind, says how many tensors it leaves out.
    assert len(repr(found[0])) < 400
    assert ".. 196 more)" in str(list(found))
    built = dx.build(layers(1), target="llvm")
    assert "all_reduce" in str(dx.analysis.collectives(built))
    assert str(type(found)()) == "no collectives"
    assert str(found[:]) == str(found)


def test_loops_are_found_in_time_linear_in_the_calls():
    """A chain of functions that all call those behind them, the last two each other."""
    names = [f"f{i}" for i in range(3000)]
    callees = {name: names[i + 1 : i + 4] for i, name in enumerate(names)}
    callees["f2999"] = ["f2998", "kernel"]
    callees["f7"] = [*callees["f7"], "f7"]
    begin = time.thread_time()
    found = circles(callees)
    assert time.thread_time() - begin < 1
    pair = frozenset({"f2998", "f2999"})
    assert found == {"f7": frozenset({"f7"}), "f2998": pair, "f2999": pair}
