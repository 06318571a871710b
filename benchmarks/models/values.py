"""Numbers for the models' inputs and weights, the same wherever they are run."""

from __future__ import annotations

import numpy as np

from models.transformers import Llama, ModelConfig


def llama_values(config: ModelConfig) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Token ids, and weights by name, scaled so that activations stay of the size of one."""
    generator = np.random.default_rng(0)
    model = Llama(None, config)
    tokens = generator.integers(0, config.vocabulary, (config.batch, config.sequence))
    weights = {}
    for name, shape in model.weights().items():
        value = generator.standard_normal(shape, "float32")
        if len(shape) == 1:
            value = 1 + value / 10
        elif name != "embed":
            value = value / np.sqrt(shape[0])
        weights[name] = value.astype(config.dtype)
    return tokens.astype("int32"), weights
