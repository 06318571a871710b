"""Makes tables of the reports of passes, pipelines and hints."""

from __future__ import annotations

from rich.table import Table

from distir_ext.hints.report import Node, Report
from distir_ext.native.reports import PassReport
from distir_ext.pipelines.pipeline import PassPipeline
from distir_ext.text.tables import new_table


def pass_tables(report: PassReport) -> list[Table]:
    """Returns the counts of a pass's matches, and of those that it skipped."""
    title = f"{report.name} ({report.seconds * 1e3:.1f} ms)"
    done = new_table(title, "what", "times")
    for what, count in report.done.items():
        done.add_row(what, str(count))
    left = new_table(f"{report.name}: what was left as it was", "what", "why", "times", texts=2)
    for what, reasons in report.skipped.items():
        for why, count in reasons.items():
            left.add_row(what, why, str(count))
    return [done, left] if left.rows else [done]


def pipeline_table(pipeline: PassPipeline) -> Table:
    """The passes in order."""
    table = new_table("passes", "pass", "phase", "enabled", "options", "of", texts=5)
    for each in pipeline.passes:
        stated = ", ".join(f"{name}={value!r}" for name, value in each.options.items())
        enabled = "yes" if each.is_enabled else "no"
        registered = each.registered
        if registered.is_required:
            enabled = "always"
        table.add_row(registered.name, registered.phase, enabled, stated, registered.source)
    return table


def hint_tables(report: Report) -> list[Table]:
    """The weights, the others that are replicated, the layers, and the notes."""
    title = "weights"
    weights = new_table(title, "layer", "type", "weight", "mode", "sharding", texts=5)
    layer = ""
    for node in report.nodes:
        name = "" if node.layer == layer else node.layer
        kind = "" if node.layer == layer else node.layer_type
        layer = node.layer
        how = f"skipped: {node.skipped}" if node.skipped else node.sharding
        weights.add_row(name, kind, _below(node), node.tp_mode, how)
    tables = [weights]
    named = {node.param for node in report.nodes}
    if others := {k: why for k, why in report.replicated.items() if k not in named}:
        replicated = new_table("replicated", "other weight", "because", texts=2)
        for name, why in others.items():
            replicated.add_row(name, why)
        tables.append(replicated)
    if report.why:
        reasons = new_table("why", "layer", "because", texts=2)
        for name, why in report.why.items():
            reasons.add_row(name, why)
        tables.append(reasons)
    if report.notes:
        notes = new_table("notes", "note", texts=1)
        for note in report.notes:
            notes.add_row(note)
        tables.append(notes)
    return tables


def _below(node: Node) -> str:
    """The name of a weight within its layer."""
    has = node.param.startswith(node.layer) and len(node.param) > len(node.layer)
    return node.param[len(node.layer) :].lstrip("._") if has else node.param
