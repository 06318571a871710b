"""Tests of estimates: phases, communication, calls, branches, layers, symbolic sizes."""

import json
import math

import pytest
from tests.analysis.programs import CPU, GPU, function, megatron, on, on_two
from tests.analysis.test_memory import Branches, Calls
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.analysis.layers import layer_of_weight
from distir_ext.analysis.programs import planned_steps

MESH = dx.Mesh(dp=2, tp=2)


def only_program(mod, device=GPU, **options):
    (program,) = dx.analysis.estimate(mod, on(device), **options).programs
    return program


def figures(mod):
    found = dx.analysis.estimate(mod, on())
    return found.flops, found.bytes_accessed, found.bytes_sent, found.seconds, found.peak_memory


@pytest.mark.parametrize("until", ["propagated", "legalized", "lowered", "runtime"])
def test_every_phase_has_the_figures_of_the_program_that_runs(until):
    mod = megatron()
    assert figures(dx.lower(mod, on(), until=until)) == figures(mod)


def test_the_module_stays_as_it_is():
    mod = megatron()
    before = mod.script()
    dx.analysis.estimate(mod, on())
    assert mod.script() == before


def test_collectives_say_what_is_sent_and_why():
    program = only_program(megatron(layers=2))
    first, second = program.collectives
    assert (first.kind, first.axes, first.group_size) == ("all_reduce", ("tp",), 2)
    assert first.operators == ("relax.matmul",)
    assert first.bytes_per_device == 4 * 8 * 4  # of two devices each sends its half twice
    assert first.seconds == pytest.approx(8.4e-6 + 2 * 3.9e-6 + 4 * 8 * 4 / 450e9)
    assert (first.layer, second.layer) == ("layers.0", "layers.1")
    (total,) = program.by_axis().items()
    assert total == ("tp", dx.analysis.AxisTotal(2, 2 * 4 * 8 * 4, 2 * first.seconds))


@relax.expr_functor.mutator
class WithCallees(relax.PyExprMutator):
    """Gives the calls of packed functions, in order, other callees."""

    def __init__(self, callees):
        super().__init__()
        self.callees = iter(callees)

    def visit_extern_func_(self, callee):
        return next(self.callees)


def test_a_step_carries_the_cause_of_its_collective(monkeypatch):
    """TVM's passes may move calls, rename what they bind, or leave out some."""
    plan = planned_steps.plan

    def collectives(change):
        def plan_changed(mod, *args):
            callees = []
            relax.analysis.post_order_visit(
                mod["main"],
                lambda e: callees.append(e) if isinstance(e, relax.ExternFunc) else None,
            )
            main = WithCallees(change(callees)).visit_expr(mod["main"])
            mod.update_func(mod.get_global_var("main"), main)
            return plan(mod, *args)

        monkeypatch.setattr(planned_steps, "plan", plan_changed)
        return only_program(megatron(layers=3)).collectives

    found, moved = collectives(list), collectives(reversed)
    assert len({each.tensors for each in found}) == 3
    assert [each.tensors for each in moved] == [each.tensors for each in found][::-1]
    assert [each.name for each in moved] == [each.name for each in found]
    with pytest.raises(ValueError, match="all_reduce that gives lv2 is not in the lowered program"):
        collectives(lambda callees: [relax.ExternFunc(each.global_symbol) for each in callees])


SHAPES = {"x": (8, 16), "w": (16, 16), "v": (16, 16)}
MOVES = {
    "gathered": {"w": (("dp", "tp"), None)},
    "reduced": {"x": ("dp", "tp"), "w": ("tp", None)},
    "both": {"x": ("dp", None), "w": (None, "tp"), "v": ("tp", None)},
    "exchanged": {"w": ("dp", "tp"), "v": ("tp", "dp")},
    "permuted": {"x": (None, ("dp", "tp")), "w": (("tp", "dp"), None)},
    "uneven": {"x": (None, None), "w": (None, ("dp", "tp"))},
}


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", MOVES)
def test_bytes_are_those_of_the_lowered_collectives(name, device):
    def write(emit, x, w, v):
        return op.matmul(emit(op.nn.softmax(emit(op.matmul(x, w)))), v)

    mod = dx.annotate(function(SHAPES, write), MESH, MOVES[name])
    target = "llvm" if device is CPU else "cuda"
    assert device.target == target
    program = only_program(mod, device)
    built = dx.build(mod, "llvm") if device is CPU else dx.lower(mod)
    listed = dx.analysis.collectives(built)
    assert sum(each.bytes_per_device * each.count for each in listed) == program.bytes_sent
    assert sum(each.count for each in listed) == sum(each.count for each in program.collectives)
    assert all(each.seconds > 0 for each in program.collectives)


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("mod", [Calls, Branches], ids=["calls", "branches"])
def test_collectives_of_calls_and_branches_are_counted(mod, device):
    mod = dx.annotate(mod, dx.Mesh(tp=2), {"x": (None, "tp")})
    program = only_program(mod, device)
    listed = dx.analysis.collectives(dx.lower(mod))  # one side of the branch has none
    assert program.bytes_sent == sum(each.bytes_per_device * each.count for each in listed) > 0
    assert all(each.axes == ("tp",) and each.operators for each in program.collectives)


def test_calls_are_multiplied_out():
    mod = dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, None)})
    program = only_program(mod)
    inside = [each for each in program.kernels if each.function.startswith("inner")]
    assert inside
    assert sum(each.count for each in inside) == 2 * sum(
        1 for each in {(each.function, each.name) for each in inside}
    )
    softmax, product = 4 * 8 * 16, 2 * 8 * 16 * 8
    assert program.cost.flops == softmax + 2 * (3 * softmax + 2 * product) + 8 * 16
    assert set(program.by_function()) == {each.function for each in program.kernels}


def test_the_more_expensive_side_of_a_branch_counts():
    program = only_program(dx.annotate(Branches, dx.Mesh(tp=2), {"x": (None, None)}))
    counts = {each.kernel: each.count for each in program.kernels if "relu" in each.kernel}
    assert list(counts.values()) == [0]
    assert program.cost.flops == 4 * (4 * 8 * 16) + 8 * 16


def test_layers_are_read_off_the_names_of_weights():
    program = only_program(megatron(layers=3))
    layers = program.by_layer()
    assert list(layers) == ["layers.0", "layers.1", "layers.2", ""]
    assert layers[""].flops == 2 * 4 * 8 * 4  # the head
    assert layers["layers.0"] == layers["layers.1"] == layers["layers.2"]
    assert layer_of_weight("p_model_layers_3_up_weight") == "p_model_layers_3"
    assert layer_of_weight("w0") == layer_of_weight("fc1_weight") == ""


def test_a_function_called_for_each_layer_is_told_apart_by_its_weights():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType((8, 8), "float32")) for n in "xw")
    with builder.function("layer", [x, w], private=True):
        layer = builder.emit_func_output(builder.emit(op.nn.softmax(op.matmul(x, w))))
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(f"layers.{i}.w", relax.TensorType((8, 8), "float32")) for i in range(3)]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        value = x
        for weight in weights:
            value = builder.emit(relax.Call(layer, [value, weight]))
        builder.emit_func_output(value)
    mod = dx.annotate(builder.get(), dx.Mesh(tp=2), {r"layers\.\d\.w": (None, "tp")})
    layers = only_program(mod).by_layer()
    assert list(layers) == [f"layers.{i}" for i in range(3)]
    assert len({each.flops for each in layers.values()}) == 1


@I.ir_module
class Symbolic:
    @R.function
    def main(
        x: R.Tensor(("rows", 8), "float32"), w: R.Tensor((8, "columns"), "float32")
    ) -> R.Tensor(("rows", "columns"), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y


def test_symbolic_sizes_get_values():
    mod = dx.annotate(Symbolic, dx.Mesh(tp=2), {"w": (None, "tp")})
    program = only_program(mod, sizes={"rows": 4, "columns": 6})
    assert program.cost.flops == 2 * 4 * 8 * 3
    with pytest.raises(
        ValueError, match=r"symbolic sizes need values: sizes=\{'columns': \.\.\.\}"
    ):
        dx.analysis.estimate(mod, on(), sizes={"rows": 4})
    with pytest.raises(ValueError, match="no symbolic size 'row'; did you mean 'rows'"):
        dx.analysis.estimate(mod, on(), sizes={"row": 4, "columns": 6})
    with pytest.raises(ValueError, match="size 'rows' is a positive integer, not 0"):
        dx.analysis.estimate(mod, on(), sizes={"rows": 0, "columns": 6})


def test_stages_are_programs_of_their_own():
    meshes = [dx.Mesh((2,), ("tp",), device_ids=[2 * i, 2 * i + 1]) for i in range(2)]
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    weights = [relax.Var(f"w{i}", relax.TensorType((8, 8), "float32")) for i in range(2)]
    with builder.function("main", [x, *weights], {"num_input": 1}):
        value = x
        for mesh, weight in zip(meshes, weights, strict=True):
            placed = relax.op.distributed.annotate_sharding(
                weight, mesh.device_mesh, mesh.placement(None, "tp")
            )
            value = builder.emit(op.matmul(value, builder.emit(placed)))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in meshes])
    found = dx.analysis.estimate(mod, on())
    assert [each.device_ids for each in found.programs] == [(0, 1), (2, 3)]
    assert {each.memory.weights for each in found.programs} == {4 * 8 * 4}
    sends, receives = (
        [c for p in found.programs for c in p.collectives if c.kind == kind]
        for kind in ("send", "recv")
    )
    assert len(sends) == len(receives) > 0
    assert all(each.seconds > 0 for each in receives)
    assert not any(each.seconds for each in sends)
    assert set(found.memory_by_device()) == {0, 1, 2, 3}


def test_what_does_not_fit_is_said():
    small = dx.Device("small", {"float32": 1e9}, memory=100, bandwidth=1e9, launch=0.0)
    found = dx.analysis.estimate(megatron(), on(small))
    assert not found.fits
    assert "but a device has 100 B" in str(found)
    assert dx.analysis.estimate(megatron(), on()).fits


def test_an_estimate_is_data():
    found = dx.analysis.estimate(megatron(), on())
    data = json.loads(found.to_json())
    assert data["flops"] == found.flops > 0
    assert data["programs"][0]["collectives"][0]["axes"] == ["tp"]
    rows = found.rows()
    assert {row["kind"] for row in rows} == {"kernel", "collective"}
    assert sum(row["flops"] * row["count"] for row in rows) == found.flops
    assert all(set(row) == set(rows[0]) for row in rows)
    assert found["main"] is found.programs[0]
    with pytest.raises(KeyError, match="no program 'other'"):
        found["other"]


def test_an_estimate_prints():
    text = str(dx.analysis.estimate(megatron(layers=3), on()))
    assert "layers.0 .. layers.2" in text
    assert "all_reduce" in text
    assert max(map(len, text.splitlines())) <= 120
    html = dx.analysis.estimate(megatron(), on())._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 5


def test_kernels_are_counted_once_for_each_layer():
    two, four = (len(only_program(megatron(layers)).kernels) for layers in (2, 4))
    assert four - two == 2 * 3
    assert math.isclose(
        only_program(megatron(4)).by_layer()["layers.3"].seconds,
        only_program(megatron(2)).by_layer()["layers.0"].seconds,
    )


REPLICATED = {"x": (None, None)}
PLAIN = function({"x": (4, 4)}, lambda emit, x: op.exp(x))


@pytest.mark.parametrize(
    ("mod", "cluster", "error", "message"),
    [
        (PLAIN, on(), ValueError, "no sharding annotations"),
        (megatron(), dx.Cluster.uniform(), ValueError, "says nothing of its devices"),
        (megatron(), GPU, TypeError, r"a cluster is a distir_ext\.Cluster, not a Device"),
        ("main", on(), TypeError, r"expected a tvm\.IRModule, got str"),
        (
            on_two(
                function({"x": (4, 4)}, lambda emit, x: op.add(x, x), dtype="float64"), REPLICATED
            ),
            on(),
            ValueError,
            "no operations per second for float64",
        ),
    ],
)
def test_bad_input_is_one_error(mod, cluster, error, message):
    with pytest.raises(error, match=message):
        dx.analysis.estimate(mod, cluster)


@I.ir_module
class Recursive:
    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = Recursive
        y: R.Tensor((8, 16), "float32") = cls.main(x)
        return y


def test_recursion_is_refused():
    mod = dx.annotate(Recursive, dx.Mesh(tp=2), {"x": (None, None)})
    with pytest.raises(ValueError, match="calls itself"):
        dx.analysis.estimate(mod, on())


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_kernels_are_called_as_the_operators_that_they_end_with(device):
    def write(emit, x, y):
        first = emit(op.exp(emit(op.add(x, y), "sum")), "first")
        return op.add(emit(op.nn.softmax(first, 0), "a"), emit(op.nn.softmax(first, 1), "b"))

    mod = on_two(function({"x": (4, 4), "y": (4, 4)}, write), {"x": (None, None)})
    program = only_program(mod, device)
    names = {each.name: each.kernel for each in program.kernels}
    assert names["first"].startswith("fused_add_")  # TVM calls it lv
    assert len(names) == len(program.kernels)
    assert set(names) <= {each.name for each in program.operators}
