"""Names of mesh axes in errors of type inference."""

import pickle
import re

import pytest
import tvm
from tvm import relax
from tvm.ir import Range
from tvm.relax.distributed import DeviceMesh, DTensorType
from tvm.script.parser import relax as R

import distir_ext as dx

TEXT = """
@I.ir_module
class Module:
    {names}
    I.module_global_infos({{"mesh": [R.device_mesh((2, 4), I.Range(0, 8))]}})
    @R.function
    def main(x: R.DTensor((8, 16), "float32", "mesh[0]", "S[0], R")):
        y = {call}
        return y
"""
NAMES = 'I.module_attrs({"distir.mesh_axes": {"mesh": [["dp", "tp"]]}})'
OUTSIDE = 'R.dist.redistribute(x, device_mesh="mesh[0]", placement="S[5], R")'
NO_STEP = 'R.dist.all_gather(x, device_mesh="mesh[0]", placement="R, S[1]")'


def message(call, names):
    with pytest.raises(tvm.error.DiagnosticError) as error:
        tvm.script.from_source(TEXT.format(names=names, call=call))
    return re.sub(r"\s+", " ", str(error.value))


def test_names_of_the_module_that_is_parsed():
    assert "mesh axis 'dp' is placed on dimension 5 of a tensor of 2" in message(OUTSIDE, NAMES)
    said = message(NO_STEP, NAMES)
    assert "does not lead from sharding ('dp', None) to (None, 'tp')" in said
    assert 'in TVMScript "S[0], R" to "R, S[1]"' in said
    assert "names none" not in said


def test_letters_of_a_mesh_without_names_are_explained():
    assert "axis 0 ('x') of the mesh is placed on dimension 5" in message(OUTSIDE, "pass")
    assert (
        "from sharding ('x', None) to (None, 'y'); in TVMScript \"S[0], R\" to \"R, S[1]\"; "
        "'x' is axis 0, 'y' is axis 1 of the mesh, which names none"
    ) in message(NO_STEP, "pass")


def no_step(mesh, mod=None):
    """Returns the error of a collective that BlockBuilder infers, with or without a module."""
    placed = relax.distributed.Placement.from_text
    x = relax.Var("x", DTensorType(relax.TensorType((8, 16), "float32"), mesh, placed("S[0], R")))
    builder = relax.BlockBuilder(mod)
    with builder.function("no_step", [x]):
        with pytest.raises(ValueError, match="does not lead") as error:
            builder.emit(R.dist.all_gather(x, device_mesh=mesh, placement="R, S[1]"))
        builder.emit_func_output(x)
    return str(error.value)


def test_names_of_a_mesh_in_block_builder():
    said = no_step(dx.Mesh(dp=2, tp=4).device_mesh)
    assert "from sharding ('dp', None) to (None, 'tp')" in said
    assert "names none" not in said
    assert "from sharding ('x', None) to (None, 'y')" in no_step(DeviceMesh((2, 4), Range(0, 8)))


def test_names_of_a_module_that_a_pass_has_read():
    text = TEXT.format(names=NAMES, call="R.exp(x)")
    mod = dx.transform.LegalizeRedistribute()(tvm.script.from_source(text))
    assert "('dp', None) to (None, 'tp')" in no_step(mod.global_infos["mesh"][0])


def test_names_of_a_module_that_was_loaded():
    text = TEXT.format(names=NAMES, call="R.exp(x)")
    for copied in (
        tvm.ir.load_json(tvm.ir.save_json(tvm.script.from_source(text))),
        pickle.loads(pickle.dumps(tvm.script.from_source(text))),
    ):
        mesh = copied.global_infos["mesh"][0]
        assert "('x', None) to (None, 'y')" in no_step(mesh)  # nothing leads from it to its names
        assert "('dp', None) to (None, 'tp')" in no_step(mesh, copied)


def test_the_last_names_of_a_mesh_count():
    mesh = dx.Mesh(dp=2, tp=4).device_mesh
    mod = tvm.IRModule({}, attrs={"distir.mesh_axes": {"mesh": [["a", "b"]]}})
    mod.update_global_info("mesh", [mesh])
    dx.transform.PropagateSharding()(mod)
    assert "('a', None) to (None, 'b')" in no_step(mesh)


@pytest.mark.parametrize("names", ['{"mesh": [["dp"]]}', '{"mesh": "dp"}', '{"other": [["a"]]}'])
def test_names_that_do_not_fit_are_not_used(names):
    said = message(OUTSIDE, f'I.module_attrs({{"distir.mesh_axes": {names}}})')
    assert "axis 0 ('x') of the mesh" in said


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (R.dist.all_gather, "R.dist.all_gather"),
        (R.dist.all_reduce_add_rms_norm, "R.dist.all_reduce_add_rms_norm"),
    ],
)
def test_a_function_that_lacks_arguments_is_called_by_its_name(function, name):
    with pytest.raises(TypeError, match=rf"^{re.escape(name)}\(\) missing"):
        function()
