"""Calls in a phase that is too early, or with names that do not exist, raise one error at once."""

import pytest
from tvm import relax
from tvm.relax import op

import distir_ext as dx

MESH = dx.Mesh(tp=2)


def program():
    x = relax.Var("x", relax.TensorType((8, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.exp(x)))
    return builder.get()


def annotated():
    return dx.annotate(program(), MESH, {"x": ("tp", None)})


def test_an_executable_says_that_a_session_loads_it():
    executable = dx.build(annotated())
    assert isinstance(executable, relax.VMExecutable)
    message = r"on workers: load it first.*session.load\(executable\)"
    with pytest.raises(TypeError, match=f"function 'main' of this executable runs {message}"):
        executable["main"]
    with pytest.raises(TypeError, match=f"this executable runs {message}"):
        executable(0)


def test_a_lowered_module_is_not_annotated_again():
    """It was taken, and the function doubled its sharding: (16384,) for (8192,)."""

    class Mutator(dx.ShardingMutator):
        def place(self, call):
            return None

    for until in ("lowered", "runtime"):
        lowered = dx.lower(annotated(), until=until)
        message = "module is lowered already: 'main' is the program of a worker"
        with pytest.raises(ValueError, match=message):
            dx.annotate(lowered, MESH, {"x": ("tp", None)})
        with pytest.raises(ValueError, match=message):
            Mutator()(lowered)


def test_a_target_that_does_not_exist_is_refused_before_any_pass():
    wrong = {
        "llvmm": (ValueError, "no target 'llvmm'; did you mean 'llvm'"),
        "llvm -mcpu=x": (ValueError, "no target 'llvm -mcpu=x'.*no longer supported"),
        3: (TypeError, "target is a int"),
    }
    mod = annotated()
    for target, (error, message) in wrong.items():
        with dx.pass_reports() as reports, pytest.raises(error, match=message):
            dx.build(mod, target=target)
        assert not reports
    with pytest.raises(ValueError, match=r"no target .*'mcp'.*Unknown config option"):
        dx.build(annotated(), target={"kind": "llvm", "mcp": "x"})


def test_a_sweep_over_a_number_says_what_it_needs():
    with pytest.raises(TypeError, match=r"meshes are an iterable of meshes, not a int; .*factoriz"):
        dx.analysis.sweep(program(), 8, {"a": {"x": ("tp", None)}}, dx.Cluster.preset("H100"))


def test_a_slice_that_ends_before_it_begins_is_named():
    """It was said to be the doing of a pass behind LowerDistIR."""
    x = relax.Var("x", relax.TensorType((8, 6), "float32"))
    for dims in (("tp", None), (None, "tp"), ("tp", ...)):
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            part = builder.emit(op.strided_slice(x, [0], [5], [2], [1], assume_inbound=True))
            builder.emit_func_output(part)
        mod = dx.annotate(builder.get(), MESH, {"x": dims})
        message = "`gv` in `main` has the negative extent -3 along dimension 0, as R.strided_slice"
        with pytest.raises(ValueError, match=message):
            dx.transform.PropagateSharding()(mod)
