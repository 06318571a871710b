"""Measured times: every kernel and collective by its variable, waiting apart from moving."""

import json
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.analysis.programs import CPU, function, megatron, on
from tests.analysis.test_memory import Branches, Calls
from tests.lower.stage_programs import Disjoint, SymbolicStages
from tests.stages.programs import chain, staged
from tests.stages.timelines import ON_WORKERS, acting
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.compile import cpu
from distir_ext.demo import llama
from distir_ext.native.machine import cpu_target
from distir_ext.session.profiling import _parse_rows, _Row, _Timed, _with_waiting
from distir_ext.session.statistics import Traffic
from distir_ext.signature.signature import parse_signature


def loaded(session, mod):
    """A model with weights of ones, and inputs for it."""
    exe = dx.build(mod, cluster=on(CPU))
    (spec,) = parse_signature(exe.distir_signature).functions.values()

    def value(param):
        shape = [size if isinstance(size, int) else 8 for size in param.spec.shape]
        return np.ones(shape, param.spec.dtype)

    model = session.load(exe, params={param.name: value(param) for param in spec.weights})
    return model[spec.name], [value(param) for param in spec.inputs]


def profiled(mod, workers="threads", devices=4, **options):
    with dx.Session(devices, workers=workers) as session:
        main, inputs = loaded(session, mod)
        return main.profile(*inputs, **{"repeat": 1, "warmup": 0, **options})


CONFIG = llama.LlamaConfig(
    layers=1, hidden=32, heads=4, kv_heads=2, feed_forward=48, vocabulary=64, batch=4, sequence=8
)
MODELS = {
    "decoder": lambda: dx.annotate(
        llama.export(CONFIG)[0], dx.Mesh(dp=2, tp=2), llama.PLAN, func="forward"
    ),
    "calls": lambda: dx.annotate(Calls, dx.Mesh(tp=2), {"x": (None, "tp")}),
    "branches": lambda: dx.annotate(Branches, dx.Mesh(tp=2), {"x": (None, "tp")}),
    "stages": lambda: Disjoint,
    "symbolic": lambda: SymbolicStages,
    "interleaved": lambda: staged(chain([8] * 5), dx.Mesh((2,), ("pp",)), "pp", interleave=2),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_runs_is_what_was_estimated(name):
    """By function, variable, callee and how often, on every device."""
    mod = MODELS[name]()
    sizes = {"n": 8} if name == "symbolic" else None
    found = profiled(mod)
    estimate = dx.analysis.estimate(mod, on(CPU), sizes=sizes)
    for device in found.device_ids:
        expected = {}
        for program in estimate.programs:
            if device not in program.device_ids:
                continue
            for each in program.kernels:
                if each.kernel != "slice":
                    key = (each.function, each.name, "kernel")
                    expected[key] = expected.get(key, 0) + each.count
            for each in program.collectives:
                key = (each.function, each.name, "collective")
                expected[key] = expected.get(key, 0) + each.count
        ran = {}
        for event in found.events:
            if event.device == device and event.callee != "slice":
                key = (event.function, event.name, event.kind)
                ran[key] = ran.get(key, 0) + 1
        assert ran == {key: count for key, count in expected.items() if count}


def test_times_lie_within_the_call_one_after_the_other():
    found = profiled(megatron(), repeat=3, warmup=1, devices=2)
    assert (found.repetitions, found.device_ids) == (3, (0, 1))
    for step in found.steps:
        at = step.start
        mine = [
            e for e in found.events if (e.device, e.repetition) == (step.device, step.repetition)
        ]
        assert mine
        for event in mine:
            assert at <= event.start
            at = event.start + event.duration
            assert 0 <= event.waiting <= event.duration
            assert event.stream == ("compute" if event.kind == "kernel" else "communication")
        assert at <= step.start + step.duration
    assert {e.axes for e in found.events if e.kind == "collective"} == {("tp",)}
    assert found.seconds >= max(total.seconds for total in found.totals())


@tvm_ffi.register_global_func("distir_test.profile.sleep", override=True)
def sleep_as_data_says(x, out):
    """Takes as many seconds as its first element."""
    time.sleep(float(x.numpy().ravel()[0]))
    out.copyfrom(x)


def test_members_of_a_group_wait_for_the_last_one():
    dx.register_rule("distir_test.profile.sleep", "i j -> i j")

    def write(emit, x):
        packed = relax.ExternFunc("distir_test.profile.sleep")
        return op.sum(emit(relax.op.call_dps_packed(packed, (x,), x.ty)), 0)

    mod = dx.annotate(function({"x": (3, 4)}, write), dx.Mesh(tp=3), {"x": ("tp", None)})
    x = np.zeros((3, 4), "float32")
    x[:, 0] = [0.02, 0.08, 0.05]
    with dx.Session(3) as session:
        found = session.load(dx.build(mod))["main"].profile(x, repeat=1)
    (slept, *_) = [total for total in found.totals() if "sleep" in total.callee]
    assert slept.seconds == pytest.approx(0.05, abs=0.02)
    assert slept.slowest >= 0.08
    waited = {e.device: e.waiting for e in found.events if e.kind == "collective"}
    assert waited[0] >= 0.05
    assert 0.02 <= waited[2] <= waited[0]
    assert waited[1] < 0.02


@pytest.mark.large
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_a_stage_waits_for_the_one_before(workers):
    imports = ON_WORKERS if workers == "processes" else ()
    with dx.Session(2, workers=workers, imports=imports) as session:
        main = session.load(dx.build(acting([(0, "sleep", 0.05), (1, "sleep", 0.02)])))["main"]
        found = main.profile(np.ones(1, "float32"), repeat=2)
    received = [event for event in found.events if event.callee == "recv"]
    assert len(received) == 2
    for event in received:
        assert event.device == 1
        assert 0.03 <= event.waiting <= event.duration
    assert [e.waiting for e in found.events if e.callee == "send"] == [0.0, 0.0]
    assert found.seconds >= 0.07


def test_processes_measure_what_threads_do():
    threads, processes = (
        profiled(megatron(), kind, devices=2) for kind in ("threads", "processes")
    )
    keys = [
        [(t.function, t.name, t.kind, t.callee, t.axes, t.devices, t.count) for t in each.totals()]
        for each in (threads, processes)
    ]
    assert keys[0] == keys[1]


def test_results_and_later_calls_are_the_same():
    with dx.Session(2) as session:
        main, inputs = loaded(session, megatron())
        before = main(*inputs).numpy()
        main.profile(*inputs, repeat=2)
        np.testing.assert_array_equal(main(*inputs).numpy(), before)


def test_a_profile_prints_and_is_a_trace(tmp_path):
    found = profiled(megatron(), repeat=2, devices=2)
    text = str(found)
    assert "main: " in text
    assert "median of 2 calls" in text
    assert "all_reduce" in text
    assert max(map(len, text.splitlines())) <= 120
    assert found._repr_html_().count("<table>") == 3
    rows = found.rows()
    assert len(rows) == len(found.events)
    assert {row["kind"] for row in rows} == {"kernel", "collective"}
    found.to_perfetto(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["name"] != "waiting"]
    assert len(spans) == len(found.events)
    assert {event["pid"] for event in events} == {0, 1}
    names = {event["args"].get("name") for event in events if event["ph"] == "M"} - {None}
    assert names == {"device 0", "device 1", "compute", "communication"}
    for pid, tid in {(event["pid"], event["tid"]) for event in spans}:
        mine = [e for e in spans if (e["pid"], e["tid"]) == (pid, tid)]
        ends = [0.0, *(e["ts"] + e["dur"] for e in mine)]
        assert all(end <= e["ts"] + 1e-3 for end, e in zip(ends, mine, strict=False))


def test_bad_input_is_one_error():
    with dx.Session(2) as session:
        main, inputs = loaded(session, megatron())
        for options in ({"repeat": 0}, {"repeat": 1.5}, {"warmup": -1}, {"repeat": True}):
            with pytest.raises(ValueError, match="it must be an integer from"):
                main.profile(*inputs, **options)
        with pytest.raises(TypeError, match='"main" takes 1 input'):
            main.profile()
        with pytest.raises(TypeError, match='"y" is unknown'):
            main.profile(y=inputs[0])
        with pytest.raises(ValueError, match="has size 1, expected 4"):
            main.profile(np.ones((1, 1), "float32"))
        assert main.profile(*inputs, repeat=1).events
    with pytest.raises(RuntimeError, match="the session is closed"):
        main.profile(*inputs)


def test_workers_without_a_common_clock_do_not_know_what_waiting_is():
    with dx.Session(2) as session:
        main, inputs = loaded(session, megatron())
        session._workers.share_a_clock = False
        found = main.profile(*inputs, repeat=1)
    assert {event.waiting for event in found.events} == {0.0, None}
    assert {step.start for step in found.steps} == {0.0}
    assert all(event.moving == event.duration for event in found.events)
    assert "share no clock" in str(found)
    (trace,) = {event.kind for event in found.events if event.waiting is None}
    assert trace == "collective"


def test_an_executable_without_names_has_those_of_kernels():
    mod = megatron()
    passes = [
        each for each in cpu.passes(cpu_target.host_target()) if each.info.name != "NameSteps"
    ]
    exe = dx.build(mod, relax_pipeline=tvm.transform.Sequential(passes))
    weights = {p.name: np.ones([int(s) for s in p.ty.shape], "float32") for p in mod["main"].params}
    del weights["x"]
    with dx.Session(2) as session:
        main = session.load(exe, params=weights)["main"]
        found = main.profile(np.ones((4, 8), "float32"), repeat=1)
    names = {event.name for event in found.events if event.kind == "kernel"}
    assert names == {event.callee for event in found.events if event.kind == "kernel"}
    assert "fused_matmul_relu" in names


@pytest.mark.parametrize(
    "answer", [None, [["f"], [[1, -1, 0.0, 1.0, -1, -1]]], [["f"], [[0, 3, 0.0, 1.0, -1, -1]]]]
)
def test_what_is_no_answer_is_refused(answer):
    with pytest.raises(ValueError, match="does not say what it has run"):
        _parse_rows(answer)


def collective(device, begin, end, plan="[[0, 1]]", peers=(0, 1)):
    traffic = Traffic(device, "main", "all_reduce", ("tp",), peers, 2, 0, 0, 0, plan)
    return _Timed(_Row("all_reduce", 0, begin, end, 0, -1), "y", "main", traffic)


def test_the_same_collective_of_each_member_is_looked_at():
    """Two of one group, with one of another group between them on one device."""
    events = {
        0: [collective(0, 1.0, 3.0), collective(0, 4.0, 7.0)],
        1: [
            collective(1, 2.0, 3.0),
            collective(1, 3.0, 3.5, "[[1]]", (1,)),
            collective(1, 6.0, 7.0),
        ],
    }
    found = _with_waiting(events, {0: 1.0, 1: 1.0}, 0, True)
    assert [(e.device, e.start, e.duration, e.waiting) for e in found] == [
        (0, 0.0, 2.0, 1.0),
        (0, 3.0, 3.0, 2.0),
        (1, 1.0, 1.0, 0.0),
        (1, 2.0, 0.5, 0.0),
        (1, 5.0, 1.0, 0.0),
    ]
