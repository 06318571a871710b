"""What a distributed program computes, communicates and holds, and when."""

from distir_ext._analysis.optimizations import Optimization, optimizations
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
from distir_ext.analysis.estimate import estimate
from distir_ext.analysis.redistribution import (
    Redistribution,
    RedistributionStep,
    redistribution,
)
from distir_ext.analysis.shardings import TensorSharding, shardings
from distir_ext.analysis.simulate import simulate
from distir_ext.analysis.tables import collective_table, sharding_table
from distir_ext.analysis.timeline import (
    CriticalOperator,
    DeviceGroup,
    DeviceTime,
    Operation,
    Timeline,
    TimelineEvent,
    TimelineEvents,
)
from distir_ext.communication.collectives import Collective, collectives

__all__ = [
    "AxisTotal",
    "Collective",
    "CollectiveCost",
    "Cost",
    "CriticalOperator",
    "DeviceGroup",
    "DeviceTime",
    "Estimate",
    "KernelCost",
    "Memory",
    "Operation",
    "OperatorCost",
    "Optimization",
    "ProgramEstimate",
    "Redistribution",
    "RedistributionStep",
    "TensorSharding",
    "Timeline",
    "TimelineEvent",
    "TimelineEvents",
    "collective_table",
    "collectives",
    "estimate",
    "optimizations",
    "redistribution",
    "sharding_table",
    "shardings",
    "simulate",
]
