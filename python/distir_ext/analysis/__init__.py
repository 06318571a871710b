"""What a distributed program communicates."""

from distir_ext.analysis.collectives import Collective, collectives

__all__ = ["Collective", "collectives"]
