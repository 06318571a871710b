"""Texts and meanings against XLA's own, where JAX is installed.

XLA's parser ends the process for some texts that are wrong, so it is given right ones only.
"""

from __future__ import annotations

import random

import pytest

import distir_ext as dx
from distir_ext.interop import gspmd, shardy

from ..shardings import SHAPES, all_dims
from .golden import GOLDEN

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
xla = pytest.importorskip("jax._src.lib").xla_client.HloSharding


def xla_text(text):
    return str(xla.from_string(text))


@pytest.mark.parametrize(("text", "printed"), GOLDEN)
def test_golden_texts_are_what_xla_prints(text, printed):
    assert xla_text(text) == printed


def named_sharding(mesh, dims):
    """JAX's, on a mesh that knows no devices."""
    abstract = jax.sharding.AbstractMesh(mesh.shape, mesh.axis_names)
    return jax.sharding.NamedSharding(abstract, jax.sharding.PartitionSpec(*dims))


@pytest.mark.parametrize("shape", [*SHAPES, (1, 4), (2, 1, 3)])
def test_jax_prints_the_same_for_a_named_sharding(shape):
    mesh = dx.Mesh(shape, ("dp", "tp", "ep")[: len(shape)])
    for dims in all_dims(mesh.axis_names):
        sharding = gspmd.HloSharding.from_mesh_dims(mesh, dims)
        theirs = named_sharding(mesh, dims)
        assert str(sharding) == str(theirs._to_xla_hlo_sharding(2))
        named = sharding.to_named(mesh, 2)
        assert xla_text(str(named)) == str(named)
        assert str(xla.v3_to_v2_sharding(xla.from_string(str(named)))) == str(sharding)
        # As Shardy writes it, without size-1 axes, which GSPMD does not see.
        own = str(shardy.from_mesh_dims(mesh, dims, name="mesh"))
        assert own == f"#sdy.sharding<@mesh, [{', '.join(sdy_dims(theirs))}]>"


def sdy_dims(sharding):
    for dim in sharding._to_sdy_sharding(2).dim_shardings:
        yield "{" + ", ".join(f'"{axis}"' for axis in dim.axes) + "}"


def some_text(dice):
    """A random tile assignment, of any version, with subgroups."""

    def factors(size):
        found = []
        while size > 1:
            found.append(dice.choice([each for each in range(2, size + 1) if size % each == 0]))
            size //= found[-1]
        for _ in range(dice.randrange(2)):
            found.insert(dice.randrange(len(found) + 1), 1)
        return found or [1]

    size = dice.choice([2, 4, 6, 8, 12, 16, 24])
    tile_dims, reshape_dims = factors(size), factors(size)
    perm = dice.sample(range(len(reshape_dims)), len(reshape_dims))
    order = f"<=[{','.join(map(str, reshape_dims))}]"
    if len(perm) > 1:
        order += f"T({','.join(map(str, perm))})"
    if dice.random() < 0.3:
        order = ",".join(map(str, dice.sample(range(size), size)))
    kinds = dice.choices(["manual", "replicated", "unreduced"], k=dice.randint(1, len(tile_dims)))
    ending = dice.choice(
        ["", " last_tile_dim_replicate", f" last_tile_dims={{{', '.join(kinds)}}}"]
    )
    return f"{{devices=[{','.join(map(str, tile_dims))}]{order}{ending}}}"


def test_canonical_forms_are_xlas(sample):
    dice = random.Random(1)
    for _ in range(sample(500, 2_000, 5_000, 5_000)):
        text = some_text(dice)
        # XLA sometimes needs a second look to see that all is unreduced.
        printed = xla_text(xla_text(text))
        canonical = gspmd.parse(text).canonical()
        assert printed in (str(canonical), str(canonical.to_v1())), text


def test_lists_of_devices_are_xlas(sample):
    dice = random.Random(2)
    for _ in range(sample(200, 1_000, 5_000, 5_000)):
        canonical = gspmd.parse(some_text(dice)).canonical()
        if canonical.kind == "tiled":
            theirs = xla.from_string(str(canonical))
            assert list(canonical.device_list) == list(theirs.tile_assignment_devices())
            assert list(canonical.tile_dims) == list(theirs.tile_assignment_dimensions())
