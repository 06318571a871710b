"""Request for workers on the nodes of a Ray cluster, as users pass it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from distir_ext.launch.introductions import start_limit

# How long Ray may take, in seconds: nodes that are there answer within some ten.
_START_LIMIT = 60.0


@dataclass(frozen=True)
class Ray:
    """Workers that are processes on nodes of a Ray cluster (``pip install 'distir-ext[ray]'``).

    Each host is one actor, which starts the workers of its devices and ends them. The session owns
    the actors, and what it has reserved for them: all of it is given back when the session is
    closed or fails, and when the process that opened it ends.

    Devices are given to hosts in order: the first host has those with the lowest ids, so that the
    last axes of a mesh lie within a host.

    Attributes:
        hosts: Number of hosts, each on a node of its own.
        devices_per_host: Devices of each host; None: the mesh is divided among them.
        resources: Resources that Ray reserves for each host, by Ray's names, such as
            ``{"CPU": 16, "accelerator_type:A100": 0.001}``. What it does not name is a CPU for
            each of the host's devices and, with ``ccl="nccl"``, a GPU; 0 reserves none.
        pack: Whether hosts may share nodes: Ray uses as few as it can.
        address: Of the cluster, as ``ray.init`` takes it, where this process has not connected to
            one. It counts no more once it has.
        start_timeout: Time limit for reserving nodes and starting actors, in seconds; None:
            the environment variable ``DISTIR_EXT_START_TIMEOUT``, or 60.

    Raises:
        ValueError: numbers or resources that make no sense.
    """

    hosts: int = 1
    devices_per_host: int | None = None
    resources: Mapping[str, float] | None = None
    pack: bool = False
    address: str = "auto"
    start_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("hosts", "devices_per_host"):
            count = getattr(self, name)
            if count is None and name == "devices_per_host":
                continue
            if type(count) is not int or count < 1:
                raise ValueError(f"{name}={count!r} of dx.Ray must be a whole number, 1 or more")
        if not isinstance(self.address, str) or not self.address:
            raise ValueError(f"address={self.address!r} of dx.Ray is no address of a cluster")
        start_limit(self.start_timeout)
        self._check_resources()

    def _check_resources(self) -> None:
        if self.resources is None:
            return
        if not isinstance(self.resources, Mapping):
            raise ValueError(
                f"resources={self.resources!r} of dx.Ray must be a dict of amounts, as "
                '{"CPU": 4, "GPU": 4}'
            )
        for name, amount in self.resources.items():
            if not isinstance(name, str) or not name:
                raise ValueError(f"resources= of dx.Ray has {name!r}, which is no name")
            is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
            if not is_number or not 0 <= amount < math.inf:
                raise ValueError(
                    f'resources= of dx.Ray has {amount!r} of "{name}", which is no amount'
                )

    @property
    def limit(self) -> float:
        """Time that Ray may take to start, in seconds."""
        return start_limit(self.start_timeout, _START_LIMIT)

    def devices_of_host(self, num_workers: int) -> int:
        """Returns the number of devices of each host.

        Args:
            num_workers: Workers of the session, one per device.

        Raises:
            ValueError: the hosts have not as many devices as there are workers, or these do not
                divide among the hosts.
        """
        if self.devices_per_host is None:
            if num_workers % self.hosts != 0:
                raise ValueError(
                    f"{num_workers} devices do not divide among hosts={self.hosts} of dx.Ray"
                )
            return num_workers // self.hosts
        count = self.hosts * self.devices_per_host
        if count != num_workers:
            raise ValueError(
                f"dx.Ray(hosts={self.hosts}, devices_per_host={self.devices_per_host}) has "
                f"{count} devices, the session has {num_workers}"
            )
        return self.devices_per_host

    def bundle(self, devices: int, ccl: str) -> dict[str, float]:
        """Returns the resources that Ray reserves for a host with so many devices.

        Args:
            devices: Devices of the host.
            ccl: The backend of the session; ``"nccl"`` needs a GPU for each device.

        Returns:
            Amounts by the name of the resource, as Ray takes them: ``{"CPU": 4}``.

        Raises:
            ValueError: nothing would be reserved.
        """
        amounts: dict[str, float] = {"CPU": devices}
        if ccl == "nccl":
            amounts["GPU"] = devices
        amounts.update(self.resources or {})
        reserved = {name: amount for name, amount in amounts.items() if amount > 0}
        if not reserved:
            raise ValueError(
                f"resources={dict(self.resources or {})} of dx.Ray reserve nothing, so Ray "
                "cannot place hosts"
            )
        return reserved
