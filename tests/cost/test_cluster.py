"""Clusters: what users state, and what passes make of it."""

import copy
import pickle

import pytest
import tvm
import tvm_ffi
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.mesh.cluster import LAUNCH

MESH = dx.Mesh((2, 4), ("host", "device"))


def seconds(cluster, kind, groups, local_bytes):
    data = cluster.as_data() if cluster else None
    return tvm_ffi.get_global_func("distir.test.CollectiveSeconds")(data, kind, groups, local_bytes)


def message(link, size):
    return link.latency + link.gap + size / link.bandwidth


def test_a_group_is_as_slow_as_its_slowest_link():
    cluster = dx.Cluster(MESH, {"host": dx.INFINIBAND, "device": dx.NVLINK})
    size = 1e6
    within = seconds(cluster, "all_gather", [[0, 1], [2, 3]], size)
    across = seconds(cluster, "all_gather", [[0, 4], [1, 5]], size)
    both = seconds(cluster, "all_gather", [[0, 1, 4, 5]], size)
    assert within == pytest.approx(LAUNCH + message(dx.NVLINK, size))
    assert across == pytest.approx(LAUNCH + message(dx.INFINIBAND, size))
    more = 2 * (dx.INFINIBAND.gap + size / dx.INFINIBAND.bandwidth)
    assert both == pytest.approx(LAUNCH + message(dx.INFINIBAND, size) + more)


def test_nothing_stated_is_nvlink():
    for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"):
        stated = seconds(dx.Cluster.uniform(), kind, [[0, 1, 2]], 1e6)
        assert stated == seconds(None, kind, [[0, 1, 2]], 1e6) > 0


def test_of_hosts_joins_devices_of_a_host():
    assert dx.Cluster.of_hosts(2, 4) == dx.Cluster(
        MESH, {"host": dx.INFINIBAND, "device": dx.NVLINK}
    )


@pytest.mark.parametrize(
    ("kind", "size", "gap", "turns", "sent"),
    [
        ("all_gather", 4, 0.1, 1.3, 3.0),
        ("all_gather", 4, 2.0, 6.0, 3.0),  # doubling: two turns of 3 seconds
        ("all_gather", 6, 2.0, 11.0, 5.0),
        ("reduce_scatter", 8, 0.1, 1.7, 7 / 8),
        ("reduce_scatter", 8, 2.0, 9.0, 7 / 8),
        ("reduce_scatter", 3, 0.1, 1.2, 2 / 3),
        ("all_to_all", 4, 2.0, 7.0, 3 / 4),
    ],
)
def test_formulas(kind, size, gap, turns, sent):
    cluster = dx.Cluster.uniform(dx.Link(latency=1.0, gap=gap, bandwidth=10.0), launch=100.0)
    result = seconds(cluster, kind, [list(range(size))], 50.0)
    assert result == pytest.approx(100.0 + turns + sent * 50.0 / 10.0)


def test_an_all_reduce_takes_the_better_of_two_algorithms():
    slow = dx.Cluster.uniform(dx.Link(latency=1.0, gap=1.0, bandwidth=10.0), launch=0.0)
    twelve = [list(range(12))]
    trees, both = 2 * 4 * 2.0, 2 * (1.0 + 11)
    assert seconds(slow, "all_reduce", twelve, 1.0) == pytest.approx(trees + 2 * 1.0 / 10)
    share = 11 / 12 * 1e6 / 10
    assert seconds(slow, "all_reduce", twelve, 1e6) == pytest.approx(both + 2 * share)


def test_an_exchange_takes_the_nearest_holder():
    exchange = tvm_ffi.get_global_func("distir.test.ExchangeCost")
    data = dx.Cluster.of_hosts(2, 2).as_data()
    shape, ids = [2, 2], [0, 1, 2, 3]
    device, host = [[1, 1, 2]], [[0, 1, 2]]
    gathered = [[[]], [], "none"]
    near = exchange(data, shape, ids, [[device], [], "none"], shape, ids, gathered, 1e6)
    far = exchange(data, shape, ids, [[host], [], "none"], shape, ids, gathered, 1e6)
    assert near[0] == pytest.approx(LAUNCH + message(dx.NVLINK, 5e5))
    assert far[0] == pytest.approx(LAUNCH + message(dx.INFINIBAND, 5e5))
    assert near[1] == far[1] == 5e5


def test_an_exchange_between_device_sets():
    exchange = tvm_ffi.get_global_func("distir.test.ExchangeCost")
    halves, whole = [[[[0, 1, 2]]], [], "none"], [[[]], [], "none"]
    cost = exchange(None, [2], [0, 1], halves, [2], [1, 2], whole, 1e6)
    # Device 2 holds nothing, device 1 a half; device 0 sends its half to both.
    assert list(cost)[1:] == [1e6, 2, 1e6]
    assert cost[0] == pytest.approx(LAUNCH + message(dx.NVLINK, 1e6) + dx.NVLINK.gap)


@I.ir_module
class Moved:
    I.module_global_infos(meshes((2, 4)))

    @R.function
    def main(
        x: R.DTensor((64, 64), "float32", "mesh[0]", "S[0], S[0]"),
    ) -> R.DTensor((64, 64), "float32", "mesh[0]", "S[1], S[1]"):
        y = R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[1], S[1]")
        return y


def collectives_of(mod):
    return [
        binding.value.op.name.removeprefix("relax.dist.")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.relax.Call)
    ]


def test_plans_depend_on_the_cluster():
    legalize = dx.transform.LegalizeRedistribute()
    by_message = dx.Cluster.uniform(dx.Link(latency=0.0, gap=1.0, bandwidth=1e18), launch=0.0)
    by_byte = dx.Cluster.uniform(dx.Link(latency=0.0, bandwidth=1.0), launch=0.0)
    fewest_messages = legalize(dx.transform.SetCluster(by_message)(Moved))
    fewest_bytes = legalize(dx.transform.SetCluster(by_byte)(Moved))
    assert collectives_of(fewest_bytes) == ["all_to_all"]  # of 8 devices: 7 messages
    assert len(collectives_of(fewest_messages)) > 1  # several steps with fewer in all


def test_a_module_keeps_its_cluster_as_text():
    mod = dx.transform.SetCluster(dx.Cluster.of_hosts(2, 4))(Moved)
    again = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(again, mod)
    legalize = dx.transform.LegalizeRedistribute()
    tvm.ir.assert_structural_equal(legalize(again), legalize(mod))


def test_lower_takes_a_cluster():
    by_byte = dx.Cluster.uniform(dx.Link(latency=0.0, bandwidth=1.0), launch=0.0)
    (only,) = dx.analysis.collectives(dx.lower(Moved, by_byte))
    assert (only.kind, only.group_size, only.count) == ("all_to_all", 8, 1)
    by_message = dx.Cluster.uniform(dx.Link(latency=0.0, gap=1.0, bandwidth=1e18), launch=0.0)
    (only,) = dx.analysis.collectives(dx.lower(Moved, by_message))
    assert only.kind != "all_to_all"  # three turns gather everything


def test_equal_hash_copy_and_print():
    cluster = dx.Cluster.of_hosts(2, 4)
    for other in (copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster))):
        assert other == cluster
        assert hash(other) == hash(cluster)
    assert cluster != dx.Cluster.uniform()
    assert repr(dx.Cluster.uniform()) == "Cluster.uniform(3.4 us + 450 GB/s)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dx.Link(-1.0, 1.0), "latency of a link is at least 0"),
        (lambda: dx.Link(0.0, 0.0), "bandwidth of a link is positive"),
        (lambda: dx.Link(0.0, float("nan")), "bandwidth of a link is positive"),
        (lambda: dx.Cluster(MESH, {"host": dx.NVLINK}), "mesh axis 'device' has no link"),
        (lambda: dx.Cluster(MESH, {"rack": dx.NVLINK}), "there is no mesh axis 'rack'"),
        (lambda: dx.Cluster.uniform(launch=-1), "launching a collective takes at least 0"),
        (lambda: dx.Cluster.of_hosts(0, 4), "size 0"),
    ],
)
def test_bad_numbers_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_not_a_cluster():
    with pytest.raises(TypeError, match=r"distir_ext\.Cluster, not a dict"):
        dx.transform.SetCluster({"latency": [0.0]})


GOOD = dx.Cluster.of_hosts(2, 4).as_data()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency": None}, "needs `latency`, a list"),
        ({"latency": ["a", 1.0]}, "`latency` of a cluster holds something else than numbers"),
        ({"latency": [0.0]}, "as many latencies as gaps and bandwidths, got 1, 2 and 2"),
        ({"launch": None}, "needs `launch`, a number"),
        ({"launch": -1.0}, "launch time of a cluster is at least 0"),
        ({"shape": [8], "device_ids": list(range(8))}, "1 axes needs one link for each, got 2"),
        ({"device_ids": [0]}, "device"),
        ({"bandwidth": [0.0, 1.0]}, "positive bandwidth"),
    ],
)
def test_bad_attributes_of_a_module_are_named(change, message):
    mod = Moved.with_attr("distir.cluster", {**GOOD, **change})
    with pytest.raises(ValueError, match=message):
        dx.transform.LegalizeRedistribute()(mod)


def test_a_cluster_that_is_no_map():
    with pytest.raises(ValueError, match="a cluster is a map"):
        dx.transform.LegalizeRedistribute()(Moved.with_attr("distir.cluster", "fast"))


def test_times_by_kind_members_and_bytes():
    """Times of analysis take them; below, between and above the sizes that are stated."""
    link = dx.Link(latency=0.0, bandwidth=1e9)
    times = {"all_gather": {2: {1e3: 1e-5, 1e5: 1e-3}, 4: {1e3: 4e-5}}, "permute": {2: {1.0: 1.0}}}
    timed = dx.Cluster.uniform(link, launch=0.0, times=times)
    of = tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(timed.as_data())
    groups = {size: str([list(range(size))]) for size in (2, 3, 4, 7)}
    for size, given, taken in (
        *((2, 1, 1e-5), (2, 1e3, 1e-5), (2, 1e4, 1e-4), (2, 1e5, 1e-3), (2, 1e6, 1e-2)),
        *((4, 1e4, 4e-4), (3, 1e3, 4e-5 * 2 / 3), (7, 1e3, 4e-5 * 6 / 3)),
    ):
        assert of("all_gather", groups[size], given, 0) == pytest.approx(taken, rel=1e-12)
    # What has no times takes those of the model, and so do plans.
    plain = dx.Cluster.uniform(link, launch=0.0)
    model = tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(plain.as_data())
    sums = "all_reduce", groups[2], 1e3, 1e3
    assert of(*sums) == model(*sums) > 0
    gather = "all_gather", [[0, 1]], 1e3
    assert seconds(timed, *gather) == seconds(plain, *gather)
    assert timed != plain
    assert pickle.loads(pickle.dumps(timed)) == timed


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"all_gathr": {2: {1.0: 1.0}}}, "no times of 'all_gathr'.* did you mean 'all_gather'"),
        ({"all_gather": {1: {1.0: 1.0}}}, "all_gather has at least 2 members, not 1"),
        ({"all_gather": {2: {0: 1.0}}}, "bytes and seconds of all_gather are positive; 0 bytes"),
        ({"permute": {2: {1.0: float("nan")}}}, "bytes and seconds of permute are positive"),
    ],
)
def test_times_that_are_none(times, message):
    with pytest.raises(ValueError, match=message):
        dx.Cluster.uniform(times=times)


@pytest.mark.parametrize(
    "rows", [3, [3], [["all_gather", 2, 1.0]], [["slice", 2, 1.0, 1.0]], [["permute", 2, -1.0, 1]]]
)
def test_times_of_others(rows):
    """As a module states them, which may come from elsewhere."""
    data = dx.Cluster.uniform().as_data() | {"times": rows}
    with pytest.raises(ValueError, match="`times` of a cluster"):
        tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(data)
