"""What type inference calls the axes of meshes in its errors."""

import re

import pytest
import tvm

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


@pytest.mark.parametrize("names", ['{"mesh": [["dp"]]}', '{"mesh": "dp"}', '{"other": [["a"]]}'])
def test_names_that_do_not_fit_are_not_used(names):
    said = message(OUTSIDE, f'I.module_attrs({{"distir.mesh_axes": {names}}})')
    assert "axis 0 ('x') of the mesh" in said
