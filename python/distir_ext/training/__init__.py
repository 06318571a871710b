"""Training: a forward function becomes a step ``(state, batch) -> (state, metrics)``."""

from distir_ext.training.optimizers import SGD, Adam, AdamW, Momentum, Optimizer
from distir_ext.training.state import Trainer, initial_state
from distir_ext.training.step import LossScale, train_step

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "Momentum",
    "Optimizer",
    "Trainer",
    "initial_state",
    "train_step",
]
