"""Adds and reads the option ``--cluster``: a known device, a file, or this host."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.files.argument_files import json_object

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Cluster

DEFAULT = "H100"
MEASURE = "measure"
UNSTATED = "the program's own, or NVLink between all devices"

CLUSTER_FILES = """A cluster's FILE.json has one of these forms; the last two may have "launch":

  {"preset": "H100", "hosts": 2, "devices_per_host": 8}
  {"device": "H100", "link": {"latency": 3.4e-6, "bandwidth": 450e9, "gap": 5e-7}}
  {"device": {"name": "mine", "flops": {"float32": 1e12}, "memory": 16e9, "bandwidth": 1e11,
   "launch": 5e-6}, "mesh": {"host": 2, "device": 8}, "links": {"host": {...}, "device": {...}}}"""

_PRESET = re.compile(r"(?P<name>[^:]+):(?P<hosts>[1-9]\d*)x(?P<devices>[1-9]\d*)")


def add_cluster(parser: argparse.ArgumentParser, without: str, **options: Any) -> None:
    """Adds the option.

    Args:
        parser: Parser that gets the arguments.
        without: Default without the argument, for the help.
        **options: Passed on to ``add_argument``.
    """
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help="the devices and their links: A100, H100, H200, B200, MI300X or 'TPU v5p'; with "
        "hosts, H100:2x8 is two of eight; FILE.json; or 'measure', which times this host's CPU "
        f"(default: {without})",
        **options,
    )


def cluster_of(text: str, devices: int) -> Cluster:
    """The cluster that an argument names.

    Args:
        text: The argument.
        devices: Number of devices of a program: workers that share this host where it is measured.

    Raises:
        ValueError: There is no such cluster, or a file describes none.
        OSError: The file cannot be read.
    """
    from distir_ext.mesh.cluster import Cluster
    from distir_ext.mesh.device import DEVICES

    if text == MEASURE:
        return Cluster.measure(max(2, devices))
    if text.endswith(".json") or Path(text).is_file():
        return _read_file(text)
    stated = _PRESET.fullmatch(text)
    name = stated["name"] if stated else text
    known = {each.lower(): each for each in DEVICES}
    if name.lower() not in known:
        raise ValueError(
            f"there is no cluster {name!r}; there are {', '.join(DEVICES)}, {MEASURE!r} and files "
            f"FILE.json{did_you_mean(name, [*DEVICES, MEASURE])}"
        )
    if stated:
        return Cluster.preset(name, int(stated["hosts"]), int(stated["devices"]))
    return Cluster.preset(name)


def _read_file(name: str) -> Cluster:
    data = json_object(name, "cluster")
    try:
        return _cluster(data)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{name} describes no cluster: {error}") from error


def _cluster(data: Mapping[str, Any]) -> Cluster:
    from distir_ext.mesh.cluster import LAUNCH, Cluster
    from distir_ext.mesh.mesh import Mesh

    if "preset" in data:
        _check_fields(data, ("preset",), ("hosts", "devices_per_host"), "a preset")
        options = {name: value for name, value in data.items() if name != "preset"}
        return Cluster.preset(data["preset"], **options)
    launch = data.get("launch", LAUNCH)
    if "links" not in data:
        _check_fields(data, ("device", "link"), ("launch",), "a cluster without hosts")
        return Cluster.uniform(_link(data["link"]), launch, device=data["device"])
    _check_fields(data, ("device", "mesh", "links"), ("launch",), "a cluster with hosts")
    sizes, links = _object(data["mesh"], "a mesh"), _object(data["links"], "links")
    mesh = Mesh(tuple(sizes.values()), tuple(sizes))
    return Cluster(
        mesh, {name: _link(link) for name, link in links.items()}, launch, device=data["device"]
    )


def _link(data: Any) -> Any:
    from distir_ext.mesh.cluster import Link

    fields = _object(data, "a link")
    _check_fields(fields, ("latency", "bandwidth"), ("gap",), "a link")
    return Link(**fields)


def _object(data: Any, what: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{what} is stated by a JSON object, not by {json.dumps(data)}")
    return data


def _check_fields(
    data: Collection[str], needed: Collection[str], others: Collection[str], what: str
) -> None:
    known = [*needed, *others]
    for name in data:
        if name not in known:
            raise ValueError(
                f"{what} has no field {name!r}, only {', '.join(known)}{did_you_mean(name, known)}"
            )
    for name in needed:
        if name not in data:
            raise ValueError(f"{what} needs the field {name!r}")
