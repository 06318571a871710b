"""Functions whose devices have several stages: programs by virtual stage, what they pass on."""

import pytest
import tvm
from tests.lower.virtual_stage_programs import There, lowered, programs
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


def test_a_device_has_a_program_per_virtual_stage_and_passes_on_what_it_needs():
    result = lowered(There)
    assert programs(result) == [
        ("main_stage0", 0, ["x", "v"], []),
        ("main_stage1", 0, ["w"], []),
        ("main_stage2", 1, ["v"], [0, 1]),
    ]
    first, second = result["main_stage0"], result["main_stage2"]
    # The hidden state, and nothing of what depends on weights only.
    assert [tuple(field.shape) for field in first.ret_ty.fields] == [(2, 8)]
    assert [param.name for param in second.params] == ["v", "h"]
    assert "R.permute_dims" in second.script()
    assert "R.permute_dims" not in first.script()
    assert "R.ccl.send(" in first.script()
    assert "R.ccl.recv(" in second.script()


def test_the_text_of_programs_parses_back():
    result = lowered(There)
    tvm.ir.assert_structural_equal(tvm.script.from_source(result.script()), result)


def with_attribute(mod, value):
    return tvm.IRModule(
        {"main": mod["main"].with_attr("distir.interleaved", value)}, global_infos=mod.global_infos
    )


def test_the_attribute_lists_every_mesh():
    with pytest.raises(ValueError, match=r"in `main`: .*has no mesh whose smallest device is 2"):
        lowered(with_attribute(There, [0]))
    with pytest.raises(ValueError, match="is a list with the smallest device id of each mesh"):
        lowered(with_attribute(There, "yes"))


def test_only_functions_that_nothing_calls_have_virtual_stages():
    @I.ir_module
    class Called:
        I.module_global_infos(meshes((1,), (1,)))

        @R.function(private=True)
        def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            R.func_attr({"distir.interleaved": [0, 1]})
            a = R.exp(x)
            return a

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            cls = Called
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "R")
            a = cls.inner(x0)
            return a

    with pytest.raises(ValueError, match="has interleaved stages and is called in the module"):
        lowered(Called)
