"""Meshes with equal links share redistribution plans; others do not."""

import distir_ext as dx

CLUSTER = dx.Cluster.preset("H100", hosts=4)
OTHER = dx.Cluster.preset("A100", hosts=4)


def plan(device_ids, cluster=CLUSTER):
    mesh = dx.Mesh((2, 2), ("x", "y"), device_ids)
    found = dx.analysis.redistribution(
        mesh, ("x", "y"), ("y", "x"), (4096, 4096), "float16", cluster
    )
    return [(each.kind, each.seconds) for each in found.steps], found.seconds


def test_meshes_are_told_apart_by_their_links():
    meshes = {
        "one host": (0, 1, 2, 3),
        "one host, the last": (28, 29, 30, 31),
        "x between hosts": (0, 1, 8, 9),
        "x between others": (16, 18, 24, 25),
        "y between hosts": (0, 8, 1, 9),
        "four hosts": (0, 8, 16, 24),
    }
    found = {name: plan(devices) for name, devices in meshes.items()}
    assert found["one host"] == found["one host, the last"]
    assert found["x between hosts"] == found["x between others"]
    times = {name: seconds for name, (_, seconds) in found.items()}
    assert times["one host"] < times["x between hosts"] <= times["four hosts"]
    # Behind those of another cluster, plans are made anew, and here in another order.
    for name, devices in reversed(meshes.items()):
        assert plan(devices, OTHER)[1] > times["one host"]
        assert plan(devices) == found[name]
