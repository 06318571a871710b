"""Texts of all versions: what they say, what they are printed as, and where mistakes are."""

from __future__ import annotations

import pickle
import time

import pytest

from distir_ext.interop import gspmd

from .golden import GOLDEN


@pytest.mark.parametrize(("text", "printed"), GOLDEN)
def test_xla_prints_the_same(text, printed):
    sharding = gspmd.parse(text)
    leaves = sharding.elements or (sharding,)
    if any(leaf.kind == "named" for leaf in leaves):
        assert sharding == gspmd.parse(printed)
        # XLA prints a list of devices as it was read; this prints an iota, as XLA does for JAX.
        assert str(gspmd.parse(printed)) == printed or "device_ids=(0,2,4,6" in printed
        return
    canonical = sharding.canonical()
    # XLA looks for no iota where none was written.
    assert printed in (str(canonical), str(canonical.to_v1()))


@pytest.mark.parametrize(("text", "_"), GOLDEN)
def test_printed_texts_are_read_as_the_same(text, _):
    sharding = gspmd.parse(text)
    again = gspmd.parse(str(sharding))
    assert again == sharding
    assert again.metadata == sharding.metadata
    assert str(again) == str(sharding)
    assert pickle.loads(pickle.dumps(sharding)) == sharding


def test_what_was_read():
    sharding = gspmd.parse("{devices=[2,1,2,2]<=[4,2]T(1,0) last_tile_dims={manual, replicated}}")
    assert sharding.tile_dims == (2, 1, 2, 2)
    assert sharding.data_dims == (2, 1)
    assert sharding.devices == gspmd.Iota((4, 2), (1, 0))
    assert sharding.device_list == (0, 2, 4, 6, 1, 3, 5, 7)
    assert sharding.subgroups == ("manual", "replicated")
    assert gspmd.parse("{unknown shard_as 3}").shard_group == gspmd.ShardGroup("shard_as", 3)
    assert gspmd.parse("{maximal device=3}").device == 3
    for text in (
        "devices=[4,2]<=[8]",
        "devices=[2,2]0,2,1,3 last_tile_dim_replicate",
        "maximal device=3",
        "mesh['x'=2], [{'x'}]",
    ):
        assert str(gspmd.parse(text)) == f"{{{text}}}"


def test_axes_without_quotes_are_read_as_older_texts_have_them():
    old = gspmd.parse("{mesh[a=2,b=4], [{a}, {b:(2)2, ?}]}")
    assert str(old) == "{mesh['a'=2,'b'=4], [{'a'}, {'b':(2)2, ?}]}"


def test_names_with_quotes():
    text = r"{mesh['it\'s'=2,'b\\'=4], [{'it\'s'}, {'b\\'}]}"
    assert [name for name, _ in gspmd.parse(text).named.mesh.axes] == ["it's", "b\\"]
    assert str(gspmd.parse(text)) == text


def test_reductions_of_unreduced_axes():
    text = "{mesh['a'=2,'b'=4], [{'a'}], unreduced=max{'b'}}"
    assert gspmd.parse(text).named.reduction == "max"
    assert str(gspmd.parse(text)) == text


MISTAKES = [
    ("", 0, "'{'"),
    ("replicated", 0, "'{'"),
    ("{", 1, "what a sharding is"),
    ("{replicated", 11, "'}'"),
    ("{replicated} x", 13, "nothing more"),
    ("{replicatd}", 1, "one of replicated"),
    ("{replicated manual}", 1, "one kind of sharding"),
    ("{replicated replicated}", 12, "'replicated' once"),
    ("{maximal}", 1, "one kind of sharding"),
    ("{maximal device=-3}", 16, "a device id"),
    ("{devices=[2,2]0,1,2}", 1, "have 4 devices, not 3"),
    ("{devices=[2,2]0,1,2,2}", 1, "a device is there twice"),
    ("{devices=[2,]0,1}", 12, "the size of a tile dimension"),
    ("{devices=[2,0]0,1}", 1, "positive sizes"),
    ("{devices=[]0}", 10, "the size of a tile dimension"),
    ("{devices=[2,2]<=[5]}", 1, "have 4 devices, not 5"),
    ("{devices=[2,2]<=[2,2]}", 21, "'T('"),
    ("{devices=[2,2]<=[2,2]T(0,0)}", 16, "no permutation"),
    ("{devices=[2,2]<=[2,2]T(1)}", 16, "no permutation"),
    ("{devices=[4096,4096]<=[16777216]}", 1, "at most 1048576 devices"),
    ("{devices=[2]<=[99999999999999999999]}", 15, "an integer below"),
    ("{devices=[2]<=[2] last_tile_dims={foo}}", 34, "one of maximal, manual"),
    ("{devices=[2]<=[2] last_tile_dims={manual, manual}}", 1, "2 subgroups, but 1 tile dims"),
    ("{replicated last_tile_dim_replicate}", 1, "behind devices="),
    ("{unknown shard_as}", 17, "the number of a group"),
    ('{replicated metadata={op_name="a}}', 30, "a string that ends"),
    ('{replicated metadata={{op_name="a"}', 35, "'}' that ends the metadata"),
    ("{{replicated}, }", 15, "'{'"),
    ("{{{replicated}}}", 2, "what a sharding is"),
    ("{/* replicated}", 1, "a comment that ends"),
    ("{mesh['a'=2]}", 12, "','"),
    ("{mesh['a'=2], [{'b'}]}", 1, "there is no mesh axis 'b'"),
    ("{mesh['a'=2], [{'a'}, {'a'}]}", 1, "overlap"),
    ("{mesh['a'=8], [{'a':(3)2}]}", 1, "no part of mesh axis 'a'"),
    ("{mesh['a'=8], [{'a':(1)8}]}", 1, "no part of mesh axis 'a'"),
    ("{mesh['a'=36], [{'a':(1)4, 'a':(6)2}]}", 1, "cut an axis in ways that do not fit"),
    ("{mesh['a'=2,'a'=2], replicated}", 1, "two mesh axes are named 'a'"),
    ("{mesh['a'=0], replicated}", 1, "must be positive"),
    ("{mesh['a'=2], device_ids=(1,2), replicated}", 1, "numbers the 2 devices of a mesh from 0"),
    ("{mesh['a'=2], device_ids=(0,1,2), replicated}", 1, "its axes {'a': 2} say 2"),
    ("{mesh['a'=2], device_ids=([4]), replicated}", 26, "2 devices, as the mesh has, not 4"),
    ("{mesh['a'=2], [{'a'}], replicatd={}}", 23, "'replicated='"),
    ("{mesh['a'=2], [{'a', ?, 'a'}]}", 22, "'}'"),
    ("{mesh['a'=2], [{'a}]}", 21, "a ' that ends the name"),
    (r"{mesh['a\q'=2], replicated}", 8, "an escape"),
    ("{maximal_mesh[device_id=x]}", 24, "a device id"),
]


@pytest.mark.parametrize(("text", "position", "expected"), MISTAKES)
def test_mistakes_say_where_and_what_could_stand_there(text, position, expected):
    with pytest.raises(gspmd.FormatError) as raised:
        gspmd.parse(text)
    assert raised.value.position == position, str(raised.value)
    assert expected in raised.value.expected
    assert f"column {position + 1}: expected" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_what_is_no_text():
    with pytest.raises(TypeError, match="a GSPMD sharding is a text, not None of type NoneType"):
        gspmd.parse(None)


def many(text, count, separator=""):
    return separator.join([text] * count)


LONG_TEXTS = [
    lambda n: f"{{devices=[{n}]{','.join(map(str, range(n - 1, -1, -1)))}}}",
    lambda n: f"{{devices=[{many('1,', n)}2]<=[2]}}",
    lambda n: f"{{{many('{replicated}', n, ', ')}}}",
    lambda n: f"{{replicated metadata={{{many('{', n)}{many('}', n)}}}}}",
    lambda n: f"{{mesh['a'=2], [{many('{}', n, ', ')}]}}",
    lambda n: f"{{mesh[{','.join(f'{chr(39)}a{i}{chr(39)}=1' for i in range(n))}], replicated}}",
    lambda n: f"{{{many(' ', n)}{many('/**/', n)}replicated}}",
    lambda n: "{" + many("/*", n),
    lambda n: f"{{mesh['{many('a', n)}'=2], [{{'{many('b', n)}'}}]}}",
    lambda n: f"{{devices=[{many('9' * 18, n, ',')}]",
]


@pytest.mark.parametrize("make", LONG_TEXTS)
def test_time_is_linear(make):
    def seconds(text):
        begin = time.process_time()
        try:
            gspmd.parse(text).canonical()
        except ValueError as error:
            str(error)
        return time.process_time() - begin

    few, most = (min(seconds(make(n)) for _ in range(2)) for n in (1_000, 8_000))
    assert most < max(30 * few, 0.3)
