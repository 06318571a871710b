"""Distributed tensor programs for TVM Relax, as an add-on to the apache-tvm wheel.

``import distir_ext as dx`` loads the native library into TVM, registers its operators and lets
TVMScript parse them. The command ``distir`` does so when it needs it (``_command``).
"""

from typing import TYPE_CHECKING

from distir_ext import _aliases, _command
from distir_ext._version import __version__

if TYPE_CHECKING or not _command.waits:
    from distir_ext.native import library  # loads the native library, before all else  # noqa: F401

    # isort: split
    from distir_ext import analysis, hints, interop, launch, pipelines, testing, training
    from distir_ext.annotate import collectives
    from distir_ext.annotate.constrain import barrier, constrain
    from distir_ext.annotate.donation import donate
    from distir_ext.annotate.manual import manual
    from distir_ext.annotate.mutator import ShardingMutator
    from distir_ext.annotate.patterns import annotate
    from distir_ext.annotate.per_worker import per_worker
    from distir_ext.autosharding.auto_plan import AutoPlan, AutoStage
    from distir_ext.autosharding.plan import autoshard
    from distir_ext.compile.entry import build, lower
    from distir_ext.compile.kernels.cuda import flash_attention
    from distir_ext.compile.kernels.legalizations import random_bits
    from distir_ext.explain import rules
    from distir_ext.explain.printing import script
    from distir_ext.explain.provenance import explain
    from distir_ext.explain.summary import Summary, summary
    from distir_ext.explain.user_rules import register_rule, registered_rules, unregister_rule
    from distir_ext.mesh.cluster import INFINIBAND, NVLINK, Cluster, Link
    from distir_ext.mesh.device import DEVICES, Device
    from distir_ext.mesh.dims import Dim, TensorDims
    from distir_ext.mesh.mesh import Mesh
    from distir_ext.mesh.notation import dims, meshes
    from distir_ext.native import installing, reports
    from distir_ext.native.machine import nvidia
    from distir_ext.native.reports import PassReport, pass_reports
    from distir_ext.native.steps import phase
    from distir_ext.passes import pass_checks, transform
    from distir_ext.passes.dump import DumpPasses
    from distir_ext.passes.pass_checks import CheckPasses
    from distir_ext.saved.saving import SavedProgram, load, save
    from distir_ext.session import stages
    from distir_ext.session.session import (
        Hosts,
        Ray,
        Session,
        ShardedArray,
        WorkerError,
        WorkerValue,
    )
    from distir_ext.training import gradients as _gradients
    from distir_ext.training.step import train_step
    from distir_ext.views import results as _results  # noqa: F401 - attaches tables and figures
    from distir_ext.views.visualize import Sharding, ShardingPicture, visualize
    from distir_ext.workers.backends import Backend, register_backend, unregister_backend

    nvidia.install()
    flash_attention.install()
    random_bits.install()
    installing.install()
    reports.install()
    pass_checks.install()
    _gradients.install()
    _aliases.install()

__all__ = [
    "DEVICES",
    "INFINIBAND",
    "NVLINK",
    "AutoPlan",
    "AutoStage",
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
    "autoshard",
    "barrier",
    "build",
    "collectives",
    "constrain",
    "dims",
    "donate",
    "explain",
    "hints",
    "interop",
    "launch",
    "load",
    "lower",
    "manual",
    "meshes",
    "pass_reports",
    "per_worker",
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
    "train_step",
    "training",
    "transform",
    "unregister_backend",
    "unregister_rule",
    "visualize",
]
