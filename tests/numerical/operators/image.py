"""Pooling, resizing and sampling of images, and operators on boxes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tvm.relax.op import image, nn, vision
from tvm.relax.op.grad import avg_pool2d_backward, max_pool2d_backward

from ..case import Case, Operand

SPATIAL = {1: (6,), 2: (6, 5), 3: (7, 6, 5)}
EVEN = {1: (16,), 2: (8, 12), 3: (4, 8, 4)}


def looked_along(spatial: tuple[int, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Sizes of those spatial dimensions p, q and r whose windows cross shards in this case."""
    width, stride = options["pool_size"], options.get("strides", 1)
    padding, dilation = options.get("padding", 0), options.get("dilation", 1)
    sizes = {}
    for name, size in zip("pqr", spatial, strict=False):
        steps = size + 2 * padding - dilation * (width - 1) - 1
        last = steps // stride
        if (
            options.get("ceil_mode")
            and last * stride < steps
            and (last + 1) * stride < size + padding
        ):
            last += 1
        sizes[name] = min(size, last + 1)
    return {
        "decomposed": "".join(sizes),
        "moves": True,
        "sizes": sizes,
        "communicates": frozenset({"segment_exchange"}),
    }


def pooling() -> Iterator[Case]:
    for rank, spatial in SPATIAL.items():
        for name in ("max_pool", "avg_pool"):
            function = getattr(nn, f"{name}{rank}d")
            more = {"count_include_pad": True} if name == "avg_pool" else {"dilation": 2}
            for shape, options in (
                (spatial, {"pool_size": 2, "strides": 2}),
                (spatial, {"pool_size": 3, "padding": 1}),
                (spatial, {"pool_size": 3, "padding": 1, "strides": 2, "ceil_mode": True}),
                (EVEN[rank], {"pool_size": 3, "padding": 1}),
                (EVEN[rank], {"pool_size": 3, "padding": 1, "strides": 2}),
                (EVEN[rank], {"pool_size": 2, "padding": 1, "strides": 3, "ceil_mode": True}),
                (EVEN[rank], {"pool_size": 3, "padding": 1, **more}),
                (
                    EVEN[rank],
                    {"pool_size": 3, "padding": 1, "strides": 2, "ceil_mode": True, **more},
                ),
            ):
                looked = looked_along(shape, options)
                letters = looked["decomposed"]
                yield Case(
                    f"relax.nn.{name}{rank}d",
                    f"{options} ",
                    (Operand((4, 8, *shape), f"nc{letters}"),),
                    (f"nc{letters}",),
                    lambda x, f=function, options=options: f(x, **options),
                    **looked,
                )
            blocks = "pqr"[:rank]
            split = "".join(f"({p}{t})" for p, t in zip("pqr", "xyz"[:rank], strict=False))
            yield Case(
                f"relax.nn.{name}{rank}d",
                "in blocks ",
                (Operand((4, 8, *EVEN[rank]), f"nc{split}"),),
                (f"nc{blocks}",),
                lambda x, f=function: f(x, 2, 2),
                sizes=dict.fromkeys("xyz"[:rank], 2)
                | {p: size // 2 for p, size in zip("pqr", EVEN[rank], strict=False)},
            )
        last = "DHW"[3 - rank :]
        looked = looked_along(spatial, {"pool_size": 3, "padding": 1})
        letters = looked["decomposed"]
        yield Case(
            f"relax.nn.avg_pool{rank}d",
            "channels last, with padding counted ",
            (Operand((4, *spatial, 8), f"n{letters}c"),),
            (f"n{letters}c",),
            lambda x, rank=rank, layout=f"N{last}C": getattr(nn, f"avg_pool{rank}d")(
                x, 3, padding=1, count_include_pad=True, layout=layout
            ),
            **looked,
        )
        for shape, size in ((spatial, 1), (spatial, 3), (EVEN[rank], 2)):
            # Windows p, q, r of the pixels x, y, z; "." where the result's size does not divide.
            data, result, sizes = "nc", "nc", {}
            for name, pixel, pixels in zip("pqr", "xyz", shape, strict=False):
                divides = pixels % size == 0
                windows = (name if size > 1 else "") + (pixel if pixels > size else "")
                data += f"({windows})" if divides else "."
                result += name if divides and size > 1 else "."
                sizes |= {name: size, pixel: pixels // size}
            yield Case(
                f"relax.nn.adaptive_avg_pool{rank}d",
                f"{size} ",
                (Operand((4, 8, *shape), data),),
                (result,),
                lambda x, rank=rank, size=size: getattr(nn, f"adaptive_avg_pool{rank}d")(
                    x, size if rank == 1 else (size,) * rank
                ),
                combined="xyz",
                sizes=sizes,
            )
    yield Case(
        "relax.nn.max_pool2d",
        "blocked channels ",
        (Operand((4, 2, 6, 6, 4), "ncpqb"),),
        ("ncpqb",),
        lambda x: nn.max_pool2d(x, 2, layout="NCHW4c"),
        exact=True,
        **looked_along((6, 6), {"pool_size": 2}),
    )
    yield Case(
        "relax.nn.max_pool2d",
        "int32 ",
        (Operand((4, 8, 6, 6), "ncpq", "int32"),),
        ("ncpq",),
        lambda x: nn.max_pool2d(x, 2, 2),
        exact=True,
        **looked_along((6, 6), {"pool_size": 2, "strides": 2}),
        numpy=lambda x: x.reshape(4, 8, 3, 2, 3, 2).max((3, 5)),
    )
    yield Case(
        "relax.nn.adaptive_avg_pool1d",
        "int32 ",
        (Operand((4, 8, 16), "nc(px)", "int32"),),
        ("ncp",),
        lambda x: nn.adaptive_avg_pool1d(x, 4),
        sizes={"p": 4, "x": 4},
    )
    for function in (avg_pool2d_backward, max_pool2d_backward):
        yield Case(
            f"relax.grad.{function.__name__}",
            "",
            (Operand((2, 8, 4, 4), "ncpq"), Operand((2, 8, 12, 12), "nc(px)(qy)")),
            ("nc(px)(qy)",),
            lambda dy, x, f=function: f(dy, x, (3, 3), (3, 3)),
            sizes={"x": 3, "y": 3},
        )
        yield Case(
            f"relax.grad.{function.__name__}",
            "overlapping ",
            (Operand((4, 8, 6, 4), "nc.."), Operand((4, 8, 6, 4), "nc..")),
            ("nc..",),
            lambda dy, x, f=function: f(dy, x, (3, 3), (1, 1), (1, 1, 1, 1)),
        )


def resizing() -> Iterator[Case]:
    looked: dict[str, Any] = {
        "decomposed": "pqr",
        "moves": True,
        "communicates": frozenset({"segment_exchange"}),
        "expensive": True,
    }
    for method, places, rounding, size, letters, result in (
        # To twice and half as many pixels nearest neighbours are those of blocks.
        ("nearest_neighbor", "half_pixel", "round", (16, 6), "nc(px)(qy)", "nc(pw)(qz)"),
        ("nearest_neighbor", "asymmetric", "floor", (16, 24), "nc(px)(qy)", "nc(pw)(qz)"),
        ("nearest_neighbor", "half_pixel", "", (4, 24), "nc(px).", "nc(pw)."),
        ("nearest_neighbor", "align_corners", "floor", (16, 24), "nc..", "nc.."),
        ("linear", "half_pixel", "", (16, 6), "ncpq", "ncpq"),
        ("linear", "asymmetric", "", (12, 9), "ncpq", "ncpq"),
        ("linear", "align_corners", "", (16, 24), "nc..", "nc.."),
        ("cubic", "half_pixel", "", (4, 24), "ncpq", "ncpq"),
        ("cubic", "pytorch_half_pixel", "", (24, 18), "ncpq", "ncpq"),
    ):
        sizes = {}
        for group, name, pixel, pixels, resized in zip(
            "pq", "xy", "wz", (8, 12), size, strict=True
        ):
            groups = math.gcd(pixels, resized)
            sizes |= {group: groups, name: pixels // groups, pixel: resized // groups}
        yield Case(
            "relax.image.resize2d",
            f"{method} {places} {size} ",
            (Operand((2, 4, 8, 12), letters),),
            (result,),
            lambda x, m=method, p=places, r=rounding, size=size: image.resize2d(
                x, size, method=m, coordinate_transformation_mode=p, rounding_method=r
            ),
            sizes=sizes,
            **(looked if method != "nearest_neighbor" and places != "align_corners" else {}),
        )
    for method in ("nearest_neighbor", "linear"):
        # Of 2 to 3 pixels some lie halfway, and their number decides which is nearest.
        letters = "nc.p" if method == "linear" else "nc.."
        yield Case(
            "relax.image.resize2d",
            f"{method} coprime ",
            (Operand((4, 8, 5, 6), letters),),
            (letters,),
            lambda x, method=method: image.resize2d(x, (8, 9), method=method),
            sizes={"p": 3},
            **looked,
        )
    yield Case(
        "relax.image.resize2d",
        "NHWC ",
        (Operand((4, 5, 6, 8), "n.pc"),),
        ("n.pc",),
        lambda x: image.resize2d(x, (3, 9), layout="NHWC"),
        sizes={"p": 3},
        **looked,
    )
    for method, letters, result in (
        ("nearest_neighbor", "nc(px)(qy).", "nc(pw)(qz)."),
        ("linear", "ncpq.", "ncpq."),
    ):
        yield Case(
            "relax.image.resize3d",
            f"{method} ",
            (Operand((2, 4, 6, 4, 3), letters),),
            (result,),
            lambda x, method=method: image.resize3d(
                x, (2, 12, 4), method=method, rounding_method="round"
            ),
            sizes={"p": 2, "q": 4, "x": 3, "y": 1, "w": 1, "z": 3},
            **(looked if method == "linear" else {}),
        )
    for method, padding in (("bilinear", "zeros"), ("nearest", "border")):
        yield Case(
            "relax.image.grid_sample",
            f"{method} {padding} ",
            (Operand((2, 4, 5, 6), "nc.."), Operand((2, 2, 4, 8), "n.hw", values="unit")),
            ("nchw",),
            lambda x, grid, m=method, p=padding: image.grid_sample(x, grid, m, padding_mode=p),
        )
    yield Case(
        "relax.image.grid_sample",
        "NCDHW ",
        (Operand((2, 4, 3, 4, 5), "nc..."), Operand((2, 3, 2, 4, 6), "n.dhw", values="unit")),
        ("ncdhw",),
        lambda x, grid: image.grid_sample(x, grid, layout="NCDHW"),
    )
    yield Case(
        "relax.image.affine_grid",
        "",
        (Operand((12, 2, 3), "n.."),),
        ("n...",),
        lambda x: image.affine_grid(x, (4, 6)),
    )
    for shape, letters, result in (
        ((4, 16, 3, 4), "n(cxy)hw", "nc(hx)(wy)"),
        ((8, 4, 6), "(cxy)hw", "c(hx)(wy)"),
    ):
        yield Case(
            "relax.nn.pixel_shuffle",
            "",
            (Operand(shape, letters),),
            (result,),
            lambda x: nn.pixel_shuffle(x, 2),
            sizes={"c": shape[-3] // 4, "x": 2, "y": 2},
            exact=True,
        )


def regions(count: int) -> Operand:
    return Operand((count, 5), "r.", values="regions")


def boxes() -> Iterator[Case]:
    options: dict[str, Any] = {"pooled_size": (2, 3), "spatial_scale": 1.0}
    for mode in ("avg", "max"):
        yield Case(
            "relax.vision.roi_align",
            f"{mode} ",
            (Operand((2, 4, 6, 6), ".c.."), regions(8)),
            ("rc..",),
            lambda x, r, mode=mode: vision.roi_align(x, r, **options, sample_ratio=2, mode=mode),
        )
    yield Case(
        "relax.vision.roi_align",
        "NHWC ",
        (Operand((2, 6, 6, 4), "...c"), regions(8)),
        ("r..c",),
        lambda x, r: vision.roi_align(x, r, **options, sample_ratio=2, layout="NHWC"),
    )
    yield Case(
        "relax.vision.roi_pool",
        "",
        (Operand((2, 4, 6, 6), ".c.."), regions(8)),
        ("rc..",),
        lambda x, r: vision.roi_pool(x, r, **options),
    )
    yield Case(
        "relax.vision.get_valid_counts",
        "",
        (Operand((4, 6, 6), "n.."),),
        ("n", "n..", "n."),
        lambda x: vision.get_valid_counts(x, 0.2, -1, 0),
    )
    yield Case(
        "relax.vision.multibox_transform_loc",
        "",
        (
            Operand((4, 3, 5), "n..", values="positive"),
            Operand((4, 20), "n."),
            Operand((1, 5, 4), "...", values="positive"),
        ),
        ("n..", "n.."),
        lambda c, loc, anchor: vision.multibox_transform_loc(c, loc, anchor),
    )
    for indices in (False, True):
        yield Case(
            "relax.vision.non_max_suppression",
            f"indices={indices} ",
            (
                Operand((4, 6, 6), "n..", values="positive"),
                Operand((4,), "n", "int32", "index 6"),
                Operand((4, 6), "n.", "int32", "index 6"),
            ),
            ("n.", "n.") if indices else ("n..",),
            lambda x, n, i, indices=indices: vision.non_max_suppression(
                x, n, i, return_indices=indices
            ),
        )


def cases() -> Iterator[Case]:
    yield from pooling()
    yield from resizing()
    yield from boxes()
