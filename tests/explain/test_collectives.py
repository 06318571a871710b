"""Explanations of variables that are results of collectives, for every kind of collective."""

import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.native.collective_records import names, records

TYPE = relax.TensorType((4, 4), "float32")


def lowered_with(callee):
    """A lowered module with a function that calls the runtime."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    mod = dx.lower(dx.annotate(builder.get(), dx.Mesh(tp=2), {"x": ("tp", None)}))
    given, made = relax.Var("given", TYPE), relax.Var("made", TYPE)
    call = relax.Call(relax.ExternFunc(callee), [given], None, [TYPE])
    blocks = [relax.BindingBlock([relax.VarBinding(made, call)])]
    probe = relax.Function([given], relax.SeqExpr(blocks, made), TYPE, is_pure=False)
    mod[tvm.ir.GlobalVar("probe")] = probe.with_attr("global_symbol", "probe")
    return mod


def test_every_collective_is_known():
    for record in records().values():
        text = str(dx.explain(lowered_with(f"distir.runtime.{record.name}"), "made", "probe"))
        if record.family == "kernel":
            assert record.name not in text
        elif record.name == names.recv:
            assert "received from other devices" in text
        elif record.name == names.send:
            assert "sends `given` to other devices" in text
        else:
            partial = "the partial " if record.reduces else ""
            assert f"{record.name} of {partial}`given`" in text, text
