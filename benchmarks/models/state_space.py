"""A selective scan, as the layers of Mamba have it, with its steps written one after another."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script.parser import relax as R

import distir_ext as dx

BATCH, CHANNELS, STATES = 4, 64, 16


def build_scan(steps: int) -> tvm.IRModule:
    """The scan.

    Args:
        steps: Number of steps.
    """
    builder = relax.BlockBuilder()

    def parameter(name: str, *shape: int) -> relax.Var:
        return relax.Var(name, R.Tensor(shape, "float32"))

    x = parameter("x", BATCH, steps, CHANNELS)
    delta = parameter("delta", BATCH, steps, CHANNELS)
    decay = parameter("decay", CHANNELS, STATES)
    b, c = (parameter(name, BATCH, steps, STATES) for name in ("b", "c"))
    op, emit = relax.op, builder.emit

    def at(sequence: relax.Var, step: int) -> relax.Var:
        return emit(op.squeeze(emit(op.strided_slice(sequence, [1], [step], [step + 1])), [1]))

    with builder.function("main", [x, delta, decay, b, c]):
        with builder.dataflow():
            state = emit(op.zeros((BATCH, CHANNELS, STATES), "float32"))
            results = []
            for step in range(steps):
                length = emit(op.expand_dims(at(delta, step), -1))
                kept = emit(op.multiply(emit(op.exp(emit(op.multiply(length, decay)))), state))
                added = emit(op.multiply(length, emit(op.expand_dims(at(b, step), 1))))
                added = emit(op.multiply(added, emit(op.expand_dims(at(x, step), -1))))
                state = emit(op.add(kept, added))
                seen = emit(op.multiply(state, emit(op.expand_dims(at(c, step), 1))))
                results.append(emit(op.sum(seen, -1)))
            result = builder.emit_output(op.stack(results, 1))
        builder.emit_func_output(result)
    return builder.get()


def annotated(mod: tvm.IRModule) -> tvm.IRModule:
    """The scan with its channels sharded over 2 devices."""
    plan = {"x": (None, None, "x"), "delta": (None, None, "x"), "decay": ("x", None)}
    return dx.annotate(mod, dx.Mesh((2,), ("x",)), plan)
