"""Tables of clusters: the device and the links."""

from __future__ import annotations

from rich.table import Table

from distir_ext._pictures.mesh_tables import device_table, link_table
from distir_ext.cluster import Cluster


def cluster_tables(cluster: Cluster) -> list[Table]:
    """The device, if it is stated, and the links."""
    table = link_table(cluster.links, cluster.sizes, cluster.launch)
    return [table] if cluster.device is None else [device_table(cluster.device), table]
