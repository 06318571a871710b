"""Runs host agents as actors on the nodes of a Ray cluster, with reserved resources.

The driver reserves a placement group with a bundle per host, and starts an actor in each bundle.
An actor runs a host agent with a token that the driver has made; from then on these are hosts as
all others are.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.wire.connections import format_address, parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.tokens import new_token
from distir_ext.workers.base import LEAVE_LIMIT
from distir_ext.workers.host_processes import Started
from distir_ext.workers.hosts.host_agent import HostAgent
from distir_ext.workers.hosts.hosts import Hosts
from distir_ext.workers.hosts.ray_hosts import Ray
from distir_ext.workers.hosts.remote_processes import start_on_hosts

# How often it can be interrupted while Ray reserves nodes, in seconds.
_LOOK_INTERVAL = 1.0

# How long a cluster may take to accept a connection, in seconds.
_CONNECT_LIMIT = 10.0

# Nodes of these may come while Ray waits for them, as clusters grow; those of others exist.
_COMMON_RESOURCES = {"CPU", "GPU", "memory", "object_store_memory"}

# How many nodes a message lists, and how many digits of the 56 of a node's id tell it from others.
_LISTED_NODES = 8
_ID_DIGITS = 12


class HostActor:
    """Ray actor that runs a host agent at its node's address.

    Args:
        token: The token that clients have to have.
    """

    def __init__(self, token: str) -> None:
        import ray

        address = format_address((ray.util.get_node_ip_address(), 0))
        self._agent = HostAgent(address, Credentials(token.encode()))
        threading.Thread(target=self._agent.serve, daemon=True).start()

    def address(self) -> str:
        """Returns the address at which the agent listens."""
        return self._agent.address

    def close(self) -> None:
        """Ends the agent and its workers."""
        self._agent.close()


class Reservation:
    """Reservation of a session in a Ray cluster: a placement group, and actors in it.

    Args:
        ray: The package.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._job = ray.get_runtime_context().get_job_id()
        self._actor_class: Any = None
        self._group: Any = None
        self._actors: list[Any] = []

    def reserve(self, stated: Ray, bundle: Mapping[str, float], deadline: float) -> list[str]:
        """Waits until Ray has reserved a bundle for each host.

        Returns:
            By bundle the id of its node.

        Raises:
            RuntimeError: it does not in time; says what was asked for, and what there is.
            ValueError: Ray refuses such a bundle, in its words.
        """
        from ray.util.placement_group import placement_group, placement_group_table

        strategy = "PACK" if stated.pack or stated.hosts == 1 else "STRICT_SPREAD"
        amounts = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
        self._actor_class = self._ray.remote(**amounts)(HostActor)
        self._group = placement_group([dict(bundle)] * stated.hosts, strategy=strategy)
        while not self._group.wait(max(0.0, min(_LOOK_INTERVAL, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                apart = ", on different nodes" if strategy == "STRICT_SPREAD" else ""
                raise RuntimeError(
                    f"within {stated.limit:g} seconds (start_timeout) Ray has not reserved "
                    f"{counted(stated.hosts, 'host')} with {_amounts(bundle)} each{apart}. "
                    f"{_describe_cluster(self._ray, bundle)}"
                )
        nodes: Mapping[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        return [nodes[index] for index in range(stated.hosts)]

    def start_agents(self, token: str, nodes: Sequence[str], deadline: float) -> list[str]:
        """Starts an actor in each bundle.

        Returns:
            Where their agents listen.

        Raises:
            RuntimeError: one does not start; names its node.
            ValueError: As :meth:`reserve`.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        for index in range(len(nodes)):
            where = PlacementGroupSchedulingStrategy(self._group, index)
            options = self._actor_class.options(scheduling_strategy=where)
            self._actors.append(options.remote(token))
        addresses = []
        asked = [actor.address.remote() for actor in self._actors]
        for node, answer in zip(nodes, asked, strict=True):
            try:
                left = max(0.0, deadline - time.monotonic())
                addresses.append(self._ray.get(answer, timeout=left))
            except self._ray.exceptions.GetTimeoutError:
                raise RuntimeError(f"the actor on {_name(node)} did not start in time") from None
            except self._ray.exceptions.RayError as error:
                why = str(error).strip().rpartition("\n")[2].strip()  # the rest are tracebacks
                raise RuntimeError(f"the actor on {_name(node)} does not start: {why}") from error
        return addresses

    def give_back(self) -> None:
        """Ends the actors and removes the placement group, unless Ray has done so itself."""
        ray = self._ray
        # Another connection to Ray knows nothing of these, and without one Ray would make one.
        if not ray.is_initialized() or ray.get_runtime_context().get_job_id() != self._job:
            return
        from ray.util.placement_group import remove_placement_group

        with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
            closing = [actor.close.remote() for actor in self._actors]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=LEAVE_LIMIT)
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)
        self._actors.clear()


def start_on_ray(
    started: Started, stated: Ray, num_workers: int, ccl: str, imports: Sequence[str]
) -> None:
    """Starts the workers of a session on nodes of a Ray cluster.

    Raises:
        ImportError: there is no Ray.
        ValueError: the devices do not fit the hosts, or no node has a resource.
        RuntimeError: there is no cluster, it has not enough, or a host does not start.
    """
    devices = stated.devices_of_host(num_workers)
    bundle = stated.bundle(devices, ccl)
    ray = _connected(stated)
    _check_known(ray, stated)
    deadline = time.monotonic() + stated.limit
    reservation = Reservation(ray)
    started.at_end.append(reservation.give_back)
    token = new_token()
    try:
        nodes = reservation.reserve(stated, bundle, deadline)
        addresses = reservation.start_agents(token, nodes, deadline)
    except ValueError as error:
        why = "".join(map(str, error.args))
        raise ValueError(f"resources= of dx.Ray: Ray refuses {bundle}: {why}") from error
    # Hosts of one node have neighbouring ranks.
    by_node = sorted(zip(addresses, map(_name, nodes), strict=True), key=lambda host: host[1])
    hosts = Hosts(
        [address for address, _ in by_node],
        [devices] * stated.hosts,
        token=token,
        names=[f"{address} ({name})" for address, name in by_node],
    )
    start_on_hosts(started, hosts, num_workers, ccl, imports)


def _connected(stated: Ray) -> Any:
    """The package ray, connected to a cluster."""
    try:
        import ray
        import ray.util.placement_group
    except ImportError as error:
        raise ImportError(
            f"dx.Ray starts workers by ray, which cannot be imported ({error}): "
            "pip install 'distir-ext[ray]'"
        ) from error
    if not ray.is_initialized():
        try:
            _check_reachable(stated.address)
            ray.init(address=stated.address)
        except (OSError, RuntimeError, ValueError) as error:
            raise RuntimeError(
                f"no cluster of Ray for dx.Ray(address={stated.address!r}): {error}"
            ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Ray would try for seven minutes, which nothing can interrupt.

    Raises:
        OSError, ValueError: nobody listens there, or it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address

    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if "://" in address or (found := canonicalize_bootstrap_address(address)) is None:
        return
    try:
        socket.create_connection(parse_address(found), _CONNECT_LIMIT).close()
    except OSError as error:
        raise ConnectionError(f"nobody listens at {found}: {error}") from error


def _check_known(ray: Any, stated: Ray) -> None:
    known = _COMMON_RESOURCES.union(*(node["Resources"] for node in _alive(ray)))
    for name, amount in (stated.resources or {}).items():
        if amount > 0 and name not in known:
            raise ValueError(
                f'resources= of dx.Ray has "{name}", which no node of the cluster has'
                + did_you_mean(name, known)
            )


def _alive(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _describe_cluster(ray: Any, bundle: Mapping[str, float]) -> str:
    """Describes the nodes' amounts of a bundle's resources, for a message."""
    nodes = sorted(_alive(ray), key=lambda node: str(node["NodeManagerAddress"]))
    listed = [
        f"{node['NodeManagerAddress']} with "
        + _amounts({name: node["Resources"].get(name, 0) for name in bundle})
        for node in nodes[:_LISTED_NODES]
    ]
    if len(nodes) > _LISTED_NODES:
        listed.append(f"and {len(nodes) - _LISTED_NODES} more")
    free = ray.available_resources()
    return f"The cluster has {counted(len(nodes), 'node')}: {', '.join(listed)}; free: " + _amounts(
        {name: free.get(name, 0) for name in bundle}
    )


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _name(node: str) -> str:
    return f"Ray node {node[:_ID_DIGITS]}"
