"""Network namespaces that stand for hosts, with links of a stated rate and delay between them.

Each host has one link to a router, whose sending sides are shaped: by netem where the kernel has it
(rate and delay), otherwise by a token bucket (rate alone). Names begin with ``distir``; addresses
are 10.213.HOST.2, within these namespaces only. Needs root, and ``ip`` and ``tc`` of iproute2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Network:
    """Hosts and their links.

    Attributes:
        hosts: Names of the namespaces.
        delayed: Whether links have the delay that was asked for.
    """

    hosts: list[str]
    delayed: bool

    def address(self, host: int) -> str:
        """Returns the address of a host."""
        return f"10.213.{host}.2"

    def interface(self, host: int) -> str:
        """The host's link."""
        return f"dx{host}"

    def inside(self, host: int) -> list[str]:
        """Returns the words that a command on this host begins with."""
        return ["ip", "netns", "exec", self.hosts[host]]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _shape(namespace: str, device: str, gigabits: float, milliseconds: float) -> bool:
    """Shapes what a device sends; whether with the delay."""
    begin = ["ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", device, "root"]
    rate = f"{gigabits * 1000:g}mbit"
    delay = ["netem", "rate", rate, "delay", f"{milliseconds:g}ms", "limit", "100000"]
    if subprocess.run([*begin, *delay], capture_output=True).returncode == 0:
        return True
    bucket = ["tbf", "rate", rate, "burst", "256k", "latency", "50ms"]
    subprocess.run([*begin, *bucket], check=True, capture_output=True)
    return False


@contextlib.contextmanager
def network(num_hosts: int, gigabits: float, milliseconds: float) -> Iterator[Network]:
    """Makes the namespaces, and removes them at the end.

    Args:
        num_hosts: Number of hosts.
        gigabits: The rate of each link in each direction, per second.
        milliseconds: From one host to another.
    """
    prefix = f"distir{os.getpid()}"
    router, hosts = f"{prefix}router", [f"{prefix}h{i}" for i in range(num_hosts)]
    delayed = True
    try:
        for name in (router, *hosts):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        subprocess.run(
            ["ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
            check=True,
        )
        for i, name in enumerate(hosts):
            _ip("-n", name, "link", "add", f"dx{i}", "type", "veth", "peer", f"up{i}")
            _ip("-n", name, "link", "set", f"up{i}", "netns", router)
            _ip("-n", name, "addr", "add", f"10.213.{i}.2/24", "dev", f"dx{i}")
            _ip("-n", router, "addr", "add", f"10.213.{i}.1/24", "dev", f"up{i}")
            for namespace, device in ((name, f"dx{i}"), (router, f"up{i}")):
                _ip("-n", namespace, "link", "set", device, "up")
                # Half of the delay on each of the two links between hosts.
                delayed &= _shape(namespace, device, gigabits, milliseconds / 4)
            _ip("-n", name, "route", "add", "default", "via", f"10.213.{i}.1")
        yield Network(hosts, delayed and milliseconds > 0)
    finally:
        for name in (router, *hosts):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def launcher(folder: Path, made: Network) -> Path:
    """Writes the script that mpiexec runs for ssh: HOST COMMAND .. in that address's namespace."""
    file = folder / "enter"
    cases = "".join(
        f'{made.address(i)}) exec ip netns exec {name} sh -c "$*" ;;\n'
        for i, name in enumerate(made.hosts)
    )
    file.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
        f"host=$1; shift\ncase $host in\n{cases}esac\n",
        encoding="utf-8",
    )
    file.chmod(0o700)
    return file
