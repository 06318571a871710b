"""Plans for one tensor: their steps and costs, beside closed forms and the planner's bounds."""

import itertools
import json
import math

import pytest

import distir_ext as dx
from distir_ext.analysis import redistribution

MESH = dx.Mesh(dp=2, tp=4)
SLOW = dx.Cluster.preset("H100", hosts=2, devices_per_host=4)


def steps(*args, **options):
    return [(step.kind, step.axes) for step in redistribution(MESH, *args, **options).steps]


def test_a_gather_sends_the_other_shards():
    plan = redistribution(MESH, ("tp", None), (None, None), (1024, 1024))
    (step,) = plan.steps
    assert (step.kind, step.axes, step.sharding) == ("all_gather", ("tp",), "(None, None)")
    assert step.bytes_per_device == 3 * 1024 * 1024 * 4 / 4
    # launch, latency and three messages, and the shards of three others through one link
    assert step.seconds == pytest.approx(8.4e-6 + 3.4e-6 + 3 * 0.5e-6 + 3 * 2**20 / 450e9)
    assert (plan.source, plan.target) == ("('tp', None)", "(None, None)")


def test_a_slice_sends_nothing():
    plan = redistribution(MESH, (None, None), ("tp", "dp"), (8, 8))
    assert {step.kind for step in plan.steps} == {"slice"}
    assert (plan.bytes_per_device, plan.seconds) == (0, 0)


def test_several_steps_add_up():
    plan = redistribution(MESH, ("dp", None), ("tp", None), (8, 8))
    assert [step.kind for step in plan.steps] == ["slice", "permute"]
    assert plan.steps[0].sharding == "(('dp', 'tp:(1)2'), None)"
    assert plan.bytes_per_device == 2 * 8 * 4  # two rows of eight
    assert plan.seconds == plan.steps[1].seconds > 0


@pytest.mark.parametrize("dims", [("dp", None), (("tp", "dp"), None), (None, None)])
def test_nothing_is_done_where_nothing_has_to_be(dims):
    plan = redistribution(MESH, dims, dims, (16, 16))
    assert plan.steps == ()
    assert plan.source == plan.target
    assert "nothing has to be done" in str(plan)


ENTRIES = [None, "a", "b", ("a", "b"), ("b", "a")]
SHARDINGS = [
    dims
    for dims in itertools.product(ENTRIES, repeat=2)
    if not set(dims[0] or ()) & set(dims[1] or ())
]


def rows_of(dims, device, size):
    """Elements of a matrix on one device of a 3x2 mesh; axes of a dim are major to minor."""
    places = {"a": (device // 2, 3), "b": (device % 2, 2)}
    found = []
    for entry in dims:
        index, count = 0, 1
        for axis in entry or ():
            index, count = index * places[axis][1] + places[axis][0], count * places[axis][1]
        found.append(set(range(index * size // count, (index + 1) * size // count)))
    return set(itertools.product(*found))


@pytest.mark.parametrize("source", SHARDINGS, ids=str)
def test_no_plan_sends_less_than_devices_lack(source):
    """On a 3x2 mesh, every ordered pair: at least the mean of what devices lack has to be sent."""
    mesh = dx.Mesh(a=3, b=2)
    for target in SHARDINGS:
        plan = redistribution(mesh, source, target, (12, 12), "float16")
        lacked = [
            len(rows_of(target, device, 12) - rows_of(source, device, 12)) for device in range(6)
        ]
        assert plan.bytes_per_device >= 2 * sum(lacked) / 6
        assert (plan.bytes_per_device > 0) == any(lacked)
        assert str(plan.target) == str(tuple(target))
        assert math.isclose(plan.seconds, sum(step.seconds for step in plan.steps))


def test_the_cluster_decides():
    fast = redistribution(MESH, ("dp", "tp"), (None, "tp"), (1024, 1024))
    slow = redistribution(MESH, ("dp", "tp"), (None, "tp"), (1024, 1024), cluster=SLOW)
    assert fast.bytes_per_device == slow.bytes_per_device
    assert slow.seconds > 2 * fast.seconds


def test_uneven_sizes_are_padded():
    assert steps(("dp", None), (None, "tp"), (7, 9)) == [
        ("nn.pad", ()),
        ("slice", ()),
        ("all_gather", ("dp",)),
        ("strided_slice", ()),
    ]


def test_tables_and_data_have_every_step():
    plan = redistribution(MESH, ("dp", None), ("tp", None), (8, 8))
    text, data = str(plan), json.loads(json.dumps(plan.as_data()))
    for step in plan.steps:
        assert step.kind in text
        assert step.sharding in text
    assert [step["kind"] for step in data["steps"]] == ["slice", "permute"]
    assert (data["mesh"], data["bytes_per_device"]) == ({"dp": 2, "tp": 4}, 64)
    assert plan._repr_html_().count("<tr>") == 4  # the head, two steps, and their sum


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("dpp", None), None, (8, 8)), "source.* no axis 'dpp'; .* dp, tp; did you mean 'dp'"),
        (((None, None), ("dp",), (8, 8)), "the target has 2 dimensions, but .* has 1 entry"),
        ((("dp", "dp"), (None, None), (8, 8)), "source .*axis 'dp' already shards"),
        ((("tp", None), (None, None), (2, 8)), "the source .*fewer elements than the 4 shards"),
    ],
)
def test_what_does_not_fit_is_an_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        redistribution(MESH, *arguments)


def test_a_cluster_without_devices_is_refused():
    with pytest.raises(ValueError, match="says nothing of its devices"):
        redistribution(MESH, ("dp",), (None,), (8,), cluster=dx.Cluster.uniform())
