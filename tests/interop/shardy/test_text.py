"""Texts of Shardy's attributes: what they say, what is printed, and where mistakes are."""

from __future__ import annotations

import pickle
import time

import pytest

from distir_ext.interop import shardy

from .golden import GOLDEN, printed_again


@pytest.mark.parametrize(("text", "printed"), GOLDEN)
def test_mlir_prints_the_same(text, printed):
    assert printed_again(text) == printed
    assert printed_again(printed) == printed


def test_what_was_read():
    sharding = shardy.parse(
        '#sdy.sharding<@mesh, [{"x", ?}p2, {"y":(1)2}], replicated={"z"}, unreduced=max{"w"}>'
    )
    assert sharding == shardy.Sharding(
        "mesh",
        (
            shardy.DimSharding((shardy.AxisRef("x"),), open=True, priority=2),
            shardy.DimSharding((shardy.AxisRef("y", 1, 2),)),
        ),
        replicated=(shardy.AxisRef("z"),),
        unreduced=(shardy.AxisRef("w"),),
        reduction="max",
    )
    assert pickle.loads(pickle.dumps(sharding)) == sharding
    assert shardy.parse(str(sharding)) == sharding


def test_meshes():
    assert shardy.parse_mesh('sdy.mesh @m = <["x"=2, "y"=4]>').axes == (("x", 2), ("y", 4))
    assert shardy.parse_mesh('<["x"=2]>').sizes == {"x": 2}
    assert shardy.parse_mesh("<[]>").size == 0
    assert shardy.parse_mesh("<[], device_ids=[5]>").is_maximal


MISTAKES = [
    ("", 0, "'<'"),
    ("#sdy.sharding", 13, "'<'"),
    ("<mash, []>", 1, "'@' and the name of a mesh"),
    ("<@, []>", 2, "the name of a mesh"),
    ("<@mesh []>", 7, "','"),
    ("<@mesh, [>", 9, "'{'"),
    ('<@mesh, [{"x"}, ]>', 16, "'{'"),
    ("<@mesh, [{x}]>", 10, "the name of a mesh axis in quotes"),
    ('<@mesh, [{"x}]>', 15, "a '\"' that ends the string"),
    (r'<@mesh, [{"\q"}]>', 11, "an escape"),
    ('<@mesh, [{"x", }]>', 15, "the name of a mesh axis in quotes"),
    ('<@mesh, [{?, "x"}]>', 11, "'}'"),
    ('<@mesh, [{"x":2}]>', 14, "'('"),
    ('<@mesh, [{"x":(1)}]>', 17, "the size of a sub-axis"),
    ('<@mesh, [{"x"}p-1]>', 15, "a priority"),
    ("<@mesh, [{}], replicated={}>", 26, "the name of a mesh axis in quotes"),
    ('<@mesh, [{}], replicatd={"x"}>', 14, "'replicated' or 'unreduced'"),
    ('<@mesh, [{}], replicated={"x"}, replicated={"y"}>', 32, "'unreduced'"),
    ('<@mesh, [{}], unreduced=avg{"x"}>', 24, "'{', 'max' or 'min'"),
    ("<@mesh, [{}]", 12, "'>'"),
    ("<@mesh, [{}]> x", 14, "nothing more"),
    ('<mesh<["x"=2, "x"=2]>, [{}]>', 5, "two mesh axes are named 'x'"),
    ('<mesh<["x"=0]>, [{}]>', 5, "must be positive"),
    ('<mesh<["x"=2], device_ids=[1, 2]>, [{}]>', 5, "from 0 on"),
    ('<mesh<["x"=2], device_ids=[0]>, [{}]>', 5, "1 device ids"),
    ("<mesh<[], device_ids=[5, 6]>, [{}]>", 5, "2 device ids, but it has no axes"),
    ('<mesh<["x"=99999999999999999999]>, []>', 11, "the size of a mesh axis below"),
]


@pytest.mark.parametrize(("text", "position", "expected"), MISTAKES)
def test_mistakes_say_where_and_what_could_stand_there(text, position, expected):
    with pytest.raises(shardy.FormatError) as raised:
        shardy.parse(text)
    assert raised.value.position == position, str(raised.value)
    assert expected in raised.value.expected
    assert f"column {position + 1}: expected" in str(raised.value)


def test_what_is_no_text():
    with pytest.raises(TypeError, match="a Shardy sharding is a text, not 3 of type int"):
        shardy.parse(3)


def many(text, count, separator=""):
    return separator.join([text] * count)


LONG_TEXTS = [
    lambda n: f"<@mesh, [{many('{}', n, ', ')}]>",
    lambda n: f"<@mesh, [{{{many(chr(34) + 'x' + chr(34), n, ', ')}}}]>",
    lambda n: f'<@mesh, [{{"{many("a", n)}"}}]>',
    lambda n: f'<@mesh, [{{"{many(chr(92) + "22", n)}"}}]>',
    lambda n: f"<mesh<[{','.join(f'{chr(34)}a{i}{chr(34)}=1' for i in range(n))}]>, []>",
    lambda n: f"<{many('/**/', n)}@mesh, []>",
    lambda n: f"<{many('//' + chr(10), n)}@mesh, []>",
]


@pytest.mark.parametrize("make", LONG_TEXTS)
def test_time_is_linear(make):
    def seconds(text):
        begin = time.process_time()
        str(shardy.parse(text))
        return time.process_time() - begin

    few, most = (min(seconds(make(n)) for _ in range(2)) for n in (1_000, 8_000))
    assert most < max(30 * few, 0.3)
