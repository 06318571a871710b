"""Timelines against closed forms and against the simulation of schedules."""

import importlib
import itertools
import pickle
import random

import pytest
from tests.analysis.pipelines import CPUS, FREE, GPUS, meshes, placed, staged
from tests.analysis.programs import CPU, GPU, function, megatron, on
from tests.analysis.test_estimate import Symbolic
from tests.analysis.test_memory import Branches, Calls
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.analysis import simulate

BOTH = pytest.mark.parametrize("cluster", [CPUS, GPUS], ids=["cpu", "gpu"])


@BOTH
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 1), (2, 3), (3, 5), (4, 16)])
def test_bubble_of_equal_stages(cluster, schedule, p, m):
    mod = staged([(i, 3) for i in range(p)])
    found = simulate(mod, cluster, microbatches=m, schedule=schedule)
    assert found.seconds == 3 * (m + p - 1)
    assert found.bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
    assert found.utilization == pytest.approx(m / (m + p - 1))


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (2, 2, 4), (2, 3, 4), (3, 2, 6), (4, 2, 8)])
def test_bubble_of_interleaved_stages(p, v, m):
    mod = staged([(i % p, 1) for i in range(p * v)], loops=True)
    found = simulate(mod, CPUS, microbatches=m)
    assert found.schedule == "interleaved"
    assert found.bubble == pytest.approx((p - 1) / (v * m + p - 1))
    assert simulate(mod, GPUS, microbatches=m, overlap=True).seconds == found.seconds


def test_gpus_refuse_several_stages():
    mod = staged([(0, 1), (1, 1), (0, 1)], loops=True)
    with pytest.raises(ValueError, match="sessions on GPUs refuse"):
        simulate(mod, GPUS)


@BOTH
@pytest.mark.parametrize(("a", "b"), [(1, 4), (4, 1), (2, 3)])
def test_unequal_stages(cluster, a, b):
    found = simulate(staged([(0, a), (1, b)]), cluster, microbatches=5)
    assert found.seconds == a + b + 4 * max(a, b)
    time = found.by_stage()
    assert (time[0].computing, time[1].computing) == (5 * a, 5 * b)
    assert time[0].idle == found.seconds - 5 * a


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "interleaved"])
def test_times_are_those_of_the_schedule(kind):
    rng = random.Random(kind)
    for _ in range(4):
        devices, virtual = rng.randrange(1, 4), rng.randrange(2, 4) if kind == "interleaved" else 1
        m, seconds = rng.randrange(1, 7), [rng.randrange(1, 6) for _ in range(devices * virtual)]
        if kind == "interleaved":
            devices, seconds = 2, [rng.randrange(1, 6) for _ in range(2 * virtual)]
        mod = staged([(i % devices, each) for i, each in enumerate(seconds)], loops=virtual > 1)
        found = simulate(mod, CPUS, microbatches=m, schedule=kind)
        plan = dx.stages.schedule(kind, len(seconds), m, virtual)
        expected = {
            (each.stage, each.microbatch): (each.begin, each.end)
            for each in dx.stages.simulate(plan, seconds).events
        }
        kernels = [each for each in found.events if each.kind == "kernel"]
        for key, (begin, end) in expected.items():
            mine = [each for each in kernels if (each.stage, each.microbatch) == key]
            assert (mine[0].start, mine[-1].end) == (begin, end), (key, seconds)


def test_a_sender_of_a_gpu_waits_for_its_receiver():
    mod = staged([(0, 1), (1, 5)])
    ends = [
        max(each.end for each in simulate(mod, on, microbatches=3).of_device(0))
        for on in (CPUS, GPUS)
    ]
    assert ends == [3, 11]  # on a GPU, when the third microbatch is received


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_collectives_take_the_time_of_a_ring(n):
    link = dx.Link(latency=0.0, bandwidth=1e3)
    cluster = dx.Cluster.uniform(link, 0.25, device=GPU)
    mesh = dx.Mesh(tp=n)

    def only(plan, *dims):
        shapes = {"x": (n, 4 * n), "w": (4 * n, 6)}
        mod = function(shapes, lambda emit, x, w: placed(emit(op.matmul(x, w)), mesh, *dims))
        found = simulate(dx.annotate(mod, mesh, plan), cluster)
        (each,) = (each for each in found.of_device(0) if each.stream == "communication")
        return each.kind, each.duration

    sent = 4 * 6 * (n - 1) / 1e3  # of n rows of the result, by devices that keep one
    partial = {"x": (None, "tp"), "w": ("tp", None)}
    assert only(partial, None, None) == ("all_reduce", pytest.approx(0.25 + 2 * sent))
    assert only(partial, "tp", None) == ("reduce_scatter", pytest.approx(0.25 + sent))
    rows = {"x": ("tp", None), "w": (None, None)}
    assert only(rows, None, None) == ("all_gather", pytest.approx(0.25 + sent))


@BOTH
def test_disjoint_meshes_run_independently(cluster):
    a, b = meshes(2, 2)
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((2,), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        first, second = builder.emit(placed(x, a, "tp")), builder.emit(placed(y, b, None))
        for _ in range(3):
            first = builder.emit(op.add(first, first))
            second = builder.emit(op.add(second, second))
        builder.emit_func_output(relax.Tuple([first, second]))
    mod = builder.get()
    mod.update_global_info("mesh", [a.device_mesh, b.device_mesh])
    found = simulate(mod, cluster, microbatches=2)
    time = found.by_device()
    assert [time[device].computing for device in range(4)] == [6, 6, 12, 12]
    assert found.seconds == 12
    assert not any(each.waited for each in found.events)
    assert [group.device_ids for group in found.groups] == [(0, 1), (2, 3)]


@pytest.mark.parametrize("device", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "mod",
    [
        megatron(layers=3),
        *(dx.annotate(m, dx.Mesh(tp=2), {"x": (None, "tp")}) for m in (Calls, Branches)),
    ],
    ids=["megatron", "calls", "branches"],
)
def test_one_program_takes_as_long_as_its_estimate(mod, device):
    found, estimate = simulate(mod, on(device)), dx.analysis.estimate(mod, on(device))
    (program,) = estimate.programs
    assert found.seconds == pytest.approx(program.seconds)
    kernels = sum(each.count for each in program.kernels)
    collectives = sum(each.count for each in program.collectives)
    streams = [each.stream for each in found.of_device(1)]
    assert streams.count("compute") == kernels
    assert streams.count("communication") == collectives
    assert found.exposed_communication == pytest.approx(program.collective_seconds)
    assert found.bubble == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("until", ["propagated", "legalized", "lowered"])
def test_every_phase_has_the_timeline_of_the_program_that_runs(until):
    mod = megatron()
    assert simulate(dx.lower(mod, on(), until=until), on()).rows() == simulate(mod, on()).rows()


@pytest.mark.parametrize("cluster", [CPUS, GPUS, on(CPU), on(GPU)])
def test_the_critical_path_sums_to_the_whole(cluster):
    found = simulate(staged([(0, 2), (1, 5), (2, 3)]), cluster, microbatches=4)
    path = found.critical_path
    assert sum(each.duration for each in path) == pytest.approx(found.seconds)
    assert path[0].start == 0
    assert path[-1].end == found.seconds
    for event, later in itertools.pairwise(path):
        assert later.start == pytest.approx(event.end)
    assert sum(each.share for each in found.critical_operators) == pytest.approx(1)


def test_what_an_operator_costs_is_what_the_rest_takes_without_it():
    on_mesh = meshes(2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        value = builder.emit(placed(x, on_mesh[0], None))
        value = builder.emit(op.add(value, value))
        value = builder.emit(placed(value, on_mesh[1], None))
        value = builder.emit(op.sum(builder.emit(op.reshape(value, (3, 1)))))
        value = builder.emit(op.multiply(value, value))
        builder.emit_func_output(value)
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in on_mesh])
    found = simulate(mod, CPUS, microbatches=10)
    assert found.seconds == 3 + 10 * 4  # add takes 3, sum 3 and multiply 1
    saved = sorted(each.saved for each in found.critical_operators if each.kind == "kernel")
    # Without the product both stages take 3, without the sum the first one is the slow one.
    assert saved == [3, 43 - (11 * 3), 43 - (10 * 3 + 1)]


def branches(emit, x, w, v):
    reduced = emit(op.matmul(x, w))  # summed over devices
    other = v
    for _ in range(4):
        other = emit(op.nn.softmax(other))
    return op.add(reduced, other)


def test_overlap_hides_communication_behind_what_does_not_need_it():
    link = dx.Link(latency=0.0, bandwidth=1e2)
    cluster = dx.Cluster.uniform(link, 0.0, device=CPU)
    shapes = {"x": (8, 8), "w": (8, 8), "v": (8, 8)}
    plan = {"x": (None, "tp"), "w": ("tp", None)}
    mod = dx.annotate(function(shapes, branches), dx.Mesh(tp=2), plan)
    plain, own = (simulate(mod, cluster, overlap=overlap) for overlap in (False, True))
    time = plain.by_device()[0]
    assert time.exposed == time.communicating > 0
    (reduce,) = [each for each in own.of_device(0) if each.stream == "communication"]
    kernels = [each for each in own.of_device(0) if each.stream == "compute"]
    hidden = sum(
        max(0.0, min(each.end, reduce.end) - max(each.start, reduce.start)) for each in kernels
    )
    assert hidden > 0
    assert kernels[-1].start == pytest.approx(max(reduce.end, kernels[-2].end))
    assert own.by_device()[0].exposed == pytest.approx(reduce.duration - hidden)
    assert own.seconds == pytest.approx(plain.seconds - hidden)


def test_overlap_waits_for_what_is_read_in_calls_and_branches():
    for mod in (megatron(3), dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")})):
        plain, own = (simulate(mod, on(CPU), overlap=overlap) for overlap in (False, True))
        # Each kernel reads what the collective before gives.
        assert own.seconds == pytest.approx(plain.seconds)


def test_symbolic_sizes_get_values():
    mod = dx.annotate(Symbolic, dx.Mesh(tp=2), {"w": (None, "tp")})
    found = simulate(mod, CPUS, sizes={"rows": 4, "columns": 6})
    assert found.seconds == 2 * 4 * 8 * 3
    with pytest.raises(ValueError, match=r"symbolic sizes need values: sizes=\{'columns'"):
        simulate(mod, CPUS, sizes={"rows": 4})


def test_a_function_is_chosen():
    mod = megatron()
    both = mod.clone() if hasattr(mod, "clone") else mod
    both["other"] = mod["main"].with_attr("global_symbol", "other")
    with pytest.raises(ValueError, match="several functions, main, other: state function="):
        simulate(both, on())
    with pytest.raises(ValueError, match="no function 'mein'; did you mean 'main'"):
        simulate(both, on(), function="mein")
    assert simulate(both, on(), function="other").seconds == simulate(mod, on()).seconds


PLAIN = function({"x": (4, 4)}, lambda emit, x: op.exp(x))


@pytest.mark.parametrize(
    ("mod", "cluster", "options", "error", "message"),
    [
        (PLAIN, on(), {}, ValueError, "no sharding annotations"),
        (megatron(), dx.Cluster.uniform(), {}, ValueError, "says nothing of its devices"),
        (megatron(), GPU, {}, TypeError, r"a cluster is a distir_ext\.Cluster, not a Device"),
        (megatron(), on(), {"microbatches": 0}, ValueError, "microbatches is 0"),
        (megatron(), on(), {"schedule": "zigzag"}, ValueError, "no schedule 'zigzag'"),
        (megatron(), on(), {"schedule": "interleaved"}, ValueError, "one stage each"),
        (megatron(), on(), {"sizes": {"n": 2}}, ValueError, "no symbolic size 'n'"),
    ],
)
def test_bad_input_is_one_error(mod, cluster, options, error, message):
    with pytest.raises(error, match=message):
        simulate(mod, cluster, **options)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0])
def test_clusters_state_what_can_be(bandwidth):
    with pytest.raises(ValueError, match="bandwidth of a link is positive"):
        dx.Link(latency=0.0, bandwidth=bandwidth)
    with pytest.raises(ValueError, match="memory bandwidth of device 'x' are positive"):
        dx.Cluster.uniform(
            FREE,
            device={
                "name": "x",
                "flops": {"float32": 1.0},
                "memory": 1.0,
                "bandwidth": bandwidth,
                "launch": 0.0,
            },
        )
    with pytest.raises(ValueError, match="no field 'bandwith'; did you mean 'bandwidth'"):
        dx.Cluster.uniform(FREE, device={"bandwith": 1.0})


def test_devices_that_wait_for_each_other_are_an_error(monkeypatch):
    module = importlib.import_module("distir_ext.analysis.pipeline_layout")
    made = module.schedule_of_programs

    def renamed(*arguments):  # past the check of simulate
        plan = made(*arguments)
        return dx.stages.Schedule("gpipe", plan.stages, plan.microbatches, plan.devices)

    monkeypatch.setattr(module, "schedule_of_programs", renamed)
    mod = staged([(0, 1), (1, 1), (0, 1), (1, 1)], loops=True)
    with pytest.raises(ValueError, match=r"wait for each other for ever: (send|recv) of .* on"):
        simulate(mod, GPUS, microbatches=2)


def test_kernels_that_fit_into_a_cache_are_as_fast_as_it_is():
    caches = {1000.0: 400.0, 10_000.0: 200.0}
    for rows, bandwidth in ((100, 400.0), (1000, 200.0), (2000, 100.0)):
        device = dx.Device("cpu", {"float32": 1e9}, 1e9, 100.0, 0.0, "llvm", caches)
        mod = function({"x": (rows,)}, lambda emit, x: op.negative(x))
        mod = dx.annotate(mod, dx.Mesh(tp=1), {"x": (None,)})
        found = simulate(mod, dx.Cluster.uniform(FREE, device=device))
        assert found.seconds == pytest.approx(8 * rows / bandwidth)  # read once, written once


def test_a_timeline_is_data():
    found = simulate(staged([(0, 2), (1, 3)], size=2), CPUS, microbatches=2)
    copied = pickle.loads(pickle.dumps(found))
    assert str(copied) == str(found)
    assert copied.critical_path == found.critical_path
    rows = found.rows(devices=[3])
    assert [each.device for each in found.of_device(3)] == [row["device"] for row in rows]
    assert rows[-1]["end"] == found.seconds
    assert found.events[-1] == list(found.events)[-1] == found.events[len(found.events) - 1]
    assert len(found.events[2:4]) == 2
    with pytest.raises(IndexError, match="there is no event"):
        found.events[len(found.events)]
    with pytest.raises(KeyError, match=r"no device 4, only 0\.\.3"):
        found.of_device(4)


def test_a_timeline_prints():
    text = str(simulate(staged([(0, 2), (1, 3)], size=2), CPUS, microbatches=4))
    assert "main: 14 s for 4 microbatches (gpipe), on cpu" in text
    assert "0, 1" in text
    assert "saved if free" in text
    html = simulate(megatron(), on())._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 2
