"""Chooses one strategy per node at the least cost, with a bound of how good any choice can be."""

from distir_ext.autosharding.problem import INFINITE, Problem
from distir_ext.autosharding.solver import Solution, solve

__all__ = ["INFINITE", "Problem", "Solution", "solve"]
