"""Pipelines of passes that configurations choose: YAML over defaults, and passes of your own.

>>> pipeline = load({"passes": {"OutlineRepeats": {"enabled": True}}})
>>> pipeline["OutlineRepeats"].is_enabled
True

``docs/writing_a_pass.md`` walks through a pass of one's own.
"""

from distir_ext.pipelines.configuration import default_text, load
from distir_ext.pipelines.fusion import Skip, register_fusion
from distir_ext.pipelines.pipeline import PassPipeline, PipelinePass
from distir_ext.pipelines.registry import (
    Matches,
    Option,
    RegisteredPass,
    register_pass,
    registered_passes,
    unregister_pass,
)

__all__ = [
    "Matches",
    "Option",
    "PassPipeline",
    "PipelinePass",
    "RegisteredPass",
    "Skip",
    "default_text",
    "load",
    "register_fusion",
    "register_pass",
    "registered_passes",
    "unregister_pass",
]
