"""Every phase of a program prints, parses, and is structurally what it was."""

# TVMScript has statements only.
# ruff: noqa: SIM108

import copy
import pickle

import pytest
import tvm
from tests.meshes import meshes
from tests.script.constants import DTYPES, constant_of, constants_of
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import verify


@I.ir_module
class OneMesh:
    """Collectives of every kind, a call, a branch, symbolic sizes."""

    I.module_global_infos(meshes((2, 2)))

    @R.function(private=True)
    def block(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        ("n", 16), "float32"
    ):
        y = R.matmul(x, w)
        z = R.add(x, y)
        return z

    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w: R.Tensor((16, 16), "float32"),
        flag: R.Tensor((), "bool"),
    ):
        cls = OneMesh
        n = T.int64()
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], S[1]")
        a = cls.block(x0, w)
        b = R.dist.annotate_sharding(a, "mesh[0]", "S[1], S[0]")
        if flag:
            c = R.nn.relu(b)
        else:
            c = R.permute_dims(R.permute_dims(b))
        d = R.sum(c, axis=[0], keepdims=True)
        e = R.dist.annotate_sharding(d, "mesh[0]", "R, S[1]")
        f = R.multiply(e, R.const(2.0, "float32"))
        g = R.zeros(R.shape([n, 16]), "float32")
        h = R.add(f, g)
        return (h, a)


@I.ir_module
class TwoMeshes:
    """A pipeline of two stages, the second on fewer devices, with a branch in it."""

    I.module_global_infos(meshes((2, 2), (2,)))

    @R.function
    def main(
        x: R.Tensor(("n", 16), "float32"),
        w0: R.Tensor((16, 32), "float32"),
        w1: R.Tensor((32, 16), "float32"),
        flag: R.Tensor((), "bool"),
    ):
        R.func_attr({"num_input": 1})
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
        w = R.dist.annotate_sharding(w0, "mesh[0]", "R, S[1]")
        a = R.matmul(x0, w)
        b = R.dist.annotate_sharding(a, "mesh[1]", "S[1]")
        c = R.matmul(b, w1)
        if flag:
            d = R.nn.relu(c)
        else:
            d = R.exp(c)
        return (d, a)


@I.ir_module
class Views:
    """Shardings that only other views of the mesh can name: another order, and parts of an axis."""

    I.module_global_infos(
        {
            "mesh": [
                R.device_mesh((2, 4), I.Range(0, 8)),
                R.device_mesh((4, 2), [0, 4, 1, 5, 2, 6, 3, 7]),
            ]
        }
    )

    @R.function
    def main(x: R.Tensor((16, 16), "float32"), v: R.Tensor((4,), "float32")):
        with R.dataflow():
            x0 = R.dist.annotate_sharding(x, "mesh[1]", "S[0], S[0]")
            y = R.nn.relu(x0)
            y0 = R.dist.annotate_sharding(y, "mesh[0]", "S[0], S[0]")
            z = R.reshape(y0, (2, 8, 16))
            v0 = R.dist.annotate_sharding(v, "mesh[0]", "R, S[0]")
            u = R.reshape(v0, (2, 2))
            R.output(z, u)
        return (z, u)


@I.ir_module
class Packed:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        a = R.call_dps_packed("test.first", (x0,), out_ty=R.Tensor((8, 8), "float32"))
        b = R.call_pure_packed("test.second", a, ty_args=R.Tensor((8, 8), "float32"))
        return b


Constants = constants_of(DTYPES)


@I.ir_module
class Identities:
    """Branches that are only a variable, a constant, a tuple, or another branch."""

    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((8, 8), "float32"), flag: R.Tensor((), "bool")):
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
        if flag:
            a = R.nn.relu(x0)
        else:
            a = x0
        if flag:
            b = a
        else:
            b = R.exp(a)
        if flag:
            c = a
        else:
            c = b
        if flag:
            d = (a, c)
        else:
            d = (b, b)
        if flag:
            if flag:
                e = c
            else:
                e = R.negative(c)
        else:
            e = a
        return (d, e)


@I.ir_module
class NestedResult:
    """A private function whose nested result has zeros in its padding."""

    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def block(x: R.Tensor((8, 7), "float32")):
        with R.dataflow():
            y = R.exp(x)
            z = R.cos(x)
            both = (y, (z, y))
            R.output(both)
        return both

    @R.function
    def main(x: R.Tensor((8, 7), "float32")):
        cls = NestedResult
        x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
        both = cls.block(x0)
        return both


def phases(mod):
    """From name to the module in every phase."""
    found = {"annotated": mod}
    found["propagated"] = dx.transform.PropagateSharding()(mod)
    found["padded"] = dx.transform.PadShards()(found["propagated"])
    found["legalized"] = dx.transform.LegalizeRedistribute()(found["padded"])
    found["optimized"] = dx.transform.OptimizeCollectives()(found["legalized"])
    found["lowered"] = dx.transform.LowerDistIR()(found["optimized"])
    found["called"] = dx.transform.LowerCCL()(found["lowered"])
    return found


PHASES = ("annotated", "propagated", "padded", "legalized", "optimized", "lowered", "called")
MODULES = [OneMesh, TwoMeshes, Views, Packed, Identities, NestedResult]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mod", MODULES, ids=lambda mod: mod.__name__)
def test_phase_round_trips(mod, phase):
    result = phases(mod)[phase]
    assert relax.analysis.check_well_formed(result)
    if phase in ("propagated", "legalized", "lowered"):
        verify(result, phase)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)


@pytest.mark.parametrize("mod", [OneMesh, TwoMeshes, Views], ids=lambda mod: mod.__name__)
def test_what_was_parsed_goes_on_as_what_was_printed(mod):
    usual = phases(mod)
    for before, after, transform in [
        ("propagated", "legalized", dx.transform.LegalizeRedistribute()),
        ("legalized", "optimized", dx.transform.OptimizeCollectives()),
        ("optimized", "lowered", dx.transform.LowerDistIR()),
        ("lowered", "called", dx.transform.LowerCCL()),
    ]:
        parsed = tvm.script.from_source(usual[before].script())
        tvm.ir.assert_structural_equal(transform(parsed), usual[after])


FORMATS = {
    "json": lambda mod: tvm.ir.load_json(tvm.ir.save_json(mod)),
    "pickle": lambda mod: pickle.loads(pickle.dumps(mod)),
    "deepcopy": copy.deepcopy,
    "script with metadata": lambda mod: tvm.script.from_source(mod.script(show_meta=True)),
}
NEXT = {
    "annotated": dx.transform.PropagateSharding,
    "propagated": dx.transform.PadShards,
    "padded": dx.transform.LegalizeRedistribute,
    "legalized": dx.transform.OptimizeCollectives,
    "optimized": dx.transform.LowerDistIR,
    "lowered": dx.transform.LowerCCL,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "mod", [*MODULES, Constants], ids=[*(mod.__name__ for mod in MODULES), "Constants"]
)
def test_what_was_loaded_goes_on_as_what_was_saved(mod, name):
    usual = phases(mod)
    for phase, after in zip(PHASES, [*PHASES[1:], None], strict=True):
        loaded = FORMATS[name](usual[phase])
        assert not loaded.same_as(usual[phase])
        tvm.ir.assert_structural_equal(loaded, usual[phase])
        if phase in ("propagated", "legalized", "lowered"):
            verify(loaded, phase)
        if after is not None:
            tvm.ir.assert_structural_equal(NEXT[phase]()(loaded), usual[after])


@pytest.mark.parametrize("name", FORMATS)
def test_constants_keep_their_elements(name):
    called = FORMATS[name](phases(Constants)["called"])
    found = {}

    def visit(expr):
        if isinstance(expr, tvm.ir.GenericConst):
            found[str(expr.ty.dtype)] = expr.value

    relax.analysis.post_order_visit(called["main"].body, visit)
    assert sorted(found) == sorted(DTYPES)
    for dtype, data in found.items():
        assert data.numpy().tobytes() == constant_of(dtype).tobytes(), dtype


def test_views_are_among_the_global_infos():
    meshes = phases(Views)["legalized"].global_infos["mesh"]
    assert [tuple(mesh.shape) for mesh in meshes][:2] == [(2, 4), (4, 2)]
    assert (2, 2, 2) in [tuple(mesh.shape) for mesh in meshes]


def test_collectives_of_the_two_mesh_program_print_their_names():
    text = phases(TwoMeshes)["legalized"].script()
    assert "R.dist.transfer(" in text
    lowered = phases(TwoMeshes)["lowered"].script()
    assert "R.ccl.send(" in lowered
    assert "R.ccl.recv(" in lowered


def test_branches_of_tensors_parse_as_before():
    @I.ir_module
    class Plain:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((4, "n"), "float32")):
            if flag:
                y = R.nn.relu(x)
                z = R.exp(y)
            else:
                z = R.negative(x)
            return z

    tvm.ir.assert_structural_equal(tvm.script.from_source(Plain.script()), Plain)
    branch = Plain["main"].body.blocks[0].bindings[0].value
    assert isinstance(branch, relax.If)
    assert len(branch.true_branch.blocks[0].bindings) == 2


def test_branches_on_different_placements_are_refused():
    with pytest.raises(Exception, match=r"StructuralEqual|placement"):
        tvm.script.from_source(
            """
@I.ir_module
class Module:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})
    @R.function
    def main(
        c: R.DTensor((), "bool", "mesh[0]", "R"), x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")
    ):
        if c:
            y = R.exp(x)
        else:
            y = R.dist.redistribute(x, "mesh[0]", "R")
        return y
"""
        )
