"""Automatic sharding: the search of a plan (``dx.autoshard``), and the solver behind it."""

from distir_ext.autosharding.auto_plan import AutoPlan, AutoStage
from distir_ext.autosharding.plan import autoshard
from distir_ext.autosharding.problem import INFINITE, Problem
from distir_ext.autosharding.reasons import WeightChoice
from distir_ext.autosharding.solver import Solution, solve

__all__ = [
    "INFINITE",
    "AutoPlan",
    "AutoStage",
    "Problem",
    "Solution",
    "WeightChoice",
    "autoshard",
    "solve",
]
