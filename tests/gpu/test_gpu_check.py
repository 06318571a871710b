"""``distir gpu-check`` runs to its end; on the stand-in it says so, and notices what is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from tests.gpu.conftest import HOST


def gpu_check(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "distir_ext", "gpu-check", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_all_sections_run():
    done = gpu_check("--json", CUDA_ON_HOST_DEVICES="4")
    report = json.loads(done.stdout)
    assert list(report["sections"]) == [
        *("versions", "topology", "builds", "numbers", "collectives"),
        *("products", "attention", "decode", "ends", "memory"),
    ]
    assert report["simulated"] == (HOST is not None)
    failed = [
        each
        for section in report["sections"].values()
        for each in section["findings"]
        if each["ok"] is False
    ]
    assert (failed, report["ok"], done.returncode) == ([], True, 0), done.stderr


def test_what_is_wrong_is_out_of_range(monkeypatch, capsys):
    """A reduction that is wrong, and a section that fails: the others run all the same."""
    if HOST is None:
        pytest.skip("NCCL itself cannot be made to fail")
    from rich.console import Console

    from distir_ext.gpu_check import run

    def fails(machine):
        yield run.Finding("the first", "found")
        raise ValueError("boom")

    sections = {"boom": fails, "collectives": run.check_collectives}
    monkeypatch.setattr(run, "_SECTIONS", sections)
    HOST.cuda_on_host_fault(b"wrong reduction")
    try:
        assert run.run_gpu_check(Console(width=200), False) == 1
    finally:
        HOST.cuda_on_host_fault(b"")
    printed = capsys.readouterr().out
    assert "SIMULATED" in printed
    assert "out of range: boom: the section: ValueError: boom" in printed
    assert "out of range: collectives: all_reduce of float16" in printed
    assert "out of range: collectives: all_gather" not in printed
    assert "What to send back: the output of 'distir gpu-check --json'" in printed


def test_bandwidth_below_its_links_is_out_of_range(monkeypatch):
    """The stand-in's links are said to be NVLinks here, which it does not reach."""
    if HOST is None:
        pytest.skip("it measures the stand-in")
    from distir_ext.gpu_check import collectives
    from distir_ext.gpu_check.links import Link
    from distir_ext.gpu_check.machine import find_machine

    link = Link("18 NVLinks of 25 GB/s", 450, True)
    monkeypatch.setattr(collectives, "_no_link", lambda count, names: link)
    monkeypatch.setattr(collectives, "_LARGE", 1 << 16)
    found = list(collectives.check_collectives(find_machine()))
    timed = [each for each in found if "KiB" in each.what]
    assert len(timed) == 3
    for each in timed:
        assert not each.ok
        assert re.fullmatch(r"bus 225 to (495|866) GB/s: 18 NVLinks of 25 GB/s", each.wanted)


REFUSALS = {
    "an old NCCL": (
        {"NCCL_ON_HOST_VERSION": "22205"},
        r"NCCL 2.22.5 of .* is too old: 2.24.0 or later is needed, the first that reduces float8",
    ),
    "an old driver": (
        {"CUDA_ON_HOST_DRIVER": "12040"},
        r"the NVIDIA driver is too old: it is for CUDA 12.4, and CUDA 13.0 of .* needs one for "
        r"CUDA 13 or later",
    ),
    "no driver": (
        {"CUDA_ON_HOST_DRIVER": "0"},
        r"this machine has no NVIDIA driver; CUDA 13.0 of .* needs one for CUDA 13 or later",
    ),
    "a driver that CUDA cannot use": (
        {"CUDA_ON_HOST_FAULT": "unusable driver"},
        r"counting the GPUs .* failed: system has unsupported display driver",
    ),
    "no GPU": (
        {"CUDA_ON_HOST_DEVICES": "0"},
        r"this machine has no GPU that CUDA can use",
    ),
}


@pytest.mark.parametrize(("environment", "message"), REFUSALS.values(), ids=REFUSALS)
def test_machine_that_can_not_be_checked(environment, message):
    if HOST is None:
        pytest.skip("only the stand-in has other versions")
    done = gpu_check(**environment)
    assert done.returncode == 2, done.stdout
    assert re.search(message, done.stderr), done.stderr
