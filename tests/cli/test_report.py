"""``distir report``: what it prints, as text, as JSON and as a page, and when it fails."""

import json

import pytest
from tests.cli.conftest import MODEL, SHARDED

import distir_ext as dx
from distir_ext import cli
from distir_ext.interop._program_files import read_program

PLAN = {"x": ["dp", None], "up": "-,tp", "down": ["tp", None]}


def test_tables_are_those_of_the_estimate(model, printed, file):
    text = printed("report", model, *SHARDED, "--inputs", "x")
    for line in ("tensors, on 2x2: 0..3", "per device, on H100", "main: collectives"):
        assert line in text
    (sent,) = (line.split() for line in text.splitlines() if "all_reduce" in line)
    assert sent[:4] == ["tp", "all_reduce", "relax.matmul", "1"]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_is_one_object_with_every_figure(model, data):
    found = data("report", model, *SHARDED, "--inputs", "x")
    # Two products of a device's share, and a relu.
    assert found["flops"] == 2 * (2 * 4 * 64 * 128) + 4 * 128
    assert found["bytes_sent"] == 4 * 64 * 4
    assert found["device"]["name"] == "H100"
    assert found["fits"] is True
    assert [(each["name"], each["role"], each["local_shape"]) for each in found["tensors"]] == [
        ("x", "input", [4, 64]),
        ("up", "weight", [64, 128]),
        ("down", "weight", [128, 64]),
        ("return", "result", [4, 64]),
    ]
    (program,) = found["programs"]
    assert [each["kind"] for each in program["collectives"]] == ["all_reduce"]
    assert program["memory"]["weights"] == 2 * 64 * 128 * 4


def test_a_plan_says_the_same_as_options(model, data, file):
    options = data("report", model, *SHARDED)
    plan = data("report", model, "--mesh", "dp=2,tp=2", "--plan", file("plan.json", PLAN))
    assert plan == options


def test_options_come_before_the_plan(model, data, file):
    plan = file("plan.json", {"x": "-,dp", "down": None})
    shards = ["--mesh", "dp=2,tp=2", "--shard", "x=dp,-", "--shard", "u.=-,tp"]
    found = data("report", model, *shards, "--shard", "down=tp,-", "--plan", plan)
    shown = {each["name"]: each["sharding"] for each in found["tensors"]}
    assert shown["x"] == "('dp', None)"
    assert shown["up"] == "(None, 'tp')"
    assert shown["down"] == "('tp', None)"


def test_a_program_that_is_annotated_needs_no_mesh(file, data, model):
    marked = f"""{MODEL}
import distir_ext as dx
_mesh = dx.Mesh(dp=2, tp=2)
MLP = dx.annotate(MLP, _mesh, {{"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)}})
"""
    found = data("report", file("marked.py", marked))
    assert found["programs"] == data("report", model, *SHARDED)["programs"]


@pytest.mark.parametrize("phase", ["annotated", "propagated", "legalized", "lowered"])
def test_what_partition_writes_is_a_program(model, data, printed, phase):
    printed("partition", model, *SHARDED, "--phase", phase, "-o", "again.py")
    found, expected = data("report", "again.py"), data("report", model, *SHARDED)
    for key in ("flops", "bytes_sent", "seconds", "peak_memory", "tensors"):
        assert found[key] == expected[key]


SYMBOLIC = MODEL.replace("(8, 64)", '("n", 64)').replace("def main", "def forward")


def test_symbolic_sizes(file, data, refused):
    name = file("symbolic.py", SYMBOLIC)
    found = data("report", name, *SHARDED, "--size", "n=8")
    assert found["flops"] == 2 * (2 * 4 * 64 * 128) + 4 * 128
    assert found["programs"][0]["function"] == "forward"  # the only one
    assert "state --size n=.." in refused("report", name, *SHARDED)
    assert "no symbolic size 'm'" in refused("report", name, *SHARDED, "--size", "m=8")


def test_clusters(model, data, file):
    mine = {"name": "mine", "flops": {"float32": 1e12}, "memory": 1e5, "bandwidth": 1e11}
    link = {"latency": 1e-6, "bandwidth": 1e9}
    hosts = {
        "device": {**mine, "launch": 0.0},
        "mesh": {"host": 2, "device": 2},
        "links": {"host": link, "device": link},
        "launch": 0.0,
    }
    uniform = {"device": "H100", "link": {"latency": 3.4e-6, "bandwidth": 450e9, "gap": 0.5e-6}}
    preset = {"preset": "A100", "hosts": 2, "devices_per_host": 2}
    for name, text in (("hosts", hosts), ("uniform", uniform), ("preset", preset)):
        file(f"{name}.json", text)

    def links(cluster):
        found = data("report", model, *SHARDED, "--cluster", cluster)
        return found["device"]["name"], found["links"]

    assert links("hosts.json") == (
        "mine",
        dx.Cluster(
            dx.Mesh(host=2, device=2),
            dict.fromkeys(("host", "device"), dx.Link(**link)),
            0.0,
            device="H100",
        ).as_data(),
    )
    assert links("uniform.json") == links("h100") == links("H100")
    assert links("preset.json") == links("A100:2x2")
    assert links("A100:2x2")[1] == dx.Cluster.preset("A100", 2, 2).as_data()


def test_measured_cluster(model, data, monkeypatch):
    workers = []

    def measure(num_workers):
        workers.append(num_workers)
        return dx.Cluster.preset("H100")

    monkeypatch.setattr(dx.Cluster, "measure", measure)
    data("report", model, *SHARDED, "--cluster", "measure")
    assert workers == [4]


def test_a_program_that_does_not_fit(model, file, capsys):
    small = {"name": "small", "flops": {"float32": 1e12}, "memory": 5e4, "bandwidth": 1e11}
    cluster = file("small.json", {"device": {**small, "launch": 0}, "link": LINK})
    command = ["report", model, *SHARDED, "--cluster", cluster]
    assert cli.main(command) == 0
    assert "needs 69.6 kB of memory, but a device has 50 kB" in capsys.readouterr().out
    assert cli.main([*command, "--fail-over-memory"]) == 1
    out, err = capsys.readouterr()
    assert err == "distir report: a device needs 69.6 kB of memory, but has 50 kB\n"
    assert "per device, on small" in out
    assert cli.main(["report", model, *SHARDED, "--fail-over-memory"]) == 0


# Both shard the dimension that the product contracts or keeps over the same axis.
CONFLICT = ["--mesh", "dp=2", "--shard", "x=dp,-", "--shard", "up=dp,-"]


def test_redistributions_that_nobody_asked_for(model, data, printed):
    mesh = dx.Mesh(dp=2)
    mod = dx.annotate(read_program(model), mesh, {"x": ("dp", None), "up": ("dp", None)})
    expected = dx.analysis.reshards(mod, dx.Cluster.preset("H100"))
    assert expected.reshards
    found = data("report", model, *CONFLICT)["reshards"]
    assert found == json.loads(expected.to_json())
    text = printed("report", model, *CONFLICT)
    assert "implicit redistributions, per device" in text
    assert f"state {expected.reshards[0].suggestion}" in " ".join(text.split())
    # What is asked for is not listed.
    assert "redistributions" not in printed("report", model, *SHARDED)
    assert [each["kind"] for each in data("report", model, *SHARDED)["reshards"]["entries"]] == [
        "reduction"
    ]


def test_redistributions_that_are_no_success(model, data, capsys):
    (entry,) = (
        each
        for each in data("report", model, *CONFLICT)["reshards"]["entries"]
        if each["kind"] == "reshard"
    )
    sent = entry["bytes_per_device"]
    assert sent > 0
    command = ["report", model, *CONFLICT, "--reshards"]
    message = "nobody asked for 1 redistribution; the most expensive: "
    assert cli.main([*command, "error"]) == 1
    out, err = capsys.readouterr()
    assert "implicit redistributions, per device" in out
    assert err.startswith(f"distir report: {message}{entry['tensors'][0]}: ")
    assert cli.main([*command, "warn"]) == 0
    assert capsys.readouterr().err.startswith(f"distir report: warning: {message}")
    assert cli.main([*command, "error", "--reshards-above", str(sent)]) == 0
    assert cli.main([*command, "error", "--reshards-above", str(sent - 1)]) == 1
    assert cli.main(["report", model, *SHARDED, "--reshards", "error"]) == 0


def test_policies_on_redistributions_that_are_none(model, refused, printed):
    line = refused("report", model, *CONFLICT, "--reshards", "eror", status=2)
    assert "there is no 'eror', only allow, warn, error; did you mean 'error'" in line
    line = refused("report", model, *CONFLICT, "--reshards-above", "-1", status=2)
    assert "'-1' is not a number of bytes" in line
    printed("partition", model, *SHARDED, "--phase", "runtime", "-o", "runtime.py")
    assert "has runtime calls instead of collectives" in refused(
        "report", "runtime.py", "--reshards", "error"
    )


LINK = {"latency": 1e-6, "bandwidth": 1e9}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "c.json is damaged: it is not a JSON object"),
        ("{", "the cluster c.json is damaged: "),
        ('{"preset": "H10"}', "no device 'H10'; did you mean 'H100'"),
        ('{"preset": "H100", "host": 2}', "no field 'host', only .*; did you mean 'hosts'"),
        ('{"device": "H100"}', "needs the field 'link'"),
        ('{"device": "H100", "link": {"latency": 1}}', "a link needs the field 'bandwidth'"),
        ('{"device": "H100", "link": "NVLINK"}', 'a link is .*, not by "NVLINK"'),
        ('{"device": "H100", "mesh": [2], "links": {}}', "a mesh is stated by"),
        (
            '{"device": "H100", "mesh": {"a": 2}, "links": 1}',
            "links is stated by .*, not by 1",
        ),
        ('{"device": {"name": "mine", "flops": 1}, "link": {}}', "a link needs the field"),
        ('{"device": "H100", "mesh": {"a": 2}, "links": {}}', "mesh axis 'a' has no link"),
    ],
)
def test_files_that_describe_no_cluster(model, refused, file, text, message):
    import re

    line = refused("report", model, *SHARDED, "--cluster", file("c.json", text))
    assert "c.json" in line
    assert re.search(message, line), line
