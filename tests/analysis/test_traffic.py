"""Bytes that an estimate says are sent are those that workers count when the program runs."""

import numpy as np
import pytest
from tests.analysis.programs import CPU, function, megatron, on
from tests.analysis.test_memory import Calls
from tests.lower.stage_programs import Disjoint, Overlapping, SymbolicStages
from tests.stages.programs import chain, staged
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.demo import llama
from distir_ext.signature.signature import parse_signature

# One to the runtime: it gets a plan of pieces.
MOVED = {"permute": "transfer", "exchange": "transfer"}


def statistics(mod, sizes, workers):
    """Of one call of the program's function."""
    exe = dx.build(mod, cluster=on(CPU))
    signature = parse_signature(exe.distir_signature)
    (spec,) = signature.functions.values()

    def value(param):
        shape = [size if isinstance(size, int) else sizes[size] for size in param.spec.shape]
        return np.ones(shape, param.spec.dtype)

    weights = {param.name: value(param) for param in spec.weights}
    with dx.Session(max(signature.device_ids) + 1, workers=workers) as session:
        session.load(exe, params=weights)(*(value(param) for param in spec.inputs))
        return session.statistics()


def check(mod, *kinds, sizes=None, workers="threads"):
    """Compares bytes by kind and by axes, and the number of collectives.

    Args:
        mod: A program with one function.
        *kinds: What it is to communicate by.
        sizes: Of symbolic dimensions.
        workers: What runs it.
    """
    counted = statistics(mod, sizes, workers)
    assert set(kinds) == {each.kind for each in counted.traffic}
    programs = dx.analysis.estimate(mod, on(CPU), sizes=sizes).programs
    devices = {device for program in programs for device in program.device_ids}
    for device in devices:
        # Those of all virtual stages of a device run for a call.
        mine = [program for program in programs if device in program.device_ids]
        ids = {each for program in mine for each in program.device_ids}
        by_kind, by_axis, calls = {}, {}, 0
        for program in mine:
            for each in program.collectives:
                kind = MOVED.get(each.kind, each.kind)
                sent = each.count * each.bytes_per_device
                by_kind[kind] = by_kind.get(kind, 0) + sent
                calls += each.count
            for axes, total in program.by_axis().items():
                by_axis[axes] = by_axis.get(axes, 0) + total.bytes_per_device
        found = counted.of_devices(*ids)
        assert found.by_kind() == by_kind
        assert found.by_axis() == by_axis
        assert counted.of_devices(device).collectives == calls
    assert sum(each.bytes_sent for each in counted.traffic) == sum(
        each.bytes_received for each in counted.traffic
    )


MESH = dx.Mesh(dp=2, tp=2)
UNEVEN = {"x": (7, 9), "w": (9, 11), "v": (11, 5)}
PLANS = {
    "data": ({"x": (("dp", "tp"), None), "w": (("dp", "tp"), None)}, ["all_gather"]),
    "rows": ({"w": (("dp", "tp"), None)}, ["all_reduce"]),
    "megatron": ({"x": ("dp", None), "w": (None, "tp"), "v": ("tp", None)}, ["all_reduce"]),
    "permuted": (
        {"x": (None, ("dp", "tp")), "w": (("tp", "dp"), None)},
        ["all_reduce", "transfer"],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_products_and_a_softmax(name):
    def write(emit, x, w, v):
        return op.matmul(emit(op.nn.softmax(emit(op.matmul(x, w)))), v)

    plan, kinds = PLANS[name]
    check(dx.annotate(function(UNEVEN, write), MESH, plan), *kinds)


REDISTRIBUTED = {
    "all_to_all": (dx.Mesh(a=3), ("a", None), (None, "a"), ["all_to_all"]),
    "two_axes": (dx.Mesh(a=3, b=2), ("a", "b"), ("b", "a"), ["transfer"]),
    "gathered": (dx.Mesh(a=3, b=2), (("b", "a"), None), ("b", None), ["all_gather"]),
    "permuted": (dx.Mesh(a=2, b=2), (("a", "b"), None), (("b", "a"), None), ["transfer"]),
}


@pytest.mark.parametrize("name", REDISTRIBUTED)
def test_redistributions(name):
    mesh, source, target, kinds = REDISTRIBUTED[name]

    def write(emit, x):
        return op.nn.relu(emit(op.nn.relu(x), "y"))

    check(dx.annotate(function({"x": (12, 6)}, write), mesh, {"x": source, "y": target}), *kinds)


def test_a_sum_that_is_scattered():
    def write(emit, x, w):
        return op.nn.relu(emit(op.matmul(x, w), "y"))

    plan = {"x": (None, "tp"), "w": ("tp", None), "y": ("tp", None)}
    mod = function({"x": (6, 9), "w": (9, 5)}, write)
    check(dx.annotate(mod, dx.Mesh(tp=3), plan), "reduce_scatter")


MOVES = {
    "slice": lambda x: op.strided_slice(x, [0], [2], [10], [2]),
    "flip": lambda x: op.flip(x, 0),
    "windows": lambda x: op.nn.max_pool2d(op.reshape(x, (1, 1, *x.ty.shape)), (3, 1), padding=1),
}


@pytest.mark.parametrize("name", MOVES)
def test_elements_that_move_along_a_dimension(name):
    mod = function({"x": (10, 6)}, lambda emit, x: MOVES[name](x))
    check(dx.annotate(mod, dx.Mesh(tp=4), {"x": ("tp", None)}), "segment_exchange")


CONFIG = llama.LlamaConfig(
    layers=1, hidden=32, heads=4, kv_heads=2, feed_forward=48, vocabulary=64, batch=4, sequence=8
)
FSDP = {"ids": ("dp", None), r".*(proj|lm_head)\.weight": (("dp", "tp"), None)}


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        (llama.PLAN, ["all_reduce"]),
        (FSDP, ["all_gather", "transfer"]),
        (llama.PLAN | {r".*\.(o|down)_proj\.weight": ("dp", "tp")}, ["all_gather", "all_reduce"]),
    ],
    ids=["megatron", "fsdp", "both"],
)
def test_a_decoder_written_as_a_module(plan, kinds):
    check(dx.annotate(llama.export(CONFIG)[0], MESH, plan, func="forward"), *kinds)


@I.ir_module
class Collected:
    """Rows of four devices go to the last one, which sends nothing."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((1,), I.Range(3, 4))]}
    )

    @R.function
    def main(x: R.Tensor((8, 16), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.nn.relu(x0)
        a1 = R.dist.annotate_sharding(a, "mesh[1]", "R")
        return R.nn.relu(a1)


@pytest.mark.parametrize(
    ("mod", "kinds"),
    [
        (Disjoint, ["send", "recv"]),
        (Overlapping, ["send", "recv", "transfer"]),
        (Collected, ["send", "transfer"]),
    ],
    ids=["disjoint", "overlapping", "collected"],
)
def test_stages(mod, kinds):
    check(mod, *kinds)


def test_sizes_that_are_known_at_run_time():
    check(SymbolicStages, "send", "recv", sizes={"n": 8})


def test_devices_with_several_stages():
    check(staged(chain([8] * 5), dx.Mesh((2,), ("pp",)), "pp", interleave=2), "send", "recv")


def test_calls_of_functions():
    check(dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")}), "all_reduce")


def test_processes_count_what_threads_count():
    mod = megatron(3)
    check(mod, "all_reduce", workers="processes")
    threads, processes = (statistics(mod, None, kind) for kind in ("threads", "processes"))
    assert threads == processes


@I.ir_module
class Doubling:
    """Doubles until the sum is large: every step sums what is sharded, and then calls itself."""

    @R.function(private=True)
    def step(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = Doubling
        total = R.sum(x)
        if R.less(total, R.const(1e30, "float32")):
            r = cls.step(R.multiply(x, R.const(2.0, "float32")))
        else:
            r = x
        return r

    @R.function
    def main(x: R.Tensor((4, 8), "float32")) -> R.Tensor((4, 8), "float32"):
        cls = Doubling
        first = R.sum(x)
        r = cls.step(R.add(x, first))
        return r


def test_a_loop_says_that_it_counts_one_iteration():
    mod = dx.annotate(Doubling, dx.Mesh(tp=2), {"x": (None, "tp")})
    before, inside = dx.analysis.collectives(dx.lower(mod))
    assert (before.kind, before.count, before.per_iteration) == ("all_reduce", 1, False)
    assert (inside.kind, inside.count, inside.per_iteration) == ("all_reduce", 1, True)
    exe = dx.build(mod)
    assert dx.analysis.collectives(exe) == [before, inside]
    x = np.ones((4, 8), "float32")
    with dx.Session(2) as session:
        result = session.load(exe)["main"](x).numpy()
        counted = session.statistics().of_devices(0)
    steps = round(np.log2(result[0, 0] / 33)) + 1
    assert steps > 64
    assert counted.collectives == before.count + steps * inside.count
    assert counted.bytes_sent == before.bytes_per_device + steps * inside.bytes_per_device
    assert "1 per iteration" in str(
        dx.analysis.collective_table([before, inside]).columns[4]._cells
    )
