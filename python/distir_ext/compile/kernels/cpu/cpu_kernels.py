"""Schedules kernels for CPUs: parallel rows, operators fused by row, vectorised sums.

TVM generates one loop nest per operator of a fused kernel, each over the whole tensor and on one
core. Here kernels that only map elements become one nest. The operators of others (softmax, norms)
share the loops over their leading dimensions, so that a row stays in the cache. These loops run on
the threads of TVM's pool. Inner loops are LLVM's to vectorise; it must not reorder sums of floats,
so reductions get explicit lanes. Where a leading dimension is reduced (softmax over axis 0), rows
of the result are no rows of what is read: operators have loops of their own there, and a reduction
adds whole rows up. A kernel that does not fit stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func

from distir_ext.compile.kernels.inlining import inline_blocks

# Partial results that a reduction keeps side by side: at least one vector of any CPU.
LANES = 16

# Fewer partial results of rows that no more divide take longer than adding one by one.
FEWEST_LANES = 5

# Fewer elements take less time than waking threads does.
SMALLEST_PARALLEL = 1 << 14

# A kernel whose tensors all have fewer elements is left as it is.
SMALLEST_KERNEL = 1 << 12

# Elements of a row that a thread computes at least before it takes the next one.
SMALLEST_ROW = 256

# Pieces of a tensor that is reduced to one number at most: some for each thread.
MOST_PIECES = 64

# Columns that a thread adds up at most, where rows are added: their results stay in its cache.
MOST_COLUMNS = 128


def schedule_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with a schedule for every kernel that has none."""
    scheduled = {}
    for name, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        if not _is_scheduled(function) and not _is_small(function):
            schedule = _schedule(function)
            if schedule is not None:
                scheduled[name] = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    for name, function in scheduled.items():
        result.update_func(name, function)
    return result


def _is_scheduled(function: tirx.PrimFunc) -> bool:
    attrs = function.attrs
    return attrs is not None and "tirx.is_scheduled" in attrs and bool(attrs["tirx.is_scheduled"])


def _is_small(function: tirx.PrimFunc) -> bool:
    """Returns whether all tensors of a kernel are too small for a schedule to matter."""
    shapes = [getattr(param.ty, "shape", ()) for param in function.params]
    return all(_count([_static(dim) for dim in shape]) < SMALLEST_KERNEL for shape in shapes)


def _static(dim: Any) -> int | None:
    return int(dim) if isinstance(dim, tirx.IntImm) else None


def _schedule(function: tirx.PrimFunc) -> s_tir.Schedule | None:
    """A schedule of the kernel, or None where there is none."""
    try:
        schedule = s_tir.Schedule(function)
        blocks = normalize_prim_func(schedule)
        if not blocks or any(set(block.dom_kind()) - {"S", "R"} for block in blocks):
            return None
        if all(block.is_injective() for block in blocks):
            for block in inline_blocks(schedule, blocks):
                _schedule_map(schedule, block.block_rv)
        elif (total := _total(schedule, blocks)) is not None:
            for block in inline_blocks(schedule, blocks[:total]) + blocks[total + 1 :]:
                _schedule_map(schedule, block.block_rv)
            _schedule_total(schedule, blocks[total].block_rv)
        elif _share_rows(schedule, blocks):
            rows = min(_leading_spatial(block.dom_kind()) for block in blocks)
            _schedule_rows(schedule, [block.block_rv for block in blocks], rows)
        else:
            for block in blocks:
                _schedule_alone(schedule, block)
    except s_tir.ScheduleError:
        return None
    return schedule


def _total(schedule: s_tir.Schedule, blocks: Sequence[Any]) -> int | None:
    """The place of the only block that reduces, if it makes one number of all elements."""
    places = [i for i, block in enumerate(blocks) if not block.is_injective()]
    if len(places) != 1:
        return None
    block = blocks[places[0]]
    if len(schedule.get(block.block_rv).writes) != 1:
        return None  # such as a maximum and its index
    extents = _extents(schedule, schedule.get_loops(block.block_rv))
    kinds = block.dom_kind()
    is_one = all(extent == 1 for extent, kind in zip(extents, kinds, strict=True) if kind == "S")
    is_long = None not in extents and _count(extents) >= SMALLEST_PARALLEL
    return places[0] if is_one and is_long else None


def _schedule_total(schedule: s_tir.Schedule, block: Any) -> None:
    """One number of all elements: pieces of them in parallel, with partial results in each."""
    loops = schedule.get_loops(block)
    count = int(_count(_extents(schedule, loops)))
    lanes = _largest_divisor(count, LANES)
    pieces = _largest_divisor(count // lanes, MOST_PIECES)
    *_, lane = schedule.split(schedule.fuse(*loops), [pieces, None, lanes])
    by_lane = schedule.rfactor(lane, 0)
    by_piece = schedule.rfactor(schedule.get_loops(by_lane)[0], 0)
    piece, step, lane = schedule.get_loops(by_piece)
    schedule.parallel(piece)
    schedule.vectorize(lane)
    schedule.decompose_reduction(by_piece, step)


def _leading_spatial(kinds: str) -> int:
    return len(kinds) - len(kinds.lstrip("S"))


def _extents(schedule: s_tir.Schedule, loops: Sequence[Any]) -> list[int | None]:
    """Extents of loops, None where symbolic."""
    return [_static(schedule.get(loop).extent) for loop in loops]


def _count(extents: Sequence[int | None]) -> float:
    """Number of iterations; infinity where it is symbolic, so that it counts as large."""
    return math.prod(math.inf if extent is None else extent for extent in extents)


def _schedule_map(schedule: s_tir.Schedule, block: Any) -> None:
    """Outer loops in parallel; inner ones, of a row at least, stay for LLVM."""
    loops = schedule.get_loops(block)
    extents = _extents(schedule, loops)
    if not loops or _count(extents) < SMALLEST_PARALLEL:
        return
    outer = len(loops) - 1
    while outer > 0 and _count(extents[outer:]) < SMALLEST_ROW:
        outer -= 1
    if _count(extents[:outer]) > 1:
        schedule.parallel(schedule.fuse(*loops[:outer]))
        return
    longest = max(range(len(loops)), key=lambda i: _count(extents[i : i + 1]))
    if longest == outer == len(loops) - 1:
        pieces, _ = schedule.split(loops[longest], [None, SMALLEST_PARALLEL // 4])
        schedule.parallel(schedule.fuse(*loops[:longest], pieces))
    else:
        schedule.parallel(schedule.fuse(*loops[: longest + 1]))


def _share_rows(schedule: s_tir.Schedule, blocks: Sequence[Any]) -> bool:
    """Returns whether blocks have equal numbers of rows, and rows depend on one row of inputs."""
    loops = [schedule.get_loops(block.block_rv)[:1] for block in blocks]
    numbers = {str(schedule.get(loop[0]).extent) for loop in loops if loop}
    return (
        len(numbers) == 1
        and all(_leading_spatial(block.dom_kind()) > 0 for block in blocks)
        and not any(_adds_rows(schedule, block.block_rv) for block in blocks)
    )


def _schedule_alone(schedule: s_tir.Schedule, block: Any) -> None:
    """One operator, which shares no loops with others."""
    if block.is_injective():
        _schedule_map(schedule, block.block_rv)
    elif _adds_rows(schedule, block.block_rv):
        _schedule_added_rows(schedule, block.block_rv)
    elif rows := _leading_spatial(block.dom_kind()):
        _schedule_rows(schedule, [block.block_rv], rows)


def _schedule_rows(schedule: s_tir.Schedule, blocks: list[Any], rows: int) -> None:
    """All operators in one loop over the leading dimensions, which all of them have."""
    leading = [_extents(schedule, schedule.get_loops(block)[:rows]) for block in blocks]
    while rows > 1 and any(extents[:rows] != leading[-1][:rows] for extents in leading):
        rows -= 1
    work = max(_count(_extents(schedule, schedule.get_loops(block))) for block in blocks)
    lanes = []
    nested = []
    for block in blocks:
        partial = _split_reduction(schedule, block)
        if partial is not None:
            nested.append(partial)
            lanes.append(partial)
        nested.append(block)
    row = schedule.fuse(*schedule.get_loops(blocks[-1])[:rows])
    for block in reversed(nested[:-1]):
        schedule.compute_at(block, row, preserve_unit_loops=True)
    if work >= SMALLEST_PARALLEL:
        schedule.parallel(row)
    for block in lanes:
        _vectorize_lanes(schedule, block)


def _adds_rows(schedule: s_tir.Schedule, block: Any) -> bool:
    """Returns whether a block reduces, and neighbours in memory belong to different results."""
    found = schedule.get(block)
    spatial = [axis.var for axis in found.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    if len(spatial) == len(found.iter_vars) or len(found.writes) != 1:
        return False
    last = [read.region[-1] for read in found.reads if len(read.region)]
    return bool(last) and all(
        _static(each.extent) == 1 and any(each.min.same_as(var) for var in spatial) for each in last
    )


def _schedule_added_rows(schedule: s_tir.Schedule, block: Any) -> None:
    """Leading dimensions and pieces of columns in parallel; in each, row is added to row."""
    found = schedule.get(block)
    loops = schedule.get_loops(block)
    written = found.writes[0].region[-1].min
    kinds = [axis.iter_type for axis in found.iter_vars]
    at = next((i for i, axis in enumerate(found.iter_vars) if axis.var.same_as(written)), None)
    if at is None:
        return
    outer = [loop for i, loop in enumerate(loops) if i != at and kinds[i] == tirx.IterVar.DataPar]
    reduced = [loop for i, loop in enumerate(loops) if kinds[i] != tirx.IterVar.DataPar]
    columns = loops[at]
    work = _count(_extents(schedule, loops))
    (extent,) = _extents(schedule, [columns])
    piece = _largest_divisor(extent, MOST_COLUMNS) if extent is not None else 1
    if piece >= LANES:
        pieces, columns = schedule.split(columns, [None, piece])
        outer.append(pieces)
    schedule.reorder(*outer, *reduced, columns)
    schedule.decompose_reduction(block, reduced[0])
    if outer and work >= SMALLEST_PARALLEL:
        schedule.parallel(schedule.fuse(*outer))


def _largest_divisor(number: int, most: int) -> int:
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def _split_reduction(schedule: s_tir.Schedule, block: Any) -> Any | None:
    """Makes a reduction over the innermost loops keep partial results; the block of these."""
    found = schedule.get(block)
    kinds = [axis.iter_type for axis in found.iter_vars]
    count = kinds.count(tirx.IterVar.CommReduce)
    if count == 0 or set(kinds[-count:]) != {tirx.IterVar.CommReduce}:
        return None
    if count > 1 and len(found.writes) > 1:
        return None  # such as a maximum and its index
    reduced = schedule.get_loops(block)[-count:]
    extents = _extents(schedule, reduced)
    if None in extents:
        return None
    extent = int(_count(extents))
    lanes = LANES if extent % LANES == 0 else _largest_divisor(extent, 2 * LANES)
    if extent == lanes or lanes < FEWEST_LANES:
        return None
    _, lane = schedule.split(schedule.fuse(*reduced), [None, lanes])
    return schedule.rfactor(lane, len(found.writes[0].region))


def _vectorize_lanes(schedule: s_tir.Schedule, block: Any) -> None:
    """Makes the loop over partial results within a row the innermost, and vectorizes it."""
    axes = schedule.get(block).iter_vars
    lane_variable = schedule.get(block).writes[0].region[-1].min
    loops = schedule.get_loops(block)[-len(axes) :]
    (lane,) = (loops[i] for i, axis in enumerate(axes) if axis.var.same_as(lane_variable))
    (steps,) = (
        loops[i] for i, axis in enumerate(axes) if axis.iter_type == tirx.IterVar.CommReduce
    )
    schedule.reorder(steps, lane)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, steps)
