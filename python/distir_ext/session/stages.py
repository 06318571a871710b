"""API of pipelines: stage meshes, schedules, microbatches and timelines.

``dx.transform.AssignStages`` cuts a function into stages; ``model["main"].pipeline(microbatches)``
runs it so that they overlap. What is here needs neither: it is what both are described with.
``docs/pipeline.md`` is the guide.
"""

from __future__ import annotations

from distir_ext.mesh.stage_meshes import stage_meshes
from distir_ext.session.microbatches import JoinedArray
from distir_ext.session.pipeline import Pipeline
from distir_ext.session.schedule import Event, Schedule, schedule
from distir_ext.session.timeline import TimedEvent, Timeline, simulate

__all__ = [
    "Event",
    "JoinedArray",
    "Pipeline",
    "Schedule",
    "TimedEvent",
    "Timeline",
    "schedule",
    "simulate",
    "stage_meshes",
]
