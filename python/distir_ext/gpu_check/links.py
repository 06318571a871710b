"""Reads the links between GPUs from nvidia-smi, and derives the bandwidth for collectives."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from distir_ext.native.collective_records import names

__all__ = ["Link", "ask", "bus_range", "read_links", "slowest_link"]

# GB/s of one NVLink in one direction, by the data sheets of the SXM boards: 12 links have 300 GB/s
# (A100), 18 have 450 (H100, H200) and 900 (B200).
_NVLINK = {"A100": 25.0, "H100": 25.0, "H200": 25.0, "B200": 50.0}

# GB/s of a lane in one direction, by generation: the rate of the PCI Express base specification,
# without what its encoding takes (130 bits for 128).
_PCIE_LANE = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

# Names of PCIe paths in nvidia-smi, from a single switch to a path between sockets.
_OVER_PCIE = ("PIX", "PXB", "PHB", "NODE", "SYS")

# The least share of a link that is in range. Assumptions: rings over NVLink lose little; over PCIe
# several GPUs may share a way, or go through the memory of the host.
_LEAST_OF_NVLINK = 0.5
_LEAST_OF_PCIE = 0.2

# More than a link has is a mistake of the measurement; so much is left to its clock.
_MOST = 1.1


@dataclass(frozen=True)
class Link:
    """Link between two GPUs."""

    name: str
    """With its source: "18 NVLinks of 25 GB/s"."""

    gigabytes: float
    """Per second, in one direction."""

    is_nvlink: bool
    """True for NVLink, where NVSwitches, which can reduce, may lie between."""


def ask(*options: str) -> str | None:
    """Returns the output of ``nvidia-smi`` without colours; None where it is not, or fails."""
    if shutil.which("nvidia-smi") is None:
        return None
    run = subprocess.run(
        ["nvidia-smi", *options], capture_output=True, text=True, timeout=60, check=False
    )
    return re.sub(r"\x1b\[[\d;]*m", "", run.stdout) if run.returncode == 0 else None


def slowest_link(count: int, names: Sequence[str]) -> Link | str:
    """The slowest link between the first GPUs.

    Args:
        count: Number of GPUs.
        names: Their names, as CUDA says them.

    Returns:
        The link, or the reason why it is not known.
    """
    matrix = ask("topo", "-m")
    lanes = ask(
        "--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits"
    )
    if matrix is None or lanes is None:
        return "nvidia-smi does not say what joins the GPUs"
    return read_links(matrix, lanes, count, names)


def read_links(matrix: str, lanes: str, count: int, names: Sequence[str]) -> Link | str:
    """Reads the slowest link, like :func:`slowest_link`, from the output of ``nvidia-smi``.

    Args:
        matrix: By ``topo -m``.
        lanes: Generation and width of the PCIe slot of each GPU.
        count: Number of GPUs.
        names: Their names.
    """
    rows = {}
    for line in matrix.splitlines():
        cells = line.split()
        if len(cells) > count and re.fullmatch(r"GPU\d+", cells[0]):
            rows[cells[0]] = cells[1:]
    found = []
    for index in range(count):
        row = rows.get(f"GPU{index}", [])
        for kind in row[:index] if len(row) >= count else [""]:
            link = _link(kind, index, lanes, names)
            if isinstance(link, str):
                return link
            found.append(link)
    if not found:
        return "there is one GPU"
    return min(found, key=lambda link: link.gigabytes)


def _link(kind: str, index: int, lanes: str, names: Sequence[str]) -> Link | str:
    bonded = re.fullmatch(r"NV(\d+)", kind)
    if bonded:
        each = next((rate for board, rate in _NVLINK.items() if board in names[index]), None)
        if each is None:
            return f"{names[index]} has {kind}, whose rate is not known here"
        number = int(bonded[1])
        return Link(f"{number} NVLinks of {each:g} GB/s", number * each, True)
    slot = re.findall(r"^\s*(\d+),\s*(\d+)\s*$", lanes, re.MULTILINE)
    if kind not in _OVER_PCIE or len(slot) <= index or int(slot[index][0]) not in _PCIE_LANE:
        return f"nvidia-smi says {kind or 'nothing'} of GPU {index}, which is not known here"
    generation, width = map(int, slot[index])
    return Link(
        f"{width} lanes of PCIe {generation}, {kind}", width * _PCIE_LANE[generation], False
    )


def bus_range(link: Link, collective: str, count: int) -> tuple[float, float]:
    """The least and the most bus bandwidth in range, in GB/s, of large tensors.

    Bus bandwidth is what each link carries (nccl-tests, doc/PERFORMANCE.md), so that it is at most
    the link's. Where switches reduce (NVLink SHARP), an all-reduce sends each byte once, which the
    formula takes for 2 (n - 1) / n.

    Args:
        link: The slowest between the GPUs.
        collective: ``"all_reduce"``, ``"all_gather"`` or ``"reduce_scatter"``.
        count: Number of GPUs.
    """
    in_switch = link.is_nvlink and collective == names.all_reduce
    most = link.gigabytes * (max(2 * (count - 1) / count, 1.0) if in_switch else 1.0)
    least = link.gigabytes * (_LEAST_OF_NVLINK if link.is_nvlink else _LEAST_OF_PCIE)
    return least, most * _MOST
