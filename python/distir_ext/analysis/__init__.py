"""What a distributed program computes, communicates and holds."""

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
from distir_ext.communication.collectives import Collective, collectives

__all__ = [
    "AxisTotal",
    "Collective",
    "CollectiveCost",
    "Cost",
    "Estimate",
    "KernelCost",
    "Memory",
    "OperatorCost",
    "Optimization",
    "ProgramEstimate",
    "collectives",
    "estimate",
    "optimizations",
]
