"""What a distributed program communicates."""

from distir_ext.analysis.collectives import Collective, collectives
from distir_ext.analysis.optimizations import Optimization, optimizations

__all__ = ["Collective", "Optimization", "collectives", "optimizations"]
