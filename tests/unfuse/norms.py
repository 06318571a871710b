"""Softmax, norms and lookups along sharded dimensions, and kernels that differ slightly."""

import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

WIDTH, INNER = 24, 36
SHAPES = {
    "x": (2, 12, WIDTH),
    "up": (WIDTH, INNER),
    **dict.fromkeys(("scale", "gain", "bias"), (INNER,)),
    "down": (INNER, WIDTH),
}
# The columns of `up` are what all norms go along.
PLAN = {"up": (None, "tp"), "down": ("tp", None)}
# By name, the operator, which makes a value of its operand and two weights of the last dimension.
OPERATORS = {
    "softmax": lambda x, g, b: op.nn.softmax(x, 2),
    "softmax of columns": lambda x, g, b: op.nn.softmax(x, 1),
    "log_softmax": lambda x, g, b: op.nn.log_softmax(x, 2),
    "layer_norm": lambda x, g, b: op.nn.layer_norm(x, g, b, [2], epsilon=1e-6),
    "rms_norm": lambda x, g, b: op.nn.rms_norm(x, g, [2]),
    "group_norm": lambda x, g, b: op.nn.group_norm(x, g, b, 4, 2, [1]),
    "group_norm of one": lambda x, g, b: op.nn.group_norm(x, g, b, 1, 2, [1]),
    "instance_norm": lambda x, g, b: op.nn.instance_norm(x, g, b, 2, [1]),
    "variance": lambda x, g, b: op.variance(x, [2]),
    "std": lambda x, g, b: op.std(x, [1, 2], keepdims=True),
    "argmax": lambda x, g, b: op.argmax(x, 2),
    "argmin": lambda x, g, b: op.argmin(x, 1, keepdims=True),
}


def one(name, dtype="float32", rows=12, is_within=False):
    """main(x, g, b) of one operator; within: between two others."""
    shapes = {"x": (2, rows, WIDTH), "g": (WIDTH,), "b": (WIDTH,)}
    params = [relax.Var(each, relax.TensorType(s, dtype)) for each, s in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            x, g, b = params
            value = builder.emit(op.multiply(x, x)) if is_within else x
            value = builder.emit(OPERATORS[name](value, g, b))
            value = builder.emit(op.negative(value)) if is_within else value
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def lookup(mode="fast"):
    """main(table, places): rows of a table, times a number."""
    table = relax.Var("table", relax.TensorType((26, 8), "float32"))
    places = relax.Var("places", relax.TensorType((2, 5), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [table, places]):
        with builder.dataflow():
            found = builder.emit(op.take(table, places, 0, mode))
            result = builder.emit_output(op.multiply(found, relax.const(3, "float32")))
        builder.emit_func_output(result)
    return builder.get()


@I.ir_module
class Squares:
    """A kernel that makes the table that it looks up in."""

    @T.prim_func(private=True, s_tir=True)
    def kernel(
        table: T.Buffer((T.int64(26), T.int64(8)), "float32"),
        places: T.Buffer((T.int64(5),), "int64"),
        out: T.Buffer((T.int64(5), T.int64(8)), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        squares = T.sblock_alloc_buffer((T.int64(26), T.int64(8)))
        for i, j in T.grid(T.int64(26), T.int64(8)):
            with T.sblock("squares"):
                vi, vj = T.axis.remap("SS", [i, j])
                squares[vi, vj] = table[vi, vj] * table[vi, vj]
        for i, j in T.grid(T.int64(5), T.int64(8)):
            with T.sblock("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = squares[places[vi], vj]

    @R.function
    def main(table: R.Tensor((26, 8), "float32"), places: R.Tensor((5,), "int64")):
        cls = Squares
        z = R.call_tir(cls.kernel, (table, places), out_ty=R.Tensor((5, 8), "float32"))
        return z


def all_norms(rows=12):
    """main(x, up, ..): norms one after the other, between two products."""
    params = {
        name: relax.Var(name, relax.TensorType((2, rows, WIDTH) if name == "x" else s, "float32"))
        for name, s in SHAPES.items()
    }
    builder = relax.BlockBuilder()
    emit = builder.emit
    gain, bias = params["gain"], params["bias"]
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            up = emit(op.matmul(params["x"], params["up"]))
            scaled = emit(op.add(emit(op.nn.rms_norm(up, params["scale"], [-1])), up))
            grouped = emit(op.nn.group_norm(emit(op.negative(scaled)), gain, bias, 2, 2, [1]))
            normed = emit(op.nn.layer_norm(emit(op.nn.relu(grouped)), gain, bias, [-1]))
            shares = emit(op.nn.softmax(emit(op.multiply(normed, relax.const(3, "float32")))))
            logs = emit(op.nn.log_softmax(emit(op.add(shares, normed))))
            down = emit(op.matmul(emit(op.negative(logs)), params["down"]))
            result = builder.emit_output(op.add(down, params["x"]))
        builder.emit_func_output(result)
    return builder.get()


# By name: the operator, what of its kernel is written otherwise, and how.
NEARLY = {
    "softmax of other powers": (
        "softmax",
        "T.exp(x[v_i0, v_i1, v_i2] - T_softmax_maxelem[v_i0, v_i1])",
        "T.exp((x[v_i0, v_i1, v_i2] - T_softmax_maxelem[v_i0, v_i1]) * T.float32(2))",
    ),
    "softmax of sums of columns": (
        "softmax",
        "+ T_softmax_exp[v_i0, v_i1, v_k]",
        "+ T_softmax_exp[v_i0, v_k, v_i1]",
    ),
    "softmax with one more": ("softmax", "= T.float32(0.0)", "= T.float32(1.0)"),
    "layer_norm by one less": (
        "layer_norm",
        "/ T.float32(24.0) + T.float32",
        "/ T.float32(23.0) + T.float32",
    ),
}


def nearly(name, is_exact=False):
    """main(x) or main(x, g, b) of the kernel of an operator, changed or as it is."""
    operator, old, new = NEARLY[name]
    shapes = {"x": (1, WIDTH, WIDTH), "g": (WIDTH,), "b": (WIDTH,)}
    params = [relax.Var(each, relax.TensorType(s, "float32")) for each, s in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params if operator == "layer_norm" else params[:1]):
        with builder.dataflow():
            result = builder.emit_output(OPERATORS[operator](*params))
        builder.emit_func_output(result)
    text = relax.transform.LegalizeOps()(builder.get()).script()
    assert text.count(old) == 1
    return tvm.script.from_source(text if is_exact else text.replace(old, new))
