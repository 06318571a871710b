"""Training: a forward function becomes a step ``(state, batch) -> (state, metrics)``."""

from distir_ext.training import initializers
from distir_ext.training.initialization import initialize
from distir_ext.training.memory_limit import MemoryLimit
from distir_ext.training.optimizers import SGD, Adam, AdamW, Momentum, Optimizer
from distir_ext.training.recompute import checkpoint
from distir_ext.training.state import Trainer, initial_state
from distir_ext.training.step import LossScale, train_step

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "MemoryLimit",
    "Momentum",
    "Optimizer",
    "Trainer",
    "checkpoint",
    "initial_state",
    "initialize",
    "initializers",
    "train_step",
]
