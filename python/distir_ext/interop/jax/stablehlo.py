"""Reads StableHLO through jaxlib's MLIR bindings, as plain data.

Everything that knows the bindings' classes of types, attributes and locations is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir

Operation: TypeAlias = Any
"""An ``ir.Operation``: it has no type information."""
Value: TypeAlias = Any
"""An ``ir.Value``."""

_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
_TOKEN = "!stablehlo.token"  # which orders effects; here a boolean that nothing reads
_LINE = re.compile(r"\bline \d+|:\d+$")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|-?\d[\d.]*(?:[eE][+-]?\d+)?")


class UnsupportedError(Exception):
    """Error about one operation that has no translation; the importer lists them all."""


def parse(text: str | bytes) -> Any:
    """The module of a text of StableHLO, or of its bytecode.

    Raises:
        ValueError: It is none; says what jaxlib says.
    """
    try:
        return ir.Module.parse(text, jax_mlir.make_ir_context())
    except (ir.MLIRError, ValueError) as error:
        message = str(error).replace('"-":', "line ")
        raise ValueError(f"this is no StableHLO module that jaxlib reads: {message}") from None


def functions_of(module: Any) -> dict[str, Operation]:
    """The functions of a module by name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations_of(module.body)
        if op.name == "func.func"
    }


def operations_of(block: Any) -> Iterator[Operation]:
    """The operations of a block, in order."""
    return (view.operation for view in block.operations)


def nested_operations(op: Operation) -> Iterator[Operation]:
    """An operation and all in its regions."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in operations_of(block):
                yield from nested_operations(inner)


def captured(op: Operation) -> list[Value]:
    """The values from outside that the regions of an operation read, in order."""
    inside: set[Value] = set()
    found: dict[Value, None] = {}
    for inner in nested_operations(op):
        if inner is not op:
            found.update((each, None) for each in inner.operands if each not in inside)
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
    return [each for each in found if each not in inside]


def only_block(op: Operation, region: int = 0) -> Any:
    """The block of a region.

    Raises:
        UnsupportedError: It has several, which StableHLO's own regions never have.
    """
    blocks = list(op.regions[region].blocks)
    if len(blocks) != 1:
        raise UnsupportedError(f"has a region of {len(blocks)} blocks")
    return blocks[0]


def tensor_of(mlir_type: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a type.

    Raises:
        UnsupportedError: It is no tensor, its shape is not static, or Relax has no such dtype.
    """
    shape, dtype = open_tensor_of(mlir_type)
    if None in shape:
        raise UnsupportedError(f"has the type {mlir_type}, whose shape is not static")
    return tuple(each for each in shape if each is not None), dtype


def open_tensor_of(mlir_type: Any) -> tuple[tuple[int | None, ...], str]:
    """Shape and dtype of a type; None for a size that it leaves open.

    Raises:
        UnsupportedError: It is no tensor, or Relax has no such dtype.
    """
    if str(mlir_type) == _TOKEN:
        return (), "bool"
    try:
        tensor = ir.RankedTensorType(mlir_type)
    except (TypeError, ValueError):
        raise UnsupportedError(f"has the type {mlir_type}, which is no tensor") from None
    dtype = _DTYPES.get(str(tensor.element_type))
    if dtype is None:
        raise UnsupportedError(f"is of {_name_of(str(tensor.element_type))}, which is not imported")
    sizes = (
        None if tensor.is_dynamic_dim(dim) else int(tensor.get_dim_size(dim))
        for dim in range(tensor.rank)
    )
    return tuple(sizes), dtype


def foreign_dtypes(functions: Iterable[Operation]) -> dict[str, str]:
    """The dtypes of a module that are not imported, each with where it is first, or ``""``."""
    found: dict[str, str] = {}
    for function in functions:
        for op in nested_operations(function):
            for value in (*op.operands, *op.results):
                try:
                    element = str(ir.RankedTensorType(value.type).element_type)
                except (TypeError, ValueError):
                    continue
                if element not in _DTYPES and not found.get(_name_of(element)):
                    place = where(op)
                    found[_name_of(element)] = place if _LINE.search(place) else ""
    return found


def _name_of(element: str) -> str:
    """NumPy's name, or that of ml_dtypes, of a type of MLIR."""
    if whole := re.fullmatch(r"(u?)i(\d+)", element):
        return f"{whole[1]}int{whole[2]}"
    if parts := re.fullmatch(r"complex<f(\d+)>", element):
        return f"complex{2 * int(parts[1])}"
    if small := re.fullmatch(r"f(\d+)(E\w+)", element):
        return f"float{small[1]}_{small[2].lower()}"
    return element


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value."""
    return tensor_of(value.type)[0]


def open_shape_of(value: Value) -> tuple[int | None, ...]:
    """The shape of a value; None for a size that its type leaves open."""
    return open_tensor_of(value.type)[0]


def rank_of(value: Value) -> int:
    """Returns the number of dimensions of a value."""
    return rank_of_type(value.type)


def rank_of_type(mlir_type: Any) -> int:
    """Returns the number of dimensions of a tensor type."""
    return len(open_tensor_of(mlir_type)[0])


def dtype_of(value: Value) -> str:
    """The dtype of a value."""
    return open_tensor_of(value.type)[1]


def numpy_dtype(dtype: str) -> Any:
    """NumPy's dtype of a dtype's name."""
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def array_of(attribute: Any) -> np.ndarray:
    """The elements of a dense attribute; one element without dimensions where all are the same.

    Raises:
        UnsupportedError: It is another kind of constant.
    """
    shape, dtype = tensor_of(attribute.type)
    wanted = numpy_dtype(dtype)
    try:
        dense = ir.DenseElementsAttr(attribute)
    except (TypeError, ValueError):
        raise UnsupportedError("is a constant whose elements are not in the text") from None
    if dtype == "bfloat16" or dtype.startswith("float8"):
        return _from_text(str(attribute), shape, wanted)
    array = np.array(dense, dtype=wanted)
    return array.reshape(-1)[0] if dense.is_splat and array.size > 1 else array.reshape(shape)


def _from_text(text: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    # The bindings have no buffers of bfloat16 and of 8 bits. Text has many elements as one
    # hexadecimal number.
    content = text[text.index("<") + 1 : text.rindex(">")]
    raw = re.fullmatch(r'"0x([0-9A-Fa-f]*)"', content.split("> :")[0])
    if raw:
        elements = np.frombuffer(bytes.fromhex(raw[1]), dtype)
    else:
        found = [_number(each, dtype) for each in _NUMBER.findall(content.split("> :")[0])]
        elements = np.array(found, dtype)
    return elements[0] if elements.size == 1 and shape else elements.reshape(shape)


def _number(text: str, dtype: Any) -> Any:
    if text.startswith("0x"):  # NaN and infinities
        return np.array(int(text, 16), f"u{np.dtype(dtype).itemsize}").view(dtype)
    return float(text)


def integers(op: Operation, name: str, default: list[int] | None = None) -> list[int]:
    """An attribute that lists integers."""
    if name not in op.attributes:
        if default is None:
            raise UnsupportedError(f"has no attribute {name}")
        return default
    return [int(each) for each in op.attributes[name]]


def integer(op: Operation, name: str) -> int:
    """An attribute that is one integer."""
    return int(ir.IntegerAttr(op.attributes[name]).value)


def float_of(op: Operation, name: str) -> float:
    """An attribute that is one float."""
    return float(ir.FloatAttr(op.attributes[name]).value)


def pairs(op: Operation, name: str, count: int) -> list[tuple[int, int]]:
    """An attribute of (low, high) per dimension; zeros if it is absent."""
    if name not in op.attributes:
        return [(0, 0)] * count
    rows = np.array(ir.DenseElementsAttr(op.attributes[name])).reshape(-1, 2)
    return [(int(low), int(high)) for low, high in rows]


def rows_of(op: Operation, name: str) -> list[list[int]]:
    """An attribute that is a matrix of integers; rows that are shorter end with -1."""
    try:
        matrix = np.atleast_2d(np.array(ir.DenseElementsAttr(op.attributes[name])))
    except (TypeError, ValueError):
        raise UnsupportedError(f"has {name} in another form than as rows of numbers") from None
    return [[int(each) for each in row if each >= 0] for row in matrix]


def symbol(op: Operation, name: str) -> str:
    """An attribute that names a function."""
    return str(ir.FlatSymbolRefAttr(op.attributes[name]).value)


def text(op: Operation, name: str) -> str:
    """An attribute that is a text."""
    return str(ir.StringAttr(op.attributes[name]).value)


def target_of(op: Operation) -> str:
    """The target of a custom call; empty for other operations."""
    return text(op, "call_target_name") if op.name == "stablehlo.custom_call" else ""


FRONTEND = "mhlo.frontend_attributes"
"""Attributes that exporters for HLO write as texts: Shardy's, XLA's own and the user's."""


def frontend_text(attributes: Any, name: str) -> str | None:
    """One of the frontend attributes among some attributes; None if it is not there."""
    if FRONTEND not in attributes:
        return None
    found = ir.DictAttr(attributes[FRONTEND])
    return str(ir.StringAttr(found[name]).value) if name in found else None


def attributes_of_values(function: Operation) -> Iterator[Any]:
    """The attributes of each argument and result of a function."""
    for kind in ("arg_attrs", "res_attrs"):
        if function.name == "func.func" and kind in function.attributes:
            yield from ir.ArrayAttr(function.attributes[kind])


def stated_by(op: Operation) -> Any:
    """The attributes that a custom call or composite gives to what it calls, by name."""
    for name in ("composite_attributes", "mhlo.attributes", "mhlo.backend_config"):
        if name in op.attributes:
            return ir.DictAttr(op.attributes[name])
    return op.attributes


def called(op: Operation) -> list[str]:
    """The functions of the module that a custom call names."""
    name = "called_computations"
    found = ir.ArrayAttr(op.attributes[name]) if name in op.attributes else []
    return [str(ir.FlatSymbolRefAttr(each).value) for each in found]


def enumerator(op: Operation, name: str) -> str:
    """An attribute that is a word of StableHLO, such as LT."""
    words = re.findall(r"\w+", str(op.attributes[name]))
    return words[-1] if words else ""


def where(op: Operation) -> str:
    """Returns the location of an operation as JAX states it: the Python scope and the line.

    Operations within JAX's own functions have no line of the user; theirs is that of what encloses
    them, or of the first call of their function.
    """
    scope = re.match(r'loc\("([^"]*)"[()]', str(op.location))
    line = _line_of(op, set())
    return " at ".join([*([scope[1]] if scope else []), *([line] if line else [])])


def _line_of(op: Operation, seen: set[str]) -> str:
    """The line of an operation, of one around it, or of a call of its function; ``""``: none.

    Args:
        op: The operation.
        seen: The functions whose calls were looked for, to which this one's are added.
    """
    while op is not None and op.name not in ("func.func", "builtin.module"):
        if found := re.search(r'"([^"]+)":(\d+):\d+', str(op.location)):
            return f"line {found[2]}" if found[1] == "-" else f"{found[1]}:{found[2]}"
        op = _parent_of(op)
    if op is None or op.name != "func.func" or str(op.attributes["sym_name"]) in seen:
        return ""
    name = str(op.attributes["sym_name"])
    seen.add(name)
    calls = (
        each
        for each in nested_operations(_parent_of(op))
        if each.name == "func.call" and str(each.attributes["callee"]) == f"@{name.strip(chr(34))}"
    )
    return next((line for each in calls if (line := _line_of(each, seen))), "")


def _parent_of(op: Operation) -> Operation | None:
    return op.parent.operation if op.parent is not None else None


def global_constant(function: Operation, index: int) -> str | None:
    """Returns JAX's name of a global constant, an argument that all functions of a module take."""
    if "arg_attrs" not in function.attributes:
        return None
    of_arguments = ir.ArrayAttr(function.attributes["arg_attrs"])
    if index >= len(of_arguments):
        return None
    attributes, name = of_arguments[index], "jax.global_constant"
    return str(ir.StringAttr(attributes[name]).value) if name in attributes else None


def argument_name(argument: Value) -> str | None:
    """The path of an argument in the function's pytrees, joined by dots; None if it has none.

    ``params['layers'][0].weight`` is ``params.layers.0.weight``.
    """
    found = re.match(r'loc\("([^"]*)"\)', str(argument.location).replace('\\"', "'"))
    if not found or not re.match(r"[A-Za-z_]", found[1]):
        return None
    name = re.sub(r"\[<flat index (\d+)>\]", r".\1", found[1])
    return re.sub(r"\[(?:'([^']*)'|([^\]]*))\]", lambda match: f".{match[1] or match[2]}", name)
