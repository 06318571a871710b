"""Registers the tables, the HTML and the figures of every result class."""

from __future__ import annotations

from distir_ext.analysis.costs import Estimate
from distir_ext.analysis.diff_result import Difference
from distir_ext.analysis.measured.comparison import Comparison
from distir_ext.analysis.redistribution import Redistribution
from distir_ext.analysis.shardings import TensorShardings
from distir_ext.analysis.sweeps.sweep_result import Sweep
from distir_ext.analysis.timelines.timeline import Timeline
from distir_ext.autosharding.auto_plan import AutoPlan
from distir_ext.communication.collectives import Collectives
from distir_ext.explain.summary import Summary
from distir_ext.hints.report import Report
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.device import Device
from distir_ext.mesh.mesh import Mesh
from distir_ext.native.reports import PassReport
from distir_ext.pipelines.pipeline import PassPipeline
from distir_ext.reshards.reshards_result import Reshards
from distir_ext.session.model import Model, ModelFunction
from distir_ext.session.profile import Profile
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.session.statistics import Statistics
from distir_ext.session.timeline import Timeline as StageTimeline
from distir_ext.signature.sharding import Sharding
from distir_ext.text.display import figure, html, tables
from distir_ext.text.html_text import html_code
from distir_ext.text.tables import as_html
from distir_ext.views.drawing import sharding_svg
from distir_ext.views.drawing.sharding_picture import ShardingPicture
from distir_ext.views.figures import (
    estimate_figure,
    stages_figure,
    sweep_figure,
    timeline_figure,
)
from distir_ext.views.tables.autoshard import autoshard_tables
from distir_ext.views.tables.cluster import cluster_tables
from distir_ext.views.tables.comparison import comparison_table
from distir_ext.views.tables.costs import (
    collective_table,
    estimate_tables,
    redistribution_table,
    sharding_table,
)
from distir_ext.views.tables.difference import difference_tables
from distir_ext.views.tables.function import function_table
from distir_ext.views.tables.mesh import device_table, mesh_table
from distir_ext.views.tables.profile import profile_tables
from distir_ext.views.tables.report import hint_tables, pass_tables, pipeline_table
from distir_ext.views.tables.reshard import reshard_tables
from distir_ext.views.tables.summary import summary_tables
from distir_ext.views.tables.sweep import sweep_tables
from distir_ext.views.tables.timeline import timeline_tables
from distir_ext.views.tables.traffic import traffic_table

tables.register(Mesh, lambda mesh: [mesh_table(mesh)])
tables.register(Device, lambda device: [device_table(device)])
tables.register(Cluster, cluster_tables)
tables.register(Summary, summary_tables)
tables.register(PassReport, pass_tables)
tables.register(PassPipeline, lambda pipeline: [pipeline_table(pipeline)])
tables.register(Report, hint_tables)
tables.register(Collectives, lambda collectives: [collective_table(collectives)])
tables.register(TensorShardings, lambda rows: [sharding_table(rows)])
tables.register(Reshards, reshard_tables)
tables.register(Redistribution, lambda plan: [redistribution_table(plan)])
tables.register(Estimate, estimate_tables)
tables.register(Timeline, timeline_tables)
tables.register(Sweep, sweep_tables)
tables.register(AutoPlan, autoshard_tables)
tables.register(Difference, difference_tables)
tables.register(Comparison, lambda comparison: [comparison_table(comparison)])
tables.register(ModelFunction, lambda function: [function_table(function._spec)])
tables.register(Model, lambda model: [function_table(model[name]._spec) for name in model])
tables.register(Statistics, lambda statistics: [traffic_table(statistics)])
tables.register(Profile, profile_tables)


@html.register(Summary)
def _summary(summary: Summary) -> str:
    return as_html([*tables(summary), *map(mesh_table, summary.meshes)])


@html.register(ShardingPicture)
def _picture(picture: ShardingPicture) -> str:
    return sharding_svg.draw(picture._layout(), alone=False)


@html.register(Sharding)
def _sharding(sharding: Sharding) -> str:
    return html(ShardingPicture(sharding))


@html.register(ShardedArray)
def _array(array: ShardedArray) -> str:
    return f"<pre>{html_code(repr(array))}</pre>{html(array.sharding)}"


figure.register(Estimate, estimate_figure)
figure.register(Timeline, timeline_figure)
figure.register(StageTimeline, stages_figure)
figure.register(Sweep, sweep_figure)
