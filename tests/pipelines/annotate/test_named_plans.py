"""Modules under plans by name compute what they compute alone, and send what torch's plan sends."""

import numpy as np
import onnx_ir as ir
import pytest
from tests.annotate.test_named_plans import MESH, TP
from tests.interop.onnx import models
from tests.interop.onnx.models import array, node
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx

ALONE = dx.Mesh(all=1)


def values(mod, func):
    rng = np.random.default_rng(0)

    def value(type_):
        if isinstance(type_, relax.TupleType):
            return tuple(map(value, type_.fields))
        shape = [5 if str(size) == "n" else int(size) for size in type_.shape]
        made = rng.standard_normal(shape) * 0.3
        return np.ones(shape, "bool") if str(type_.dtype) == "bool" else made.astype("float32")

    return [value(param.ty) for param in mod[func].params]


def total_bytes(mod):
    sent = dx.analysis.collectives(dx.lower(mod))
    return sum(each.count * each.bytes_per_device for each in sent)


def run(mod, mesh, func, given):
    function = mod[func].without_attr("num_input")  # all are passed
    mod = mod.clone()
    mod.update_func(mod.get_global_var(func), function)
    with dx.Session(mesh) as session:
        return session.load(dx.build(mod, QUICK))[func](*given).numpy()


@pytest.mark.parametrize("case", TP)
def test_numbers(case):
    mod, func, _ = TP[case]
    given = values(mod, func)
    alone = dx.annotate(mod, ALONE, {str(mod[func].params[0].name): None}, func)
    wanted = run(alone, ALONE, func, given)
    plans = [(MESH, "tp")] + [(dx.Mesh(dp=2, fsdp=2, tp=2), "fsdp")] * (case == "packed")
    for mesh, plan in plans:
        found = run(dx.annotate(mod, mesh, plan, func), mesh, func, given)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_torch_onnx_and_relax_send_the_same():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    modules = [torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64)]
    model = torch.nn.Sequential(*modules).eval()
    x = torch.ones(6, 64)
    mod = dx.interop.torch.import_model(model, x).mod
    made = models.model(
        [
            node("Gemm", ["x", "val_1", "b"], ["a"]),
            node("Relu", ["a"], ["h"]),
            node("Gemm", ["h", "val_2", "c"], ["y"]),
        ],
        {"x": [6, 64]},
        ["y"],
        {"val_1": array(64, 96), "b": array(96), "val_2": array(96, 64), "c": array(64)},
    )
    read = dx.interop.onnx.from_onnx(ir.to_proto(made)).mod
    for mesh in (MESH, dx.Mesh(dp=2, fsdp=2, tp=2)):
        for plan in ("tp", "fsdp"):
            sharded = dx.interop.torch.partition(model, x, mesh, plan, target=QUICK)
            sent = [
                total_bytes(each)
                for each in (sharded.mod, *(dx.annotate(m, mesh, plan) for m in (mod, read)))
            ]
            assert sent[0] == sent[1] == sent[2] > 0
