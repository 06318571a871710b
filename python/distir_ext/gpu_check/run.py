"""Runs the sections of ``distir gpu-check``, and prints their findings."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from distir_ext.gpu_check.builds import check_builds
from distir_ext.gpu_check.collectives import check_collectives
from distir_ext.gpu_check.ends import check_ends
from distir_ext.gpu_check.findings import Finding, Section, table_of
from distir_ext.gpu_check.machine import Machine, find_machine
from distir_ext.gpu_check.memory import check_memory
from distir_ext.gpu_check.numbers import check_numbers
from distir_ext.gpu_check.products import check_attention, check_decode, check_products
from distir_ext.gpu_check.topology import check_topology
from distir_ext.gpu_check.versions import check_versions
from distir_ext.text.printable import printable

_SECTIONS: Mapping[str, Callable[[Machine], Iterator[Finding]]] = {
    "versions": check_versions,
    "topology": check_topology,
    "builds": check_builds,
    "numbers": check_numbers,
    "collectives": check_collectives,
    "products": check_products,
    "attention": check_attention,
    "decode": check_decode,
    "ends": check_ends,
    "memory": check_memory,
}

_SIMULATED = (
    "SIMULATED: this ran on what stands in for CUDA and NCCL; times and versions say nothing of a "
    "GPU."
)
_SEND = (
    "What to send back: the output of 'distir gpu-check --json', and for what is out of range that "
    "of the same command with NCCL_DEBUG=INFO."
)


def run_gpu_check(console: Console, as_json: bool) -> int:
    """Checks the GPUs of this machine.

    Args:
        console: Output of the tables; progress goes to standard error.
        as_json: Whether to print one JSON object to standard output instead.

    Returns:
        The exit status: 0 if all is in range, 1 if something is not, 2 without a GPU.
    """
    try:
        machine = find_machine()
    except (OSError, RuntimeError) as error:
        print(f"distir gpu-check: {printable(str(error))}", file=sys.stderr)
        return 2
    sections = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(_SECTIONS))
        for name, check in _SECTIONS.items():
            progress.update(task, description=name)
            sections.append(_run(name, check, machine))
            progress.advance(task)
            if not as_json:
                console.print(table_of(sections[-1]))
    failed = [(section.name, each) for section in sections for each in section.failed]
    if as_json:
        print(
            json.dumps(
                {
                    "simulated": machine.simulated,
                    "gpus": machine.num_gpus,
                    "ok": not failed,
                    "sections": {
                        section.name: {
                            "seconds": section.seconds,
                            "findings": [each.to_data() for each in section.findings],
                        }
                        for section in sections
                    },
                },
                indent=1,
            )
        )
    else:
        if machine.simulated:
            console.print(_SIMULATED)
        for name, each in failed:
            console.print(f"out of range: {name}: {each.what}: {each.found}", markup=False)
        console.print("All is in range." if not failed else _SEND, markup=False)
        if not failed:
            console.print(_SEND, markup=False)
    return 1 if failed else 0


def _run(name: str, check: Callable[[Machine], Iterator[Finding]], machine: Machine) -> Section:
    """A section to its end; an error is a finding, and the next section runs all the same."""
    begin = time.monotonic()
    findings = []
    try:
        for finding in check(machine):
            findings.append(finding)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        findings.append(Finding("the section", text, "it runs to its end", False))
    return Section(name, findings, time.monotonic() - begin)
