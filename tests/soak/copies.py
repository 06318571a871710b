"""A script of the soak: sessions of copies of a launcher, or of Ray's actors, one after another.

``copies.py seconds [rank [ray]]``: calls for so long; the copy of this rank kills itself meanwhile.
Rank 0 prints how many calls gave what NumPy gives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext.launch.finding import find_place

WIDTHS = [8, 12, 8]
MESH = dx.Mesh(tp=2)


def die_later(seconds: float) -> None:
    """Waits until calls are made, in a copy that only serves."""
    time.sleep(0.5 * seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def workers(on_ray: bool):
    """The copies of the launcher; or two nodes of a cluster of Ray, which ends with this."""
    if not on_ray:
        yield "auto"
        return
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield dx.Ray(hosts=2, start_timeout=100)
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_an_actors_worker() -> None:
    """Kills a worker of an actor; Ray's own processes are its parents."""
    import psutil

    for each in psutil.process_iter(["cmdline", "environ"]):
        is_worker = "distir_ext.workers.start" in " ".join(each.info["cmdline"] or ())
        mark = (each.info["environ"] or {}).get("DISTIR_SOAK")
        if is_worker and mark == os.environ["DISTIR_SOAK"]:
            each.kill()
            return


def main(seconds: float, victim: int = -1, on_ray: bool = False) -> None:
    """Makes calls, and ends itself or a worker if it is asked to."""
    place = find_place()
    rank = 0 if place is None else place.rank

    if rank == victim and not on_ray:
        threading.Thread(target=die_later, args=(seconds,), daemon=True).start()

    exe = dx.build(
        dx.annotate(chain(WIDTHS, rows="n"), MESH, {"w0": (None, "tp"), "w1": ("tp", None)})
    )
    x, weights = chain_values(WIDTHS, rows=6)
    expected = chain_result(x, weights)
    calls = 0
    with workers(on_ray) as stated:
        until = time.monotonic() + seconds
        is_first = True
        while is_first or time.monotonic() < until:
            ccl = os.environ.get("DISTIR_SOAK_CCL", "cpu")
            with dx.Session(MESH, workers=stated, ccl=ccl, timeout=100) as session:
                function = session.load(exe, params=weights)["main"]
                prepared, out = function.prepare(x), np.empty_like(expected)
                if on_ray and victim >= 0:
                    kill_an_actors_worker()
                for _ in range(20):
                    np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-4, atol=1e-5)
                    np.testing.assert_allclose(prepared(out=out), expected, rtol=1e-4, atol=1e-5)
                    calls += 2
                function.profile(x, repeat=1, warmup=0)
                is_first = False
    print("calls", calls, flush=True)


if __name__ == "__main__":
    main(
        float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else -1, on_ray=sys.argv[3:] == ["ray"]
    )
