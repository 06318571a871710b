"""Makes tables of clusters: the device and the links."""

from __future__ import annotations

from rich.table import Table

from distir_ext.mesh.cluster import Cluster
from distir_ext.views.tables.mesh import device_table, link_table


def cluster_tables(cluster: Cluster) -> list[Table]:
    """The device, if it is stated, and the links."""
    table = link_table(cluster.links, cluster.sizes, cluster.launch)
    return [table] if cluster.device is None else [device_table(cluster.device), table]
