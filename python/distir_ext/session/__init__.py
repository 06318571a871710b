"""Running an executable on workers: global arrays in, global arrays out."""

from distir_ext.session.prepared import PreparedFunction
from distir_ext.session.session import (
    Hosts,
    Model,
    ModelFunction,
    Ray,
    Session,
    ShardedArray,
    Statistics,
    Traffic,
    WorkerError,
    WorkerValue,
)

__all__ = [
    "Hosts",
    "Model",
    "ModelFunction",
    "PreparedFunction",
    "Ray",
    "Session",
    "ShardedArray",
    "Statistics",
    "Traffic",
    "WorkerError",
    "WorkerValue",
]
