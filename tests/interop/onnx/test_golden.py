"""The examples of ONNX's multi-device proposal, and what becomes of them.

``python -m tests.interop.onnx.test_golden`` writes the expected texts anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from onnx import ModelProto

import distir_ext as dx

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.textproto"))


def described(name):
    """Describes a file: configuration, module before and after propagation, written model."""
    text = (GOLDEN / f"{name}.textproto").read_text("utf-8")
    model = text_format.Parse(text, ModelProto())
    violations = dx.interop.onnx.check(model)
    if violations:
        return "\n".join(map(str, violations)) + "\n"
    imported = dx.interop.onnx.from_onnx(model)
    mod = dx.transform.PropagateSharding()(imported.mod)
    written = dx.interop.onnx.write(mod, model, "found")
    read, found = dx.interop.onnx.read(written)
    parts = [*_lines(read), str(imported.mesh), imported.mod.script(), mod.script(), *_lines(found)]
    return "\n".join(parts) + "\n"


def _lines(configuration):
    yield f"{configuration.name}: {configuration.num_devices} {configuration.device_names}"
    for node in configuration.nodes:
        yield f"  {node.node}" + ("" if node.stage is None else f", stage {node.stage}")
        for each in node.tensors:
            axes = [(axis.axis, [(p.size, p.shards) for p in axis.parts]) for axis in each.axes]
            yield f"    {each.tensor}: axes {axes} on {each.devices}"


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    assert described(name) == (GOLDEN / f"{name}.expected").read_text("utf-8")


if __name__ == "__main__":
    for each in NAMES:
        (GOLDEN / f"{each}.expected").write_text(described(each), encoding="utf-8")
