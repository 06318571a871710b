"""Distributed tensor programs for TVM Relax, as an add-on to the apache-tvm wheel.

``import distir_ext as dx`` loads the native library into TVM, registers its operators and lets
TVMScript parse them. The command ``distir`` does so when it needs it (``_command``).
"""

from typing import TYPE_CHECKING

from distir_ext import _command
from distir_ext._version import __version__

if TYPE_CHECKING or not _command.waits:
    from distir_ext import (
        _native,  # first: loads the native library
        _nvidia,
        analysis,
        collectives,
        hints,
        interop,
        launch,
        pass_checks,
        pipelines,
        reports,
        rules,
        stages,
        testing,
        transform,
    )
    from distir_ext._annotate.dims import Dim, TensorDims
    from distir_ext._compile.steps import phase
    from distir_ext._runtime.backends import Backend, register_backend, unregister_backend
    from distir_ext.annotate import annotate
    from distir_ext.cluster import DEVICES, INFINIBAND, NVLINK, Cluster, Device, Link
    from distir_ext.compile import build, lower
    from distir_ext.constrain import barrier, constrain
    from distir_ext.dump import DumpPasses
    from distir_ext.manual import manual
    from distir_ext.mesh import Mesh
    from distir_ext.mutator import ShardingMutator
    from distir_ext.notation import dims, meshes
    from distir_ext.pass_checks import CheckPasses
    from distir_ext.pictures import Sharding, ShardingPicture, visualize
    from distir_ext.printing import script
    from distir_ext.provenance import explain
    from distir_ext.reports import PassReport, pass_reports
    from distir_ext.saving import SavedProgram, load, save
    from distir_ext.session import Hosts, Ray, Session, ShardedArray, WorkerError, WorkerValue
    from distir_ext.summary import Summary, summary
    from distir_ext.user_rules import register_rule, registered_rules, unregister_rule
    from distir_ext.views import results as _results  # noqa: F401 - attaches tables and figures

    _nvidia.install()
    _native.install()
    reports.install()
    pass_checks.install()

__all__ = [
    "DEVICES",
    "INFINIBAND",
    "NVLINK",
    "Backend",
    "CheckPasses",
    "Cluster",
    "Device",
    "Dim",
    "DumpPasses",
    "Hosts",
    "Link",
    "Mesh",
    "PassReport",
    "Ray",
    "SavedProgram",
    "Session",
    "ShardedArray",
    "Sharding",
    "ShardingMutator",
    "ShardingPicture",
    "Summary",
    "TensorDims",
    "WorkerError",
    "WorkerValue",
    "__version__",
    "analysis",
    "annotate",
    "barrier",
    "build",
    "collectives",
    "constrain",
    "dims",
    "explain",
    "hints",
    "interop",
    "launch",
    "load",
    "lower",
    "manual",
    "meshes",
    "pass_reports",
    "phase",
    "pipelines",
    "register_backend",
    "register_rule",
    "registered_rules",
    "rules",
    "save",
    "script",
    "stages",
    "summary",
    "testing",
    "transform",
    "unregister_backend",
    "unregister_rule",
    "visualize",
]
