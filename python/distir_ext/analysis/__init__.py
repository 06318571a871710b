"""Analyses of distributed programs: compute, communication, memory, and their times."""

from distir_ext.analysis.costs import (
    AxisTotal,
    CollectiveCost,
    Cost,
    Estimate,
    KernelCost,
    Memory,
    OperatorCost,
    ProgramEstimate,
)
from distir_ext.analysis.diff import diff
from distir_ext.analysis.diff_result import CollectiveChange, Difference, ShardingChange, Total
from distir_ext.analysis.estimate import estimate
from distir_ext.analysis.graphs.graph import Graph, graph
from distir_ext.analysis.listings import collective_table, sharding_table
from distir_ext.analysis.measured.comparison import ComparedRow, Comparison, compare
from distir_ext.analysis.measured.kernel_times import KernelTimes, time_kernels
from distir_ext.analysis.measured.measurement import measure_cluster
from distir_ext.analysis.redistribution import (
    Redistribution,
    RedistributionStep,
    redistribution,
)
from distir_ext.analysis.shardings import TensorSharding, shardings
from distir_ext.analysis.simulate import simulate
from distir_ext.analysis.sweeps.configurations import factorizations
from distir_ext.analysis.sweeps.sweep import sweep
from distir_ext.analysis.sweeps.sweep_result import Sweep, SweepRow
from distir_ext.analysis.timelines.events import DeviceGroup, Operation
from distir_ext.analysis.timelines.timeline import (
    CriticalOperator,
    DeviceTime,
    Timeline,
    TimelineEvent,
    TimelineEvents,
)
from distir_ext.communication.collectives import Collective, collectives
from distir_ext.passes.optimizations import Optimization, optimizations
from distir_ext.reshards.check_reshards import CheckReshards
from distir_ext.reshards.reshards import reshards
from distir_ext.reshards.reshards_result import Reshard, Reshards, Suggestion
from distir_ext.session.profile import Profile, ProfileEvent, ProfileStep, ProfileTotal

__all__ = [
    "AxisTotal",
    "CheckReshards",
    "Collective",
    "CollectiveChange",
    "CollectiveCost",
    "ComparedRow",
    "Comparison",
    "Cost",
    "CriticalOperator",
    "DeviceGroup",
    "DeviceTime",
    "Difference",
    "Estimate",
    "Graph",
    "KernelCost",
    "KernelTimes",
    "Memory",
    "Operation",
    "OperatorCost",
    "Optimization",
    "Profile",
    "ProfileEvent",
    "ProfileStep",
    "ProfileTotal",
    "ProgramEstimate",
    "Redistribution",
    "RedistributionStep",
    "Reshard",
    "Reshards",
    "ShardingChange",
    "Suggestion",
    "Sweep",
    "SweepRow",
    "TensorSharding",
    "Timeline",
    "TimelineEvent",
    "TimelineEvents",
    "Total",
    "collective_table",
    "collectives",
    "compare",
    "diff",
    "estimate",
    "factorizations",
    "graph",
    "measure_cluster",
    "optimizations",
    "redistribution",
    "reshards",
    "sharding_table",
    "shardings",
    "simulate",
    "sweep",
    "time_kernels",
]
