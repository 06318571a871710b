"""Predicted beside measured times: matching of rows, figures, order, errors."""

import math
import random

import numpy as np
import pytest
from tests.analysis.programs import CPU, megatron, on

import distir_ext as dx
from distir_ext.analysis import Profile, ProfileEvent, compare


def profile(times, waiting=0.0):
    """Of one call on devices 0, 1, ..: by variable the seconds on each."""
    events = [
        ProfileEvent(
            *(device, "compute", name, "collective" if name[0] == "c" else "kernel"),
            *(0.0, seconds + waiting, waiting, "main", f"kernel_{name}", (), 0),
        )
        for name, of_devices in times.items()
        for device, seconds in enumerate(of_devices)
    ]
    return Profile("main", 1, tuple(events), ())


def test_rows_are_matched_by_variable_and_sorted_by_difference():
    found = compare(
        profile({"a": [1.0], "b": [2.0], "x": [1.0]}),
        profile({"a": [1.5], "b": [4.0, 8.0], "y": [1.0]}),
    )
    assert [(row.name, row.predicted, row.measured, row.ratio) for row in found.compared] == [
        ("b", 2.0, 6.0, 3.0),
        ("a", 1.0, 1.5, 1.5),
    ]
    assert (found.only_predicted, found.only_measured) == (("main.x",), ("main.y",))
    assert (found.predicted, found.measured) == (3.0, 7.5)
    assert found.mean_error == pytest.approx((4 / 6 + 0.5 / 1.5) / 2)
    text = str(found)
    assert text.index("kernel_b") < text.index("kernel_a")
    assert "predicted but not measured: main.x" in text
    assert "measured but not predicted: main.y" in text
    assert found._repr_html_().count("<tr>") == 3
    assert found.rows()[0]["ratio"] == 3.0


def test_waiting_is_left_out():
    (row,) = compare(profile({"c": [1.0]}), profile({"c": [2.0]}, waiting=5.0)).compared
    assert (row.kind, row.measured) == ("collective", 2.0)


def spearman(a, b):
    """By the definition: Pearson's of ranks, of equal values their mean."""

    def ranks(values):
        return [
            sum(other < value for other in values) + (sum(o == value for o in values) - 1) / 2
            for value in values
        ]

    ra, rb = ranks(a), ranks(b)
    ma, mb = sum(ra) / len(ra), sum(rb) / len(rb)
    covariance = sum((x - ma) * (y - mb) for x, y in zip(ra, rb, strict=True))
    return covariance / math.sqrt(sum((x - ma) ** 2 for x in ra) * sum((y - mb) ** 2 for y in rb))


def test_the_rank_correlation_is_that_of_its_definition():
    rng = random.Random(3)
    for _ in range(20):
        a, b = ([float(rng.randint(1, 5)) for _ in range(7)] for _ in range(2))
        if len(set(a)) == 1 or len(set(b)) == 1:
            continue
        names = "klmnopq"
        found = compare(
            profile({name: [x] for name, x in zip(names, a, strict=True)}),
            profile({name: [x] for name, x in zip(names, b, strict=True)}),
        )
        assert found.spearman == pytest.approx(spearman(a, b))
    assert math.isnan(compare(profile({"a": [1.0]}), profile({"a": [1.0]})).spearman)


def test_an_estimate_is_compared_with_a_run():
    mod = megatron(3)
    estimate = dx.analysis.estimate(mod, on(CPU))
    exe = dx.build(mod, cluster=on(CPU))
    weights = {
        param.name: np.ones([int(size) for size in param.ty.shape], "float32")
        for param in mod["main"].params[1:]
    }
    with dx.Session(2) as session:
        main = session.load(exe, params=weights)["main"]
        measured = main.profile(np.ones((4, 8), "float32"), repeat=2)
    found = compare(estimate, measured)
    assert found.only_predicted == found.only_measured == ()
    assert len(found.compared) == len(measured.totals())
    program = estimate["main"]
    assert found.of_kind("kernel").predicted == pytest.approx(program.cost.seconds)
    assert found.of_kind("collective").predicted == pytest.approx(program.collective_seconds)
    with pytest.raises(ValueError, match="no kind 'kernels'; the kinds are kernel and collective"):
        found.of_kind("kernels")
    timeline = dx.analysis.simulate(mod, on(CPU), microbatches=3)
    simulated = compare(timeline, measured)
    assert simulated.only_predicted == simulated.only_measured == ()
    assert {row.name: row.predicted for row in simulated.compared} == pytest.approx(
        {row.name: row.predicted for row in found.compared}
    )
    totals = {total.name: total.seconds for total in measured.totals()}
    assert {row.name: row.measured for row in found.compared} == pytest.approx(totals)


@pytest.mark.parametrize(
    ("predicted", "measured", "error", "message"),
    [
        (profile({"a": [1.0]}), "x", TypeError, "measured is what .* returns, .* not str"),
        ("x", profile({"a": [1.0]}), TypeError, "predicted is an Estimate, a Timeline .* not str"),
        (profile({"a": [1.0]}), profile({"b": [1.0]}), ValueError, "nothing that was measured"),
    ],
)
def test_bad_input_is_one_error(predicted, measured, error, message):
    with pytest.raises(error, match=message):
        compare(predicted, measured)
