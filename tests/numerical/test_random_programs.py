"""Random programs through the whole pipeline equal the same programs on one device."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, assume, given, note, seed, settings
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx

from .partitioned import close, to_arrays
from .placement import device_mesh
from .random_programs import elements, programs, to_module

# Values are of order one and errors add up over at most some 40 operators; float32 sums over 12 to
# 100 elements lose a few units of 6e-8 each.
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
LARGEST = 50_000  # elements: chains of concat grow

SEEDS = range(6)  # the same programs in every run
EXAMPLES = (6, 12, 250)  # for each seed, of the small, large and whole sample
# Where messages cost nothing, small tensors move as large ones do.
FAST = dx.Link(latency=0.0, bandwidth=1e9)
FREE_MESSAGES = dx.Cluster.uniform(FAST, launch=0.0)


def cluster_of(number, mesh):
    """The default; free messages; hosts of 2 and of 4 devices, which axes of the mesh straddle."""
    if number < 4:
        return FREE_MESSAGES if number % 2 else None
    devices_per_host = 2 if number == 4 else 4
    hosts = -(-(1 + max(mesh.device_ids)) // devices_per_host)
    slow = dx.Link(latency=0.0, bandwidth=1e8)
    return dx.Cluster.of_hosts(
        max(hosts, 2), devices_per_host, within=FAST, between=slow, launch=0.0
    )


@pytest.mark.parametrize("number", SEEDS)
def test_random_programs(number, sample, session_of):
    @seed(number)
    @settings(
        max_examples=sample(*EXAMPLES),
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(programs())
    def check(program):
        assume(elements(program) <= LARGEST)
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal(s).astype(program.dtype) for s in program.main.params]
        plain = tvm.compile(to_module(program, annotated=False), QUICK)
        machine = relax.VirtualMachine(plain, tvm.cpu())
        wanted = to_arrays(machine["main"](*(tvm.runtime.tensor(x) for x in inputs)))
        annotated = to_module(program, annotated=True)
        note(annotated.script())
        exe = dx.build(annotated, QUICK, cluster=cluster_of(number, device_mesh(program.mesh)))
        model = session_of(program.mesh).load(exe)
        got = to_arrays(model["main"](*inputs))
        assert len(got) == len(wanted)
        for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
            close(left, right, TOLERANCE, exact=False, what=f"result {index}")

    check()
