"""One copy of a script for ``benchmarks/collectives.py --hosts``: rank 0 times collectives.

    python -m collective_workers.host_loop CCL ORDER WORKERS REPEATS SIZE .. -- COLLECTIVE ..

Started once in each network namespace. ORDER is "ordered" or "unordered", as sums of floats are.
Rank 0 prints a line of JSON for each collective and size: its name, the size, the seconds of a call
in each repeat, and the bytes that the busiest host sends in one.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import tvm  # noqa: F401  (its functions)

import distir_ext as dx
from collective_workers.cases import operand, shapes
from distir_ext.params.host_array import host_array

LOOPS = "collective_workers.distir_loop"
# A timed run moves so many bytes per worker, in at most so many calls.
RUN_BYTES, MOST_CALLS = 32 << 20, 50


def main() -> None:
    """Runs the loop."""
    split = sys.argv.index("--")
    ccl, order, count, repeats = *sys.argv[1:3], *map(int, sys.argv[3:5])
    sizes, collectives = map(int, sys.argv[5:split]), sys.argv[split + 1 :]
    pairs = [(name, size) for size in sizes for name in collectives]
    hosts = dx.Hosts.from_env(ccl=ccl)
    bitwise = order == "ordered"
    with dx.Session(
        count, ccl=ccl, workers=hosts, imports=[LOOPS], timeout=120, bitwise=bitwise
    ) as session:
        workers = session._workers
        workers.open_groups([json.dumps([list(range(count))])])
        per_host = count // len(hosts.addresses)

        def call(name: str, arguments: list[list[object]]) -> list[float]:
            return workers.run(name, [f"distir.benchmark.{name}"] * count, arguments)

        for name, size in pairs:
            of = (name, size, count)
            arrays = [
                [host_array(operand(*of, rank)), host_array(np.zeros(shapes(*of)[1], np.float32))]
                for rank in range(count)
            ]
            shards = [[each.shard((0,), each.shape) for each in mine] for mine in arrays]
            tensors = workers.hold("hold", shards)
            before = session.bytes_between_hosts()
            call("check", [[*mine, *of, rank] for rank, mine in enumerate(tensors)])
            after = session.bytes_between_hosts()
            sent = [after[rank] - before[rank] for rank in range(count)]
            by_host = [sum(sent[i : i + per_host]) for i in range(0, count, per_host)]
            calls = max(1, min(MOST_CALLS, RUN_BYTES // size))
            times = [
                max(call("seconds", [[*mine, name, count, calls] for mine in tensors])) / calls
                for _ in range(repeats)
            ]
            print(json.dumps([name, size, times, max(by_host)]), flush=True)
            del tensors


main()
