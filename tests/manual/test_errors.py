"""Errors of manual regions, in the user's terms."""

from __future__ import annotations

import re

import pytest
from tests.manual.programs import written
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.annotate.collectives import (
    all_gather,
    all_to_all,
    axis_size,
    pmean,
    ppermute,
    psum,
)

op = relax.op
MESH = dx.Mesh(dp=2, tp=3)


def region(fn, in_dims, out_dims, axes=("tp",), mesh=MESH):
    return dx.manual(fn, mesh, in_dims, out_dims, axes=axes)


def refuses(error, message, fn=lambda x: x, in_dims=(None,), out_dims=None, shape=(6, 12), **how):
    with pytest.raises(error, match=re.escape(message)):
        written(lambda x: region(fn, in_dims, out_dims, **how)(x), x=shape)


def test_an_axis_that_the_mesh_lacks_is_named_with_what_is_near():
    message = "the mesh has no axis 'model'; its axes are 'data', 'model1'; did you mean 'model1'?"
    refuses(ValueError, message, axes=("model",), mesh=dx.Mesh(data=2, model1=3))


@pytest.mark.parametrize(
    ("dims", "error", "message"),
    [
        (("tp",), ValueError, "argument 0 of a manual region has 2 dimensions, but"),
        (("tp", None, None), ValueError, "argument 0 of a manual region has 2 dimensions, but"),
        (("dp", None), ValueError, "dimension 0: axis 'dp' stays automatic in this region"),
        (("td", None), ValueError, "dimension 0: the mesh has no axis 'td'"),
        (
            (dx.Dim("tp", priority=1), None),
            ValueError,
            "the dims of a manual region have axes only",
        ),
        (("tp", "tp"), ValueError, "axis 'tp' already shards this tensor"),
        ((("tp", ...), None), ValueError, "the dims of a manual region have axes only"),
        (3, TypeError, "dims are 3, not a tuple"),
    ],
)
def test_dims_that_do_not_fit_an_argument(dims, error, message):
    refuses(error, message, in_dims=[dims])


def test_dims_that_do_not_fit_a_result():
    refuses(ValueError, "the result of a manual region has 2 dimensions", out_dims=("tp",))
    message = "a manual region returns 2 values, and its out_dims are None"
    refuses(ValueError, message, fn=lambda x: (x, x))


def test_a_dimension_that_does_not_divide():
    message = (
        "argument 0 of a manual region, dimension 0 of size 7: it does not divide into 3 parts, "
        "one for each device along 'tp'"
    )
    refuses(ValueError, message, in_dims=[("tp", None)], shape=(7, 12))


def test_another_number_of_values():
    refuses(TypeError, "takes 2 values, as in_dims has entries, and is given 1", in_dims=[None] * 2)
    refuses(TypeError, "in_dims of a manual region are one entry per argument", in_dims="tp")


def test_values_that_are_none():
    refuses(TypeError, "the result of a manual region is of type int", fn=lambda x: 3)
    with pytest.raises(TypeError, match="argument 0 of a manual region is of type float"):
        region(lambda x: x, [None], None)(1.0)


def test_nested_regions_over_one_axis():
    def nested(x):
        return region(lambda y: y, [None], None)(x)

    message = (
        "a manual region over axis 'tp' stands within one where 'tp' is manual already; the axes "
        "that stay automatic there are 'dp'"
    )
    refuses(ValueError, message, fn=nested)


def test_nested_regions_on_two_meshes():
    def nested(x):
        return region(lambda y: y, [None], None, mesh=dx.Mesh(tp=6))(x)

    refuses(ValueError, "nested regions are on one mesh", fn=nested)


def test_a_region_without_an_axis_left():
    def nested(x):
        return region(lambda y: y, [None], None, axes=None)(x)

    refuses(ValueError, "needs an axis that is not manual yet", fn=nested, axes=None)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: psum(x, "dp"), "psum: axis 'dp' stays automatic in this region; its manual"),
        (lambda x: psum(x, "tq"), "psum: the mesh has no axis 'tq'"),
        (lambda x: psum(x, ("tp", "tp")), "psum: axis 'tp' is named twice"),
        (lambda x: psum(x, ()), "psum needs an axis"),
        (lambda x: all_gather(x, "tp", 2), "all_gather: 2 is no dimension of a tensor of 2"),
        (lambda x: all_to_all(x, "tp", 1, -1), "split_dim and concat_dim are both 1"),
        (lambda x: ppermute(x, "tp", [(0, 3)]), "there is no device 3 along 'tp', which has 3"),
        (lambda x: ppermute(x, "tp", [(0, 1), (2, 1)]), "device 1 along 'tp' receives twice"),
        (lambda x: dx.constrain(x, MESH, ("tp", None)), "axis 'tp' is manual in this region"),
        (lambda x: dx.constrain(x, dx.Mesh(dp=6), ("dp", None)), "a region has one mesh"),
    ],
)
def test_what_a_region_does(fn, message):
    refuses(ValueError, message, fn=fn)


def test_a_part_that_does_not_divide():
    message = "manual_all_to_all: dimension 0 of size 7 does not divide into 3 parts"
    refuses(ValueError, message, fn=lambda x: all_to_all(x, "tp", 0, 1), shape=(7, 3))


def test_a_mean_of_integers():
    refuses(
        TypeError,
        "pmean takes floating-point numbers, not int32",
        fn=lambda x: pmean(relax.op.astype(x, "int32"), "tp"),
    )


def test_collectives_outside():
    with pytest.raises(ValueError, match="psum is outside of a manual region"):
        written(lambda x: psum(x, "tp"), x=(6, 12))
    with pytest.raises(ValueError, match="axis_size is outside"):
        axis_size("tp")


def test_a_value_that_leaves_by_the_back_door():
    kept = []

    def keep(x):
        kept.append(op.exp(x))
        return x

    def of(x):
        return op.add(x, region(keep, [None], None)(x)), kept[0]

    with pytest.raises(ValueError, match=r"`main` returns a value of a manual region over 'tp'"):
        dx.transform.PropagateSharding()(written(of, x=(6, 12)))


def test_a_value_that_is_used_behind_its_region():
    kept = []

    def keep(x):
        kept.append(x)
        return x

    def of(x):
        left = dx.constrain(region(keep, [None], None)(x), MESH, ("dp", None))
        return dx.constrain(op.add(left, kept[0]), MESH, None)

    with pytest.raises(ValueError, match=r"manual region over 'tp'"):
        dx.transform.PropagateSharding()(written(of, x=(6, 12)))


def test_a_collective_of_a_value_that_has_not_entered():
    @I.ir_module
    class Outside:
        I.module_global_infos({"mesh": [R.device_mesh((2, 3), I.Range(0, 6))]})

        @R.function
        def main(x: R.Tensor((6, 12), "float32")) -> R.Tensor((6, 12), "float32"):
            y = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            z = R.dist.manual_all_reduce(y, "mesh[0]", axes=[1], reduction="sum")
            return z

    with pytest.raises(ValueError, match="`z` in `main` is a collective over 'y' of a value that"):
        dx.transform.PropagateSharding()(Outside)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"manual_axes": [2]}, "manual_axes has 2, which is no axis of a mesh of 2 axes"),
        ({"manual_axes": [1, 1]}, "manual_axes has axis 1 twice"),
        ({"manual_axes": [0]}, "cuts dimension 0 along axis 1"),
        ({"placement": "S[0]", "manual_axes": [1]}, "has 1 entry for a mesh of 2 axes"),
        ({"placement": "R, S[2]", "manual_axes": [1]}, "cuts dimension 2 of a tensor of 2"),
        ({"placement": "R, S[1]", "manual_axes": [1]}, "of size 8 does not divide into 3 parts"),
    ],
)
def test_operators_that_do_not_fit(attrs, message):
    enter = R.dist.enter_manual
    x = relax.Var("x", relax.TensorType((6, 8), "float32"))
    call = enter(x, MESH.device_mesh, **{"placement": "R, S[0]", **attrs})
    builder = relax.BlockBuilder()
    with pytest.raises(ValueError, match=re.escape(message)), builder.function("main", [x]):
        builder.emit(call)


def test_stages_are_not_assigned():
    mod = written(lambda x: region(lambda y: y, [None], None)(x), x=(6, 12))
    stages = [dx.Mesh((3,), ("tp",)), dx.Mesh((3,), ("tp",), range(3, 6))]
    with pytest.raises(ValueError, match="belongs to a manual region, which AssignStages cannot"):
        dx.transform.AssignStages(stages)(mod)
