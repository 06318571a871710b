"""Devices of clusters: presets, and what users state."""

import pickle

import pytest
import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.analysis.measured.collective_times import group_sizes
from distir_ext.analysis.programs.planned_program import resolve_target
from distir_ext.mesh.cluster import TIMED_COLLECTIVES
from distir_ext.native.machine import nvidia as _nvidia

FIELDS = {"name": "mine", "flops": {"float32": 1e12}, "memory": 1e9, "bandwidth": 1e11, "launch": 0}


@pytest.mark.parametrize("name", dx.DEVICES)
def test_presets(name):
    cluster = dx.Cluster.preset(name.lower(), hosts=2)
    assert cluster.device == dx.DEVICES[name]
    assert cluster.device.rate("bfloat16") > cluster.device.rate("float32")
    assert f"device={name!r}" in repr(cluster)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_a_type_that_is_not_stated_is_computed_as_a_wider_one():
    device = dx.Device("mine", {"float32": 1e12, "float16": 2e12}, 1e9, 1e11, 0.0)
    assert device.rate("bfloat16") == device.rate("float8_e4m3fn") == 2e12
    with pytest.raises(ValueError, match="states no operations per second for float64"):
        device.rate("float64")


def test_devices_are_part_of_clusters():
    mesh = dx.Mesh(tp=2)
    stated = dx.Cluster(mesh, {"tp": dx.NVLINK}, device=FIELDS)
    assert stated.device == dx.Device(**FIELDS)
    assert stated != dx.Cluster(mesh, {"tp": dx.NVLINK})
    assert dx.Cluster(mesh, {"tp": dx.NVLINK}).device is None
    # What a module carries is for plans, which know no devices.
    assert stated.as_data() == dx.Cluster(mesh, {"tp": dx.NVLINK}).as_data()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops": {}}, "states no operations per second"),
        ({"flops": {"float32": -1.0}}, "operations per second of device 'mine' are positive"),
        ({"bandwidth": 0.0}, "memory bandwidth of device 'mine' are positive, not 0"),
        ({"memory": float("nan")}, "bytes of memory"),
        ({"caches": {1e3: 0.0}}, "bytes per second of 1000 bytes of device 'mine' are positive"),
        ({"launch": -1.0}, "at least 0 seconds"),
        ({"target": "tpu"}, "is 'tpu', which TVM does not know; name one of dx.build"),
        ({"bandwith": 1e11}, "no field 'bandwith'; did you mean 'bandwidth'"),
    ],
)
def test_bad_devices_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        dx.Cluster.uniform(device=FIELDS | change)


def test_bad_names_are_named():
    with pytest.raises(ValueError, match="no device 'H10'; did you mean 'H100'"):
        dx.Cluster.preset("H10")
    with pytest.raises(ValueError, match="needs the field 'memory'"):
        dx.Cluster.uniform(device={"name": "mine", "flops": {"float32": 1.0}})
    with pytest.raises(TypeError, match=r"a device is a distir_ext\.Device, not a int"):
        dx.Cluster.uniform(device=3)
    with pytest.raises(ValueError, match=r"no mesh axis 'rak'.*did you mean 'rack'"):
        dx.Cluster(dx.Mesh(rack=2), {"rak": dx.NVLINK})


def test_loops_and_transcendentals_have_rates_of_their_own():
    rates = {"float64": 5e11, "float32": 1e12}
    device = dx.Device("mine", rates, 16e9, 100e9, 5e-6, loops=1e10, transcendentals=1e8)
    assert device.seconds_of({"float32": 1e10}, 0, is_loop=False) == 0.01
    assert device.seconds_of({"float32": 1e10, "float64": 1e10}, 0, is_loop=True) == 3.0
    assert device.seconds_of({"float32": 1e10}, 1e8, is_loop=True) == 2.0
    assert "10 GFLOP/s" in device._repr_html_()
    plain = dx.Device("mine", rates, 16e9, 100e9, 5e-6)
    assert plain.seconds_of({"float32": 1e10}, 1e8, is_loop=True) == 0.01
    for field in ("loops", "transcendentals"):
        with pytest.raises(ValueError, match=r"per second.* of device 'mine' are positive, not 0"):
            dx.Device("mine", rates, 16e9, 100e9, 5e-6, **{field: 0})


def test_estimates_tell_loops_from_products():
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((64, 64), "float32")) for name in "xw")
    with builder.function("main", [x, w], {"num_input": 1}):
        total = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), x))
        builder.emit_func_output(builder.emit(relax.op.sin(total)))
    mod = dx.annotate(builder.get(), dx.Mesh(a=2), {"x": ("a", None)})
    fields = {"flops": {"float32": 1e6}, "memory": 1e9, "bandwidth": 1e12, "launch": 0.0}
    device = dx.Device("mine", **fields, target="llvm", loops=1e3, transcendentals=1e2)
    estimate = dx.analysis.estimate(mod, dx.Cluster.uniform(device=device))
    seconds = {each.kernel: each.cost.seconds for each in estimate["main"].kernels}
    rows = 32 * 64
    assert seconds.pop("einsum") == pytest.approx(2 * rows * 64 / 1e6)
    assert sum(seconds.values()) == pytest.approx(rows / 1e3 + rows / 1e2)


def test_one_worker_has_no_link():
    with pytest.raises(ValueError, match="at least 2 workers, not 1"):
        dx.Cluster.measure(1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_this_host_is_measured(workers):
    cluster = dx.Cluster.measure(2, workers)
    assert 1e7 < cluster.device.loops < 1e13
    assert 1e6 < cluster.device.transcendentals < 1e12
    assert 1e8 < cluster.device.rate("float32") < 1e13
    assert 1e8 < cluster.device.bandwidth < 1e13
    assert 0 < cluster.device.launch < 1e-2
    assert cluster.device.bandwidth_of(1e5) >= cluster.device.bandwidth_of(1e9)
    assert 0 < cluster.as_data()["launch"] < 1
    times = cluster.as_data()["times"]
    assert {kind for kind, *_ in times} == set(TIMED_COLLECTIVES) - {"transfer"}
    assert all(members == 2 and 0 < seconds < 10 for _, members, _, seconds in times)
    largest = {kind: (size, seconds) for kind, _, size, seconds in times}  # ascending
    assert all(seconds > size / 1e12 for size, seconds in largest.values())


def test_groups_that_workers_form():
    assert [group_sizes(number) for number in (2, 4, 5, 6)] == [[2], [4, 2], [5], [6, 3, 2]]


def test_a_rate_is_of_an_element_type():
    device = dx.Device("mine", {"float8": 2e12, "float32": 1e12}, 16e9, 100e9, 0)
    assert [device.rate(each) for each in ("float8_e5m2", "int4", "bfloat16")] == [2e12, 1e12, 1e12]
    with pytest.raises(ValueError, match="'floaty' is no element type"):
        device.rate("floaty")


def test_a_step_has_microbatches():
    device = dx.Device("mine", {"float32": 1e12}, 16e9, 100e9, 0)
    with pytest.raises(ValueError, match="microbatches is 0; it must be at least 1"):
        device.seconds_of_step(0)


def test_cpus_are_told_by_their_target():
    targets = {
        "llvm": True,
        '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}': True,
        "cuda": False,
        "nvidia/nvidia-a100": False,
        "vulkan": False,
        "metal": False,
    }
    for target, is_cpu in targets.items():
        assert dx.Device(**FIELDS, target=target).is_cpu == is_cpu, target


def test_programs_are_planned_for_the_target_that_a_device_names():
    for name, arch in (("A100", "sm_80"), ("H100", "sm_90a"), ("B200", "sm_100a")):
        assert resolve_target(dx.DEVICES[name].target).attrs["arch"] == arch
    ada = dx.Device(**FIELDS, target="nvidia/geforce-rtx-4090")
    assert resolve_target(ada.target).attrs["arch"] == "sm_89"
    of_build = tvm.target.Target(_nvidia.resolve_target("cuda"))
    assert str(resolve_target("cuda")) == str(of_build)
    assert resolve_target("llvm").kind.name == "llvm"
