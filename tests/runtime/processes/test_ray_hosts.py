"""Checks of a user's Ray settings before anything starts, and without Ray installed."""

from __future__ import annotations

import sys

import pytest

import distir_ext as dx

BAD = {
    "no hosts": ({"hosts": 0}, "hosts=0 of dx.Ray must be a whole number, 1 or more"),
    "half a host": ({"hosts": 1.5}, "hosts=1.5 of dx.Ray"),
    "a truth value": ({"hosts": True}, "hosts=True of dx.Ray"),
    "no devices": ({"devices_per_host": 0}, "devices_per_host=0 of dx.Ray"),
    "a list": ({"resources": ["CPU"]}, r"resources=\['CPU'\] of dx.Ray must be a dict"),
    "no name": ({"resources": {1: 2}}, "has 1, which is no name"),
    "below none": ({"resources": {"GPU": -1}}, 'has -1 of "GPU", which is no amount'),
    "no number": ({"resources": {"GPU": "2"}}, "has '2' of \"GPU\", which is no amount"),
    "for ever": ({"resources": {"CPU": float("inf")}}, 'has inf of "CPU"'),
    "no address": ({"address": ""}, "address='' of dx.Ray is no address"),
    "no time": ({"start_timeout": 0}, "is no number of seconds"),
}


@pytest.mark.every_case
@pytest.mark.parametrize("case", BAD)
def test_bad_statements(case):
    arguments, match = BAD[case]
    with pytest.raises(ValueError, match=match):
        dx.Ray(**arguments)


@pytest.fixture
def without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("stated", "match"),
    [
        (dx.Ray(hosts=4), "6 devices do not divide among hosts=4 of dx.Ray"),
        (
            dx.Ray(hosts=2, devices_per_host=4),
            r"dx.Ray\(hosts=2, devices_per_host=4\) has 8 devices, the session has 6",
        ),
        (dx.Ray(hosts=2, resources={"CPU": 0}), r"{'CPU': 0} of dx.Ray reserve nothing"),
    ],
)
def test_devices_that_do_not_fit(without_ray, stated, match):
    with pytest.raises(ValueError, match=match):
        dx.Session(dx.Mesh(a=3, b=2), workers=stated)


def test_ray_that_is_not_installed(without_ray):
    with pytest.raises(ImportError, match=r"pip install 'distir-ext\[ray\]'"):
        dx.Session(6, workers=dx.Ray(hosts=3))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("resources", "ccl", "bundle"),
    [
        (None, "cpu", {"CPU": 4}),
        (None, "nccl", {"CPU": 4, "GPU": 4}),
        ({"CPU": 16, "memory": 1e9}, "nccl", {"CPU": 16, "GPU": 4, "memory": 1e9}),
        ({"CPU": 0, "GPU": 0.5}, "nccl", {"GPU": 0.5}),
    ],
)
def test_what_is_reserved_for_a_host(resources, ccl, bundle):
    assert dx.Ray(resources=resources).bundle(4, ccl) == bundle


def test_limit(monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_START_TIMEOUT", "7")
    assert dx.Ray().limit == 7
    assert dx.Ray(start_timeout=2).limit == 2
    monkeypatch.delenv("DISTIR_EXT_START_TIMEOUT")
    assert dx.Ray().limit == 60
