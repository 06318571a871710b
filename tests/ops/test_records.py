"""All that is known of an operator stands in its record, in the file of its family."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tvm

import distir_ext  # noqa: F401  registers the operators of distribution

TOP = Path(__file__).resolve().parents[2]
SOURCE, PACKAGE = TOP / "src", TOP / "python" / "distir_ext"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
OPERATORS = {str(name) for name in tvm.ir.Op.list_op_names() if str(name).startswith("relax.")}
# Of these, what is called decides: their rules come from kernels, users or types.
CALLS = re.compile(r"relax\.(call_\w+|ccl\.\w+|dist\.\w+)")

# Passes that look for a pattern of operators, or write one. They describe nothing: what they need
# to know of an operator they ask its record.
PATTERNS = {
    # What TVM types as if all boxes were kept.
    "ir/data_extents.cc": {"relax.vision.all_class_non_max_suppression"},
    "ir/module/well_formed.cc": {
        "relax.memory.kill_storage",
        "relax.memory.kill_tensor",
        "relax.vm.kill_object",
    },
    # Lookups of experts' matrices, products with them, and what changes the shape of rows.
    "optimize/dispatch_experts.cc": {"relax.matmul"},
    "optimize/experts/lookup.cc": {
        "relax.arange",
        "relax.astype",
        "relax.clip",
        "relax.equal",
        "relax.expand_dims",
        "relax.floor_divide",
        "relax.floor_mod",
        "relax.less",
        "relax.reshape",
        "relax.strided_slice",
        "relax.sum",
        "relax.take",
        "relax.where",
    },
    "optimize/experts/product.cc": {"relax.permute_dims"},
    "optimize/experts/rows.cc": {
        "relax.astype",
        "relax.expand_dims",
        "relax.matmul",
        "relax.reshape",
        "relax.squeeze",
    },
    "optimize/dispatch_slots.cc": {
        "relax.einsum",
        "relax.matmul",
        "relax.nn.pad",
        "relax.strided_slice",
    },
    "optimize/dispatch_weighted.cc": {"relax.nn.pad", "relax.strided_slice"},
    "optimize/pairs/pair_rows.cc": {
        "relax.astype",
        "relax.broadcast_to",
        "relax.einsum",
        "relax.expand_dims",
        "relax.matmul",
        "relax.permute_dims",
        "relax.reshape",
        "relax.squeeze",
    },
    # What is zero where weights are, and what adds such up.
    "optimize/pairs/weighted_sum.cc": {
        "relax.abs",
        "relax.astype",
        "relax.broadcast_to",
        "relax.divide",
        "relax.einsum",
        "relax.expand_dims",
        "relax.matmul",
        "relax.multiply",
        "relax.negative",
        "relax.nn.gelu",
        "relax.nn.gelu_tanh",
        "relax.nn.relu",
        "relax.nn.silu",
        "relax.permute_dims",
        "relax.reshape",
        "relax.sqrt",
        "relax.square",
        "relax.squeeze",
        "relax.sum",
        "relax.tanh",
        "relax.where",
    },
    # What masks of one-hots are made of.
    "optimize/program/slot_mask.cc": {
        "relax.abs",
        "relax.add",
        "relax.astype",
        "relax.bitwise_and",
        "relax.bitwise_or",
        "relax.broadcast_to",
        "relax.concat",
        "relax.divide",
        "relax.einsum",
        "relax.equal",
        "relax.expand_dims",
        "relax.full",
        "relax.greater",
        "relax.logical_and",
        "relax.logical_or",
        "relax.matmul",
        "relax.max",
        "relax.maximum",
        "relax.minimum",
        "relax.multiply",
        "relax.negative",
        "relax.nn.pad",
        "relax.not_equal",
        "relax.one_hot",
        "relax.permute_dims",
        "relax.reshape",
        "relax.scatter_elements",
        "relax.squeeze",
        "relax.strided_slice",
        "relax.subtract",
        "relax.sum",
        "relax.where",
        "relax.zeros",
        "relax.zeros_like",
    },
    "unfuse/combined_products.cc": {"relax.concat", "relax.matmul", "relax.split"},
    # Permutations, and what takes rows and puts them back.
    "unfuse/sorted_rows.cc": {
        "relax.arange",
        "relax.argsort",
        "relax.astype",
        "relax.broadcast_to",
        "relax.expand_dims",
        "relax.floor_divide",
        "relax.index_put",
        "relax.reshape",
        "relax.scatter_elements",
        "relax.scatter_nd",
        "relax.sort",
        "relax.take",
    },
    # Slices, and sums of what is computed with each.
    "unfuse/unrolled_sums.cc": {
        "relax.add",
        "relax.matmul",
        "relax.permute_dims",
        "relax.reshape",
        "relax.split",
        "relax.squeeze",
        "relax.strided_slice",
        "relax.take",
    },
    # What stands between a weight and the product that it is sharded for.
    "autosharding/ffi.cc": {"relax.permute_dims", "relax.reshape"},
    # What libraries compute, and what they compute behind it.
    "target/cpu/dispatch_convolution.cc": {
        f"relax.nn.conv{dims}d{kind}" for dims in (1, 2, 3) for kind in ("", "_transpose")
    },
    "target/products/contraction.cc": {"relax.matmul", "relax.einsum"},
    "target/products/products.cc": {
        "relax.add",
        "relax.broadcast_to",
        "relax.expand_dims",
        "relax.nn.gelu_tanh",
        "relax.nn.relu",
        "relax.permute_dims",
    },
    "target/cpu/append_in_place.cc": {"relax.concat"},
    # What programs of the virtual machine allocate and call.
    "analysis/step_names.cc": {"relax.invoke_closure", "relax.invoke_pure_closure"},
    "analysis/program_steps.cc": {
        "relax.builtin.alloc_tensor",
        "relax.invoke_closure",
        "relax.invoke_pure_closure",
        "relax.memory.alloc_storage",
        "relax.memory.alloc_tensor",
        "relax.vm.call_tir_dyn",
    },
    "target/cpu/share_operands.cc": {"relax.builtin.alloc_tensor", "relax.reshape"},
    "target/cpu/share_results.cc": {"relax.reshape"},
    "target/cpu/write_in_place.cc": {"relax.builtin.alloc_tensor", "relax.reshape"},
    "lower/spmd/local_operator.cc": {"relax.permute_dims"},
    "lower/spmd/spmd_program.cc": {"relax.shape_of"},
    "optimize/defer_reductions.cc": {"relax.add", "relax.subtract"},
    "optimize/fuse_all_reduce_norm.cc": {"relax.add", "relax.nn.rms_norm"},
    # What PadShards writes around a move.
    "explain/program.cc": {"relax.nn.pad", "relax.strided_slice"},
    "padding/pad_function.cc": {"relax.divide", "relax.minimum", "relax.shape_of"},
    # Rolls, as frontends write them.
    "propagation/constant_positions.cc": {"relax.take"},
    "propagation/graph.cc": {"relax.shape_of"},
    "propagation/merged_dims.cc": {"relax.matmul", "relax.reshape"},
    # Lookups in each row, by its number.
    "propagation/row_numbers.cc": {
        "relax.arange",
        "relax.astype",
        "relax.broadcast_to",
        "relax.concat",
        "relax.expand_dims",
        "relax.gather_nd",
        "relax.index_put",
        "relax.index_tensor",
        "relax.reshape",
        "relax.scatter_nd",
        "relax.stack",
    },
    # A product that contracts merged dimensions is an einsum.
    "propagation/separated_call.cc": {
        "relax.einsum",
        "relax.nn.nll_loss",
        "relax.strided_slice",  # has its axes among its arguments
    },
}


def relax_names(names: str) -> set[str]:
    return {f"relax.{name}" for name in names.split()}


# Kernels for operators, written in Python.
KERNELS = {
    "compile/kernels/legalizations/attention.py": {"relax.nn.attention", "relax.nn.attention_bias"},
    "compile/kernels/cuda/flash_attention.py": {"relax.nn.attention", "relax.nn.attention_bias"},
    "compile/kernels/cpu/cpu_math.py": relax_names(
        "erf exp log mean nn.gelu nn.gelu_tanh nn.log_softmax nn.silu nn.softmax sigmoid tanh"
    ),
    "compile/kernels/legalizations/conversions.py": {"relax.astype"},
    "compile/kernels/legalizations/division.py": {"relax.floor_divide", "relax.floor_mod"},
    "compile/kernels/legalizations/dtypes.py": relax_names(
        "abs acos acosh add asin asinh atan atan2 ceil clip cosh dequantize equal floor "
        "floor_divide floor_mod grad.avg_pool2d_backward grad.max_pool2d_backward greater "
        "greater_equal image.grid_sample index_put isfinite isinf isnan layout_transform less "
        "less_equal log_add_exp logical_not max maximum mean min minimum mod multiply negative "
        "nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.batch_norm nn.instance_norm nn.layer_norm "
        "nn.leakyrelu nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.relu not_equal power round "
        "scatter_elements scatter_nd sign sinh square trunc "
        "vision.all_class_non_max_suppression vision.non_max_suppression vision.roi_align "
        "vision.roi_pool"
    ),
    "compile/kernels/legalizations/unknown_sizes.py": {"relax.unique"},
    "compile/kernels/legalizations/norms.py": relax_names(
        "nn.group_norm nn.instance_norm nn.layer_norm nn.rms_norm"
    ),
    "compile/integer_division.py": relax_names("divide floor_divide floor_mod mod"),
    "compile/kernels/legalizations/not_a_number.py": relax_names(
        "add divide floor_divide floor_mod max maximum min minimum multiply nn.leakyrelu sign "
        "subtract"
    ),
    "compile/kernels/legalizations/ordering.py": relax_names(
        "argmax argmin argsort bucketize median sort topk"
    ),
    "compile/kernels/legalizations/positions.py": relax_names(
        "clip gather_elements gather_nd grad.take_backward index_put index_tensor scatter_elements "
        "scatter_nd slice_scatter take"
    ),
}
# What is looked for.
PYTHON_PATTERNS = {
    "analysis/measured/kernel_timing.py": {"relax.memory.alloc_tensor"},  # what kernels write to
    # What stands between a weight and its product.
    "autosharding/reasons.py": {"relax.permute_dims", "relax.reshape"},
    # What looks up in tables.
    "reshards/expert_weights.py": {
        "relax.gather_elements",
        "relax.gather_nd",
        "relax.take",
    },
    "reshards/fused_weights.py": {"relax.split"},  # what cuts a product in parts
    "structure/layers/adapters.py": {"relax.astype", "relax.divide", "relax.multiply"},  # scales
    "structure/program.py": {
        "relax.split",
        "relax.strided_slice",
        "relax.take",
    },  # what cuts a dimension
    # What TVM's frontends compute indices by, and what they look up with them.
    "interop/_known_indices.py": relax_names(
        "add arange argmax argmin argsort astype broadcast_to clip concat expand_dims flatten flip "
        "floor_divide floor_mod gather_elements less memory.view multiply permute_dims repeat "
        "reshape shape_of shape_to_tensor squeeze stack strided_slice subtract take tile topk where"
    ),
    "interop/_lookups.py": relax_names(
        "gather_elements gather_nd index_put index_tensor scatter_elements scatter_nd take"
    ),
    # What drops in a training step, and nowhere else.
    "training/dropout.py": {"relax.nn.dropout"},
    # What begins and ends regions that are computed again.
    "training/recompute.py": {"relax.grad.start_checkpoint", "relax.grad.end_checkpoint"},
    # Gradients of TVM's that are corrected, and moments of an optimiser, which are named so.
    "training/gradients.py": {"relax.nn.conv2d", "relax.take"},
    "training/optimizers.py": {"relax.mean", "relax.square"},
    # What an imported loop counts down by.
    "interop/jax/export/loops.py": {"relax.equal", "relax.subtract"},
}


def operators_named_in(path: Path) -> set[str]:
    code = COMMENT.sub("", path.read_text(encoding="utf-8"))
    named = set(re.findall(r'"(relax\.[\w.]+)"', code)) & OPERATORS
    return {name for name in named if not CALLS.fullmatch(name)}


FILES = sorted(path for path in SOURCE.rglob("*") if path.suffix in {".cc", ".h"})


@pytest.mark.every_case
@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.relative_to(SOURCE).parts[0] != "ops"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_operator_is_named_outside_of_its_family(path):
    where = str(path.relative_to(SOURCE))
    assert operators_named_in(path) == PATTERNS.get(where, set())


REDUCTIONS = (
    {"sum", "max", "min", "prod", "mean"},  # of partial values
    {"sum", "max", "min"},  # of unreduced axes in Shardy's text
)


def operators_listed_in(path: Path) -> set[str]:
    """Operators in literals of a Python file: all full names, and short ones ("sum") in tables."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    exported = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and [ast.unparse(x) for x in node.targets] == ["__all__"]
    }
    tables = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and node not in exported
    )
    short = [
        {f"relax.{each.value}" for each in table.elts if isinstance(each, ast.Constant)} & OPERATORS
        for table in tables
        if {getattr(each, "value", None) for each in table.elts} not in REDUCTIONS
    ]
    found = (texts & OPERATORS).union(*(names for names in short if len(names) > 1))
    return {name for name in found if not CALLS.fullmatch(name)}


def test_python_has_no_table_of_operators():
    paths = sorted(PACKAGE.rglob("*.py"))
    named = {str(path.relative_to(PACKAGE)): operators_listed_in(path) for path in paths}
    assert {path: names for path, names in named.items() if names} == {**KERNELS, **PYTHON_PATTERNS}


def test_each_operator_is_described_in_one_family():
    described: dict[str, list[str]] = {}
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] == "ops" and path.suffix == ".cc":
            code = COMMENT.sub("", path.read_text(encoding="utf-8"))
            records = re.findall(r'\b(?:Operator|Identity|Elementwise)\(\s*"(relax\.[\w.]+)"', code)
            for name in records:
                described.setdefault(name, []).append(path.name)
    assert len(described) > 150
    assert {name: files for name, files in described.items() if len(files) > 1} == {}
    assert set(described) <= OPERATORS
