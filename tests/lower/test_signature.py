"""The signature in a module: short in print, complete when read."""

import json

import pytest
import tvm
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.mesh.mesh_axes import NamedMesh
from distir_ext.signature.signature import parse_signature
from distir_ext.signature.signature_attr import read_signature, signature_for_executable

MESH = dx.Mesh((2, 2), ("dp", "tp"))


def sum_of(names, shape=(4, 4)):
    """A sum of parameters."""
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name in names]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        total = params[0]
        for each in params[1:]:
            total = builder.emit(op.add(total, each))
        builder.emit_func_output(builder.emit(relax.Tuple([total, relax.Tuple([total])])))
    return builder.get()


def lowered(names, shape=(4, 4)):
    """Lowers a sum of parameters that are all sharded alike."""
    return dx.lower(dx.annotate(sum_of(names, shape), MESH, {".*": ("dp", "tp")}))


def names_of(mod):
    return [each["name"] for each in read_signature(mod)["functions"]["main"]["params"]]


@pytest.mark.parametrize(
    "names",
    [
        ["x"],
        ["x", "l.0.up", "l.0.down", "l.1.up", "l.1.down", "l.2.up", "norm"],
        ["l.3.e.0", "l.3.e.1", "l.4.e.0", "l.4.e.1", "l.6.e.0", "l.6.e.1"],
        ["w0", "w1", "w2", "w00", "w01", "v1", "w2_0"],
        ["{}.0", "{}.1", "w{0}", "w: 0", "w: 1", "w9999999999", "w10000000000"],
        ["a.1", "a.0", "b.0", "b.1"],
    ],
)
def test_names_and_their_order_are_kept(names):
    mod = lowered(names)
    assert names_of(mod) == names
    assert names_of(tvm.script.from_source(mod.script())) == names
    assert names_of(tvm.ir.load_json(tvm.ir.save_json(mod))) == names


def test_types_are_those_of_the_program():
    signature = read_signature(lowered(["x", "y"], shape=(5, 8)))  # 5 rows are padded
    tensor = {
        "kind": "tensor",
        "shape": [5, 8],
        "dtype": "float32",
        "mesh": 0,
        "placement": [0, 1],
        "dims": [["dp"], ["tp"]],
        "sharding": "('dp', 'tp')",
    }
    main = signature["functions"]["main"]
    assert [each["type"] for each in main["params"]] == [tensor, tensor]
    inner = {"kind": "tuple", "fields": [tensor]}
    assert main["result"] == {"kind": "tuple", "fields": [tensor, inner]}
    assert signature["meshes"] == [
        {
            "shape": [2, 2],
            "device_ids": [0, 1, 2, 3],
            "named": [[2, 2], ["dp", "tp"], [0, 1, 2, 3]],
        }
    ]


def test_the_mesh_of_a_plan_is_kept_where_a_view_of_it_is_used():
    mod = dx.annotate(sum_of(["x"]), MESH, {"x": (("tp", "dp"), None)})
    signature = read_signature(dx.lower(mod))
    main = signature["functions"]["main"]
    view = signature["meshes"][main["params"][0]["type"]["mesh"]]
    assert main["params"][0]["type"]["dims"] == [["tp", "dp"], []]
    assert view["device_ids"] == [0, 2, 1, 3]
    assert view["named"] == [[2, 2], ["dp", "tp"], [0, 1, 2, 3]]


def test_executables_name_the_axes_of_all_meshes_of_the_module():
    """First those of the signature's meshes, then those that none of its tensors is on."""
    mod = dx.annotate(sum_of(["x"]), MESH, {"x": (("tp", "dp"), None)})
    mod = dx.transform.PropagateSharding()(mod)
    other = dx.Mesh((2,), ("x",), device_ids=[4, 5]).device_mesh
    mod.update_global_info("mesh", [*mod.global_infos["mesh"], other])
    written = signature_for_executable(dx.lower(mod))
    named = [[[2, 2], ["dp", "tp"], [0, 1, 2, 3]], [[2], ["x"], [4, 5]]]
    count = len(written["meshes"])
    assert written["named_meshes"] == [*named[:1] * count, named[1]]
    assert parse_signature(json.dumps(written)).named_meshes == tuple(
        NamedMesh(*map(tuple, each)) for each in named
    )


def test_length_does_not_grow_with_layers():
    def length(layers):
        names = [f"layers.{i}.{each}.weight" for i in range(layers) for each in ("up", "down")]
        return len(str(lowered(["x", *names]).attrs["distir.signature"]))

    assert length(99) < length(2) + 10  # numbers have more digits
    assert length(99) < 400


def test_a_printed_module_does_not_begin_with_what_passes_note():
    text = lowered(["x", "y", "z"]).script()
    (attributes,) = (line for line in text.splitlines() if "I.module_attrs" in line)
    assert len(attributes) < 700
    assert "\\" not in attributes  # no JSON


def test_a_signature_of_another_version_is_refused():
    mod = lowered(["x"])
    for old in ('{"version": 2}', {"version": 2, "functions": {}}):
        with pytest.raises(ValueError, match="lowered by another version of this package"):
            dx.build(mod.with_attr("distir.signature", old))


@pytest.mark.parametrize(
    "changed",
    [
        1.5,
        {},
        {"version": 9},
        {"meshes": None},
        {"meshes": []},
        {"meshes": [[[2**62, 2], "0..1"]]},
        {"meshes": [[[2], "0..99999999999999"]]},
        {"functions": []},
        {
            "functions": {
                "main": {
                    "params": [],
                    "result": "value",
                    "programs": [{"name": "other", "devices": "0", "params": "", "results": ""}],
                }
            }
        },
        {"functions": {"main": {"params": True, "programs": []}}},
        {"functions": {"main": {"params": [], "result": "(" * 9999 + ")" * 9999, "programs": []}}},
    ],
    ids=repr,
)
def test_a_damaged_signature(changed):
    mod = lowered(["x"])
    written = mod.attrs["distir.signature"]
    if isinstance(changed, dict) and changed.keys() & {"meshes", "functions"}:
        changed = {**dict(written), **changed}
    with pytest.raises(ValueError, match=r"signature"):
        dx.analysis.collectives(mod.with_attr("distir.signature", changed))
