"""Solves graphs of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

    python benchmarks/iopddl.py GRAPH.json[.gz]... [--seconds T] [--effort N]

Prints one line of JSON per graph: its name, the cost of the best choice, a lower bound of all
choices, whether the choice keeps all limits, and the seconds that it took:
of the clock, and of both processors together. The cost is counted here from the file once more.

Graphs and the rules: https://github.com/google/iopddl. The limits of the contest are 60 seconds for
graphs A to E, 120 for F to J, 180 for K to O, 240 for P to T, 300 for U to Y.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distir_ext.autosharding import Problem, solve


def read(path: Path) -> tuple[dict[str, Any], Problem]:
    """The graph in a file, as it is and as a problem.

    Raises:
        ValueError: It has none; names the file.
    """
    data = path.read_bytes()
    try:
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        graph = json.loads(text)["problem"]
        return graph, problem_of(graph)
    except (EOFError, OSError, zlib.error) as error:
        reason = f"it is not of gzip: {error}"
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"{str(path)!r} has no graph of the contest ({reason[:400]!r})")


def problem_of(graph: dict[str, Any]) -> Problem:
    """A graph of the contest as a problem."""
    problem = Problem(memory_limit=graph.get("usage_limit"))
    nodes, edges = graph["nodes"], graph["edges"]
    for costs, amounts, (begin, end) in zip(
        nodes["costs"], nodes["usages"], nodes["intervals"], strict=True
    ):
        node = problem.add_node(costs)
        if begin < end:
            problem.add_memory(node, amounts, begin, end)
    for (first, second), costs in zip(edges["nodes"], edges["costs"], strict=True):
        shape = (len(nodes["costs"][first]), len(nodes["costs"][second]))
        problem.add_edge(first, second, np.reshape(costs, shape))
    return problem


def evaluate(graph: dict[str, Any], choice: Sequence[int]) -> tuple[int, bool]:
    """The cost of a choice, and whether it keeps the limit of memory at all times."""
    nodes, edges = graph["nodes"], graph["edges"]
    cost = sum(costs[mine] for costs, mine in zip(nodes["costs"], choice, strict=True))
    for (first, second), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost += costs[choice[first] * len(nodes["costs"][second]) + choice[second]]
    last = max((end for begin, end in nodes["intervals"] if begin < end), default=0)
    used = np.zeros(1 + last, dtype=np.int64)
    for amounts, (begin, end), mine in zip(
        nodes["usages"], nodes["intervals"], choice, strict=True
    ):
        if begin < end:
            used[begin] += amounts[mine]
            used[end] -= amounts[mine]
    limit = graph.get("usage_limit")
    return cost, limit is None or int(np.cumsum(used).max()) <= limit


def main() -> None:
    """Solves each graph and prints its line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="per graph, reading included")
    parser.add_argument("--effort", type=int, default=1_000, help="most rounds of search")
    args = parser.parse_args()
    for path in args.graphs:
        begin, begin_used = time.monotonic(), time.process_time()
        graph, problem = read(path)

        def stop(cost: int | None, bound: int, end: float = begin + args.seconds) -> bool:
            return time.monotonic() > end

        solution = solve(problem, effort=args.effort, stop=stop)
        seconds, used = time.monotonic() - begin, time.process_time() - begin_used
        cost, fits = evaluate(graph, solution.choice) if solution.choice else (None, False)
        line = {
            "name": graph.get("name", path.name),
            "cost": cost,
            "bound": solution.bound,
            "feasible": fits,
            "seconds": round(seconds, 2),
            "processor_seconds": round(used, 2),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
