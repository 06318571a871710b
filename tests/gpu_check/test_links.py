"""Ranges of bandwidth, derived from links between GPUs as nvidia-smi lists them."""

from __future__ import annotations

import pytest

from distir_ext.gpu_check import links
from distir_ext.gpu_check.links import Link, bus_range, read_links

# As nvidia-smi prints it: headers underlined, NICs and affinities beside the GPUs.
SWITCHED = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tPXB\t0-55\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNODE\t0-55\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t56-111\t1\t\tN/A
NIC0\tPXB\tNODE\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
BRIDGED = SWITCHED.replace("GPU2\tNV18\tNV18", "GPU2\tSYS\tSYS")
LANES = "5, 16\n5, 16\n4, 8\n"
H100 = ["NVIDIA H100 80GB HBM3"] * 3


def test_nvlinks_count_and_generation():
    assert read_links(SWITCHED, LANES, 3, H100) == Link("18 NVLinks of 25 GB/s", 450.0, True)
    assert read_links(SWITCHED, LANES, 3, ["NVIDIA B200"] * 3).gigabytes == 900
    fewer = SWITCHED.replace("NV18", "NV12")
    assert read_links(fewer, LANES, 2, ["NVIDIA A100-SXM4-80GB"] * 2).gigabytes == 300


def test_the_slowest_pair_decides():
    found = read_links(BRIDGED, LANES, 3, H100)
    assert found == Link("8 lanes of PCIe 4, SYS", pytest.approx(8 * 1.969), False)
    assert read_links(BRIDGED, LANES, 2, H100).gigabytes == 450  # the first two


UNKNOWN = {
    "one GPU": ((SWITCHED, LANES, 1, H100), "there is one GPU"),
    "a board that is not listed": (
        (SWITCHED, LANES, 2, ["NVIDIA RTX A6000"] * 2),
        "NVIDIA RTX A6000 has NV18, whose rate is not known here",
    ),
    "another word": (
        (SWITCHED.replace("NV18", "XYZ"), LANES, 2, H100),
        "nvidia-smi says XYZ of GPU 1, which is not known here",
    ),
    "a slot without lanes": (
        (BRIDGED, "[N/A], [N/A]\n" * 3, 3, H100),
        "nvidia-smi says SYS of GPU 2, which is not known here",
    ),
    "no matrix": (
        ("", LANES, 2, H100),
        "nvidia-smi says nothing of GPU 0, which is not known here",
    ),
}


@pytest.mark.parametrize(("arguments", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_has_no_range(arguments, reason):
    assert read_links(*arguments) == reason


def test_ranges():
    nvlink, pcie = Link("", 450, True), Link("", 31.5, False)
    assert bus_range(nvlink, "all_gather", 8) == pytest.approx((225, 495))
    # Switches reduce, so that each byte is sent once; not between two GPUs, where that is all.
    assert bus_range(nvlink, "all_reduce", 8) == pytest.approx((225, 495 * 1.75))
    assert bus_range(nvlink, "all_reduce", 2) == pytest.approx((225, 495))
    assert bus_range(pcie, "all_reduce", 8) == pytest.approx((6.3, 34.65))


def test_without_nvidia_smi(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda name: None)
    assert links.slowest_link(2, H100) == "nvidia-smi does not say what joins the GPUs"


def test_nvidia_smi_is_asked(monkeypatch, tmp_path):
    (tmp_path / "matrix").write_text(SWITCHED)
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = topo ]; then cat {tmp_path}/matrix; else echo "5, 16"; fi\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert links.slowest_link(3, H100).gigabytes == 450
    assert str(links.ask("topo", "-m")).startswith("\tGPU0\tGPU1")
