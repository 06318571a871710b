"""Random programs: operators, calls of private functions, tuples, and annotations anywhere.

A program is plain data, so that hypothesis can print and shrink it. Values stay of order one:
sums are scaled down and products are gated, so that errors do not grow with the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op as R
from tvm.relax.distributed import DeviceMesh
from tvm.relax.op.distributed import annotate_sharding

from .placement import MeshShape, device_mesh, padded_placements, to_placement

Shape = tuple[int, ...]
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12)
MESHES: tuple[MeshShape, ...] = ((2,), (3,), (4,), (2, 2), (3, 2), (2, 2, 2))
# Other meshes over the same devices: transposed, merged, split.
VIEWS: dict[MeshShape, tuple[DeviceMesh, ...]] = {
    (2,): (),
    (3,): (),
    (4,): (DeviceMesh((2, 2), [0, 1, 2, 3]),),
    (2, 2): (DeviceMesh((2, 2), [0, 2, 1, 3]), DeviceMesh((4,), [0, 1, 2, 3])),
    (3, 2): (DeviceMesh((2, 3), [0, 2, 4, 1, 3, 5]), DeviceMesh((6,), [0, 1, 2, 3, 4, 5])),
    (2, 2, 2): (DeviceMesh((2, 4), [0, 1, 2, 3, 4, 5, 6, 7]),),
}
UNARY = ("relu", "tanh", "sigmoid", "negative", "softmax", "softmax of the first")
BINARY = ("add", "subtract", "maximum", "gate")


def meshes_of(mesh: MeshShape) -> tuple[DeviceMesh, ...]:
    """The mesh itself, then its other views."""
    return (device_mesh(mesh), *VIEWS[mesh])


@dataclass(frozen=True)
class Step:
    """One operation on earlier values; ``detail`` are its attributes."""

    kind: str
    operands: tuple[int, ...]
    detail: Any = None


@dataclass(frozen=True)
class Body:
    """A function: values are the parameters, then the results of the steps in order."""

    params: tuple[Shape, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    shapes: tuple[Shape, ...]
    """Of all values."""


@dataclass(frozen=True)
class Program:
    """A public function ``main`` and private functions that it calls."""

    mesh: MeshShape
    dtype: str
    main: Body
    callees: tuple[Body, ...]


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """The shape of a binary operation, None if there is none."""
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    sizes = list(zip(*padded, strict=True))
    if any(a != b and 1 not in (a, b) for a, b in sizes):
        return None
    return tuple(max(pair) for pair in sizes)


@dataclass
class Writer:
    """Draws the steps of one function."""

    draw: Callable[[Any], Any]
    mesh: MeshShape
    shapes: list[Shape]
    callees: Sequence[Body] = ()
    branches: bool = False
    steps: list[Step] = field(default_factory=list)

    def pick(self, suits: Callable[[Shape], bool] = lambda shape: True) -> int:
        """An earlier value, the latest first for shrinking towards chains."""
        options = [i for i, shape in enumerate(self.shapes) if suits(shape)]
        return self.draw(st.sampled_from(options[::-1]))

    def add(self, kind: str, operands: Sequence[int], detail: Any, *results: Shape) -> None:
        self.steps.append(Step(kind, tuple(operands), detail))
        self.shapes.extend(results)

    def step(self) -> None:
        kinds = ["unary", "binary", "matmul", "reduce", "permute", "reshape", "split", "concat"]
        kinds += ["cut", "pad", "flip", "windows", "windows"]
        kinds += ["tuple", "annotate", "annotate"] + ["call"] * 3 * bool(self.callees)
        kinds += ["branch"] * 3 * self.branches
        getattr(self, self.draw(st.sampled_from(kinds)))()

    def unary(self) -> None:
        value = self.pick()
        self.add("unary", [value], self.draw(st.sampled_from(UNARY)), self.shapes[value])

    def binary(self) -> None:
        left = self.pick()
        right = self.pick(lambda shape: broadcast(self.shapes[left], shape) is not None)
        result = broadcast(self.shapes[left], self.shapes[right])
        assert result is not None
        self.add("binary", [left, right], self.draw(st.sampled_from(BINARY)), result)

    def matmul(self) -> None:
        left = self.pick(lambda shape: len(shape) >= 2)
        rows = self.shapes[left]
        fits = [
            i
            for i, shape in enumerate(self.shapes)
            if len(shape) >= 2
            and shape[-2] == rows[-1]
            and broadcast(rows[:-2], shape[:-2]) is not None
        ]
        if not fits:
            order = (*range(len(rows) - 2), len(rows) - 1, len(rows) - 2)
            self.add("permute", [left], order, tuple(rows[d] for d in order))
            fits = [len(self.shapes) - 1]
        right = self.draw(st.sampled_from(fits))
        columns = self.shapes[right]
        batch = broadcast(rows[:-2], columns[:-2])
        assert batch is not None
        self.add("matmul", [left, right], rows[-1], (*batch, rows[-2], columns[-1]))

    def reduce(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        axis = self.draw(st.integers(0, len(shape) - 1))
        keepdims = len(shape) < 3 or self.draw(st.booleans())
        kind = self.draw(st.sampled_from(("sum", "mean", "max", "min")))
        kept = (1,) if keepdims else ()
        result = (*shape[:axis], *kept, *shape[axis + 1 :])
        self.add("reduce", [value], (kind, axis, keepdims, shape[axis]), result)

    def permute(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        order = tuple(self.draw(st.permutations(range(len(shape)))))
        self.add("permute", [value], order, tuple(shape[d] for d in order))

    def reshape(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        if len(shape) >= 3:
            dim = self.draw(st.integers(0, len(shape) - 2))
            result = (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
        else:
            dim = self.draw(st.integers(0, len(shape) - 1))
            major = self.draw(st.sampled_from([n for n in range(1, 9) if shape[dim] % n == 0]))
            result = (*shape[:dim], major, shape[dim] // major, *shape[dim + 1 :])
        self.add("reshape", [value], result, result)

    def split(self) -> None:
        found = self.pick_long(2)
        if found is None:
            return self.unary()
        value, dim = found
        shape = self.shapes[value]
        first = self.draw(st.integers(1, shape[dim] - 1))
        parts = [self.with_size(shape, dim, size) for size in (first, shape[dim] - first)]
        return self.add("split", [value], (dim, first), *parts)

    def pick_long(self, least: int) -> tuple[int, int] | None:
        """An earlier value and a dimension of it that has so many elements."""
        if not any(max(shape) >= least for shape in self.shapes):
            return None
        value = self.pick(lambda shape: max(shape) >= least)
        dims = [d for d, size in enumerate(self.shapes[value]) if size >= least]
        return value, self.draw(st.sampled_from(dims))

    @staticmethod
    def with_size(shape: Shape, dim: int, size: int) -> Shape:
        return (*shape[:dim], size, *shape[dim + 1 :])

    def cut(self) -> None:
        found = self.pick_long(3)
        if found is None:
            return self.unary()
        value, dim = found
        size = self.shapes[value][dim]
        step = self.draw(st.sampled_from((1, 1, 2, -1)))
        begin = self.draw(st.integers(0, size // 2 - 1))
        end = self.draw(st.integers(size // 2 + 1, size))
        places = list(range(size))[begin:end:step] if step > 0 else [*range(end - 1, begin, step)]
        bounds = (begin, end, step) if step > 0 else (end - 1, begin, step)
        if not places:
            return self.unary()
        shape = self.with_size(self.shapes[value], dim, len(places))
        return self.add("cut", [value], (dim, *bounds), shape)

    def pad(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        dim = self.draw(st.integers(0, len(shape) - 1))
        mode = self.draw(st.sampled_from(("constant", "reflect", "replicate", "circular")))
        most = min(3, shape[dim] - 1 if mode == "reflect" else shape[dim])
        widths = [0] * (2 * len(shape))
        widths[2 * dim], widths[2 * dim + 1] = (self.draw(st.integers(0, most)) for _ in range(2))
        result = self.with_size(shape, dim, sum(widths) + shape[dim])
        self.add("pad", [value], (mode, tuple(widths)), result)

    def flip(self) -> None:
        value = self.pick()
        shape = self.shapes[value]
        self.add("flip", [value], self.draw(st.integers(0, len(shape) - 1)), shape)

    def windows(self) -> None:
        """A convolution of each channel, or pooling, of three-dimensional values."""
        options = [i for i, shape in enumerate(self.shapes) if len(shape) == 3 and shape[2] >= 2]
        if not options:
            return self.reshape()
        value = self.draw(st.sampled_from(options[::-1]))
        shape = self.shapes[value]
        kind = self.draw(
            st.sampled_from(("conv1d", "conv1d_transpose", "max_pool1d", "avg_pool1d"))
        )
        width = self.draw(st.integers(1, min(4, shape[2])))
        stride = self.draw(st.integers(1, 3))
        padding = self.draw(st.integers(0, width // 2))
        if kind == "conv1d_transpose":
            size = (shape[2] - 1) * stride + width - 2 * padding
        else:
            size = (shape[2] + 2 * padding - width) // stride + 1
        if size < 1:
            return self.unary()
        return self.add("windows", [value], (kind, width, stride, padding), (*shape[:2], size))

    def concat(self) -> None:
        left = self.pick()
        shape = self.shapes[left]
        dim = self.draw(st.integers(0, len(shape) - 1))
        rest = (shape[:dim], shape[dim + 1 :])
        right = self.pick(
            lambda other: len(other) == len(shape) and (other[:dim], other[dim + 1 :]) == rest
        )
        joined = shape[dim] + self.shapes[right][dim]
        self.add("concat", [left, right], dim, (*shape[:dim], joined, *shape[dim + 1 :]))

    def tuple(self) -> None:
        values = [self.pick(), self.pick(), self.pick()]
        self.add("tuple", values, None, *(self.shapes[v] for v in values))

    def branch(self) -> None:
        """One value or another one of its shape, each as it is or negated."""
        left = self.pick()
        right = self.pick(lambda shape: shape == self.shapes[left])
        detail = (self.draw(st.booleans()), self.draw(st.booleans()))
        self.add("branch", [left, right], detail, self.shapes[left])

    def annotate(self) -> None:
        self.annotate_value(self.pick())

    def annotate_value(self, value: int) -> None:
        """On the program's mesh mostly, else on another view of it."""
        shape = self.shapes[value]
        views = meshes_of(self.mesh)
        view = self.draw(st.sampled_from([0, 0, *range(len(views))]))
        sizes = tuple(int(size) for size in views[view].shape)
        dims = self.draw(st.sampled_from(list(padded_placements(sizes, shape))))
        self.add("annotate", [value], (view, dims), shape)

    def call(self) -> None:
        index = self.draw(st.integers(0, len(self.callees) - 1))
        callee = self.callees[index]
        if not all(shape in self.shapes for shape in callee.params):
            return self.unary()
        arguments = [self.pick(lambda shape, want=want: shape == want) for want in callee.params]
        results = [callee.shapes[r] for r in callee.results]
        return self.add("call", arguments, index, *results)

    def body(self, params: Sequence[Shape], count: int, max_results: int) -> Body:
        for _ in range(count):
            self.step()
        results = [len(self.shapes) - 1]
        for _ in range(self.draw(st.integers(0, max_results - 1))):
            results.append(self.pick())
        return Body(tuple(params), tuple(self.steps), tuple(results), tuple(self.shapes))


@st.composite
def programs(draw: Callable[[Any], Any], branches: bool = False) -> Program:
    """Programs of 2 to 15 operations; with ``branches``, ``main`` takes a flag behind the rest."""
    mesh = draw(st.sampled_from(MESHES))
    dtype = draw(st.sampled_from(("float32", "float64")))
    tensor = st.lists(st.sampled_from(SIZES), min_size=2, max_size=3).map(tuple)
    params = draw(st.lists(tensor, min_size=1, max_size=3))
    callees: list[Body] = []
    for _ in range(draw(st.integers(0, 2))):
        # Callees take what main has; the second may call the first.
        wanted = draw(st.lists(st.sampled_from(params), min_size=1, max_size=2))
        writer = Writer(draw, mesh, list(wanted), tuple(callees))
        callees.append(writer.body(wanted, draw(st.integers(1, 4)), 2))
    main = Writer(draw, mesh, list(params), tuple(callees), branches)
    for value in range(len(params)):
        main.annotate_value(value)
    body = main.body(params, draw(st.integers(2, 15)), 3)
    return Program(mesh, dtype, body, tuple(callees))


def to_module(program: Program, annotated: bool) -> tvm.IRModule:
    """The program in Relax, with its annotations or without."""
    builder = relax.BlockBuilder()
    names: list[relax.GlobalVar] = []
    for index, body in enumerate(program.callees):
        names.append(_function(builder, f"callee{index}", body, program, annotated, names))
    _function(builder, "main", program.main, program, annotated, names)
    mod = builder.get()
    if annotated:
        mod.update_global_info("mesh", list(meshes_of(program.mesh)))
    return mod


def _function(
    builder: relax.BlockBuilder,
    name: str,
    body: Body,
    program: Program,
    annotated: bool,
    names: Sequence[relax.GlobalVar],
) -> relax.GlobalVar:
    params = [
        relax.Var(f"x{i}", relax.TensorType(shape, program.dtype))
        for i, shape in enumerate(body.params)
    ]
    values: list[relax.Expr] = list(params)

    def emit_body() -> relax.Expr:
        for step in body.steps:
            operands = [values[i] for i in step.operands]
            if step.kind == "branch":
                values.append(_branch(builder, step, operands, params[-1]))
            else:
                values.extend(_emit(builder, step, operands, program, annotated, names))
        results = [values[i] for i in body.results]
        # Nested, and with one value that may be there twice.
        nested = relax.Tuple([results[0], relax.Tuple(results[1:])])
        return results[0] if len(results) == 1 else nested

    if any(step.kind == "branch" for step in body.steps):  # these stand in no dataflow block
        params.append(relax.Var("flag", relax.TensorType((), "bool")))
        with builder.function(name, params, private=name != "main"):
            return builder.emit_func_output(builder.emit(emit_body()))
    with builder.function(name, params, private=name != "main"):
        with builder.dataflow():
            output = builder.emit_output(emit_body())
        return builder.emit_func_output(output)


def _branch(
    builder: relax.BlockBuilder, step: Step, operands: Sequence[relax.Expr], flag: relax.Var
) -> relax.Expr:
    def side(value: relax.Expr, negated: bool) -> relax.SeqExpr:
        if not negated:
            return relax.SeqExpr([], value)
        result = relax.Var("side", value.ty)
        binding = relax.VarBinding(result, builder.normalize(R.negative(value)))
        return relax.SeqExpr([relax.BindingBlock([binding])], result)

    then, other = (side(*each) for each in zip(operands, step.detail, strict=True))
    return builder.emit(relax.If(flag, then, other))


def _emit(
    builder: relax.BlockBuilder,
    step: Step,
    operands: Sequence[relax.Expr],
    program: Program,
    annotated: bool,
    names: Sequence[relax.GlobalVar],
) -> list[relax.Expr]:
    def scaled(value: relax.Expr, factor: float) -> relax.Expr:
        return builder.emit(R.multiply(builder.emit(value), relax.const(factor, program.dtype)))

    first = operands[0]
    if step.kind == "unary":
        function = {
            "relu": R.nn.relu,
            "softmax": R.nn.softmax,
            "softmax of the first": lambda x: R.nn.softmax(x, 0),
        }.get(step.detail)
        return [builder.emit((function or getattr(R, step.detail))(first))]
    if step.kind == "binary":
        if step.detail == "gate":
            return [builder.emit(R.multiply(first, builder.emit(R.tanh(operands[1]))))]
        value = getattr(R, step.detail)(*operands)
        return [builder.emit(value) if step.detail == "maximum" else scaled(value, 0.5)]
    if step.kind == "matmul":
        return [scaled(R.matmul(*operands), 1 / step.detail)]
    if step.kind == "reduce":
        kind, axis, keepdims, size = step.detail
        value = getattr(R, kind)(first, axis, keepdims)
        return [scaled(value, 1 / size) if kind == "sum" else builder.emit(value)]
    if step.kind == "permute":
        return [builder.emit(R.permute_dims(first, list(step.detail)))]
    if step.kind == "reshape":
        return [builder.emit(R.reshape(first, step.detail))]
    if step.kind == "concat":
        return [builder.emit(R.concat(list(operands), step.detail))]
    if step.kind == "split":
        dim, place = step.detail
        parts = builder.emit(R.split(first, [place], dim))
        return [builder.emit(parts[0]), builder.emit(parts[1])]
    if step.kind == "cut":
        dim, *bounds = step.detail
        return [builder.emit(R.strided_slice(first, [dim], *([bound] for bound in bounds)))]
    if step.kind == "pad":
        mode, widths = step.detail
        return [builder.emit(R.nn.pad(first, list(widths), mode, 0.25))]
    if step.kind == "flip":
        return [builder.emit(R.flip(first, step.detail))]
    if step.kind == "windows":
        kind, width, stride, padding = step.detail
        function = getattr(R.nn, kind)
        if "pool" in kind:
            return [builder.emit(function(first, width, stride, padding))]
        channels = int(first.ty.shape[1])
        weight = R.full((channels, 1, width), relax.const(1 / width, program.dtype), program.dtype)
        weight = builder.emit(weight)
        options = {"strides": stride, "padding": padding, "groups": channels}
        return [builder.emit(function(first, weight, **options))]
    if step.kind == "tuple":
        packed = builder.emit(relax.Tuple([relax.Tuple(operands[:2]), operands[2]]))
        inner = builder.emit(packed[0])
        return [builder.emit(inner[0]), builder.emit(inner[1]), builder.emit(packed[1])]
    if step.kind == "annotate":
        if not annotated:
            return [first]
        view, dims = step.detail
        mesh = meshes_of(program.mesh)[view]
        return [builder.emit(annotate_sharding(first, mesh, to_placement(dims)))]
    assert step.kind == "call", step.kind
    value = builder.emit(relax.Call(names[step.detail], list(operands)))
    if len(program.callees[step.detail].results) == 1:
        return [value]
    rest = builder.emit(value[1])
    return [builder.emit(value[0]), *(builder.emit(rest[i]) for i in range(len(rest.ty.fields)))]


def elements(program: Program) -> int:
    """The number of elements of the largest value."""
    bodies = (program.main, *program.callees)
    return max(math.prod(shape) for body in bodies for shape in body.shapes)
