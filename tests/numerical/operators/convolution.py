"""Convolutions and transposed convolutions of one to three dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm.relax.op import nn

from ..case import Case, Operand

# Per rank: data and kernel in the layouts by default, letters, and further arguments. Letters: n
# batch, g groups, c input channels and o output channels of a group.
CONVOLUTIONS: list[tuple[Any, tuple[int, ...], str, tuple[int, ...], str, dict[str, Any]]] = [
    (nn.conv1d, (4, 8, 7), "nc.", (6, 8, 3), "oc.", {"padding": 1}),
    (nn.conv1d, (4, 8, 9), "n(gc).", (8, 4, 3), "(go)c.", {"groups": 2, "strides": 2}),
    (nn.conv1d, (4, 8, 7), "n(gc).", (8, 1, 3), "(go)c.", {"groups": 8}),
    (nn.conv2d, (4, 8, 5, 6), "nc..", (6, 8, 3, 3), "oc..", {"padding": 1}),
    (nn.conv2d, (2, 8, 7, 7), "nc..", (4, 8, 3, 3), "oc..", {"strides": 2, "dilation": 2}),
    (nn.conv2d, (2, 8, 5, 5), "n(gc)..", (16, 2, 3, 3), "(go)c..", {"groups": 4}),
    (nn.conv2d, (2, 12, 5, 5), "n(gc)..", (6, 4, 1, 1), "(go)c..", {"groups": 3}),
    (nn.conv2d, (2, 8, 5, 5), "n(gc)..", (16, 1, 3, 3), "(go)c..", {"groups": 8, "padding": 1}),
    (nn.conv3d, (2, 4, 3, 4, 5), "nc...", (8, 4, 3, 3, 3), "oc...", {"padding": 1}),
    (nn.conv3d, (2, 8, 3, 4, 5), "n(gc)...", (8, 4, 2, 2, 2), "(go)c...", {"groups": 2}),
    (nn.conv1d, (2, 4, 16), "nc.", (4, 4, 5), "oc.", {"padding": 2}),
    (nn.conv1d, (2, 4, 24), "nc.", (4, 4, 7), "oc.", {"strides": 2, "padding": 3}),
    (nn.conv2d, (2, 4, 8, 8), "nc..", (4, 4, 3, 5), "oc..", {"padding": (1, 2)}),
    (nn.conv2d, (2, 4, 8, 8), "nc..", (4, 4, 3, 3), "oc..", {"padding": 2, "dilation": 2}),
    (
        nn.conv2d,
        (2, 4, 12, 8),
        "n(gc)..",
        (4, 2, 4, 4),
        "(go)c..",
        {"groups": 2, "padding": (0, 2, 3, 1)},
    ),
    (nn.conv2d, (2, 4, 8, 16), "nc..", (4, 4, 2, 2), "oc..", {"strides": 3, "padding": (1, 1)}),
    (nn.conv3d, (1, 2, 4, 8, 4), "nc...", (2, 2, 3, 3, 3), "oc...", {"padding": 1}),
]

TRANSPOSED: list[tuple[Any, tuple[int, ...], str, tuple[int, ...], str, dict[str, Any]]] = [
    (nn.conv1d_transpose, (4, 8, 5), "nc.", (8, 6, 3), "co.", {"strides": 2}),
    (nn.conv1d_transpose, (4, 8, 5), "n(gc).", (8, 2, 3), "(gc)o.", {"groups": 4}),
    (nn.conv2d_transpose, (4, 8, 3, 4), "nc..", (8, 6, 3, 3), "co..", {"padding": 1}),
    (
        nn.conv2d_transpose,
        (2, 8, 3, 4),
        "n(gc)..",
        (8, 3, 3, 3),
        "(gc)o..",
        {"groups": 2, "strides": 2, "output_padding": 1},
    ),
    (nn.conv3d_transpose, (2, 4, 3, 3, 2), "nc...", (4, 8, 2, 2, 2), "co...", {"strides": 2}),
    (nn.conv3d_transpose, (2, 8, 2, 3, 2), "n(gc)...", (8, 2, 2, 2, 2), "(gc)o...", {"groups": 4}),
    (nn.conv1d_transpose, (2, 4, 8), "nc.", (4, 4, 4), "co.", {"strides": 2, "padding": 1}),
    (nn.conv2d_transpose, (2, 4, 8, 4), "nc..", (4, 4, 2, 2), "co..", {"strides": 2}),
    (
        nn.conv2d_transpose,
        (2, 4, 8, 4),
        "nc..",
        (4, 4, 3, 5),
        "co..",
        {"strides": 2, "padding": (1, 2), "output_padding": 1},
    ),
]


def sizes_of(
    data: tuple[int, ...], kernel: tuple[int, ...], groups: int, transposed: bool
) -> dict[str, int]:
    grouped, single = kernel[:2]
    inputs, outputs = (grouped // groups, single) if transposed else (single, grouped // groups)
    return {"n": data[0], "g": groups, "c": inputs, "o": outputs}


def spatial(data, kernel, options, transposed) -> dict[str, int]:
    """The most shards of the spatial dimensions, p, q and r."""
    rank = len(data) - 2
    listed = {
        key: (value,) * rank if isinstance(value, int) else value
        for key, value in (
            {"strides": 1, "dilation": 1, "padding": 0, "output_padding": 0} | options
        ).items()
        if key != "groups"
    }
    sizes = {}
    for i, (name, size, width) in enumerate(zip("pqr", data[2:], kernel[2:], strict=False)):
        stride, extra = listed["strides"][i], listed["output_padding"][i]
        padding = listed["padding"]
        around = padding[i] + padding[i + rank if len(padding) > rank else i]
        if transposed:
            result = (size - 1) * stride + width - around + extra
        else:
            result = (size + around - listed["dilation"][i] * (width - 1) - 1) // stride + 1
        sizes[name] = min(size, result)
    return sizes


def convolutions() -> Iterator[Case]:
    for function, data, data_letters, kernel, kernel_letters, options in CONVOLUTIONS + TRANSPOSED:
        groups = options.get("groups", 1)
        transposed = function.__name__.endswith("transpose")
        places = spatial(data, kernel, options, transposed)
        is_block = set(kernel[2:]) == {1}  # no window looks into another shard
        named = "".join(places)
        data_letters = data_letters.replace("." * (len(data) - 2), named)
        for dtype, out_dtype in (("float32", None), ("int8", "int32")):
            if dtype == "int8" and (transposed or function is nn.conv3d):
                continue
            channels = "(go)" if groups > 1 else "o"
            yield Case(
                f"relax.nn.{function.__name__}",
                f"{options} ",
                (
                    Operand(data, data_letters, dtype),
                    Operand(kernel, kernel_letters, dtype),
                ),
                (f"n{channels}{named}",),
                lambda x, w, f=function, options=options, out=out_dtype: f(
                    x, w, **options, out_dtype=out
                ),
                combined="c",
                decomposed="" if is_block else named,
                moves=True,
                communicates=frozenset({"segment_exchange"}),
                sizes=sizes_of(data, kernel, groups, transposed) | places,
                exact=dtype == "int8",
            )


def layouts() -> Iterator[Case]:
    for kernel_layout, kernel, letters in (
        ("HWIO", (3, 3, 8, 6), "..co"),
        ("OHWI", (6, 3, 3, 8), "o..c"),
    ):
        yield Case(
            "relax.nn.conv2d",
            f"NHWC {kernel_layout} ",
            (Operand((4, 5, 6, 8), "npqc"), Operand(kernel, letters)),
            ("npqo",),
            lambda x, w, layout=kernel_layout: nn.conv2d(
                x, w, padding=1, data_layout="NHWC", kernel_layout=layout
            ),
            combined="c",
            decomposed="pq",
            moves=True,
            communicates=frozenset({"segment_exchange"}),
        )
    yield Case(
        "relax.nn.conv1d",
        "NWC ",
        (Operand((4, 8, 8), "npc"), Operand((3, 8, 4), ".co")),
        ("npo",),
        lambda x, w: nn.conv1d(x, w, data_layout="NWC", kernel_layout="WIO"),
        combined="c",
        decomposed="p",
        moves=True,
        communicates=frozenset({"segment_exchange"}),
        sizes={"p": 6},
    )


def cases() -> Iterator[Case]:
    yield from convolutions()
    yield from layouts()
