"""Layer-type hints: how the layers of a model are sharded, stated or detected.

>>> config = DistConfig(world_size=4, moe_ep_size=2)
>>> config.tp_size, config.moe_tp_size
(4, 2)

``docs/hints.md`` is the guide.
"""

from distir_ext.hints.application import Hinted, apply
from distir_ext.hints.configuration import load, to_yaml
from distir_ext.hints.detection import detect
from distir_ext.hints.model_config import from_config
from distir_ext.hints.report import Node, Report
from distir_ext.hints.vocabulary import (
    LAYER_TYPES,
    TP_MODES,
    DistConfig,
    Hints,
    LayerHint,
    WeightHint,
)

__all__ = [
    "LAYER_TYPES",
    "TP_MODES",
    "DistConfig",
    "Hinted",
    "Hints",
    "LayerHint",
    "Node",
    "Report",
    "WeightHint",
    "apply",
    "detect",
    "from_config",
    "load",
    "to_yaml",
]
