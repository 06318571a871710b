"""Stores a cluster in a module attribute, which later passes read."""

from __future__ import annotations

from typing import Any

import tvm

from distir_ext.text.errors.tracebacks import short_tracebacks

CLUSTER_ATTR = "distir.cluster"


@short_tracebacks
def SetCluster(cluster: Any) -> tvm.transform.Pass:  # noqa: N802 - passes are named as TVM's
    """States the cluster that a module runs on, for the passes that come after.

    Redistributions are planned, and senders chosen, by the module's cluster; without one, all
    devices are taken to be joined by NVLink.

    Args:
        cluster: A :class:`distir_ext.Cluster`.

    Raises:
        TypeError: It is something else.
    """
    if not hasattr(cluster, "as_data"):
        raise TypeError(f"a cluster is a distir_ext.Cluster, not a {type(cluster).__name__}")

    def run(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return mod.with_attr(CLUSTER_ATTR, cluster.as_data())

    return tvm.transform.module_pass(run, opt_level=0, name="SetCluster")
