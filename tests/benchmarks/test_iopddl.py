"""Files of graphs that anybody has written, for the benchmark of automatic sharding."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.benchmark_modules import benchmark_module

from distir_ext.autosharding import solve


@pytest.fixture(scope="module")
def iopddl():
    with benchmark_module("iopddl") as module:
        yield module


def graph(**changes):
    nodes = {"costs": [[1, 2], [3, 0]], "usages": [[4, 4], [4, 4]], "intervals": [[0, 2], [1, 1]]}
    edges = {"nodes": [[0, 1]], "costs": [[0, 9, 9, 0]]}
    whole = {"name": "a", "nodes": nodes, "edges": edges, "usage_limit": 4}
    for name, value in changes.items():
        part, _, field = name.partition("_")
        if field and part in whole:
            whole[part][field] = value
        else:
            whole[name] = value
    return json.dumps({"problem": whole}).encode()


def test_a_graph_is_solved(iopddl, tmp_path):
    for name, data in (("a.json", graph()), ("a.json.gz", gzip.compress(graph()))):
        (tmp_path / name).write_bytes(data)
        plain, problem = iopddl.read(tmp_path / name)
        assert solve(problem).choice == (1, 1)
        assert iopddl.evaluate(plain, (1, 1)) == (2, True)


HOSTILE = {
    "empty": b"",
    "text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "another value": b'{"problem": 1}',
    "nothing": b"{}",
    "shapes": graph(edges_costs=[[0, 9, 9]]),
    "nodes that are not there": graph(edges_nodes=[[0, 7]]),
    "half a node": graph(edges_nodes=[[0, 0.5]]),
    "NaN": graph(nodes_costs=[[1, float("nan")], [3, 0]]),
    "huge": graph(nodes_costs=[[1, -(10**30)], [3, 0]]),
    "no strategies": graph(nodes_costs=[[], [3, 0]], nodes_usages=[[], [4, 4]]),
    "times": graph(nodes_intervals=[[0, 10**15], [1, 1]]),
    "lengths": graph(nodes_intervals=[[0, 1]]),
    "digits": b'{"problem": ' + b"9" * 100_000 + b"}",
}


def test_others_are_an_error_that_names_the_file(iopddl, tmp_path):
    no_gzip = (b"", b"{}", gzip.compress(graph())[:-4], gzip.compress(graph())[:40])
    files = [
        *(("a\x1b.json", data) for data in HOSTILE.values()),
        *(("a.json.gz", gzip.compress(data)) for data in HOSTILE.values()),
        *(("a.json.gz", data) for data in no_gzip),
    ]
    for name, content in files:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"a.*\.json.*has no graph of the contest") as failure:
            iopddl.read(tmp_path / name)
        assert str(failure.value).isprintable()
        assert len(str(failure.value)) < 1000
