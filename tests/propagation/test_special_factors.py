"""Choices between sharding a dimension, with communication inside the operator (halos, slices), and
redistributing an operand.

Placements are written as in test_rules_of_choice.
"""

from tvm import relax

from .programs import Program


def conv(kernel, stride=1):
    def write(x, w):
        return relax.op.nn.conv1d(x, w, strides=stride, padding=kernel // 2)

    return write


def strided(program, channels, width, kernel):
    """The data is sharded along its width, the smaller result is wanted by samples."""
    x = program.param("x", 8, channels, width)
    w = program.param("w", channels // 4, channels, kernel)
    y = program.emit("y", (conv(kernel), program.place("x0", x, "-|-|a"), w))
    return program.shardings(program.place("z", program.emit("e", (relax.op.exp, y)), "a|-|-"))


def test_a_small_halo_is_cheaper_than_moving_the_data():
    # The result has a quarter of the data's bytes and moves in its place.
    assert strided(Program(4), 64, 1 << 20, kernel=3)["y"] == "-|-|a"


def test_a_kernel_wider_than_shards_moves_the_data():
    # Shards of 32 elements, windows of 129: every device would get nearly all of the data.
    assert strided(Program(4), 4096, 128, kernel=129)["y"] == "a|-|-"


def test_joining_tensors_of_different_shardings_moves_one_of_them():
    # Along the joined dimension the smaller tensor would move, and then half of everything.
    p = Program(4)
    x, y = p.param("x", 1024, 1024), p.param("y", 1024, 512)
    joined = (
        lambda a, b: relax.op.concat([a, b], axis=1),
        p.place("x0", x, "-|a"),
        p.place("y0", y, "a|-"),
    )
    assert p.shardings(p.emit("z", joined))["z"] == "a|-"


def moved(write):
    """The operand is sharded along columns, the result wanted by rows."""
    p = Program(4)
    x = p.param("x", 4096, 4096)
    y = p.emit("y", (write, p.place("x0", x, "-|a")))
    return p.shardings(p.place("z", p.emit("e", (relax.op.exp, y)), "a|-"))["y"]


def test_a_slice_that_cuts_off_little_stays_where_it_is():
    # The result is half of the operand: every other column, shards move next to nothing.
    assert moved(lambda x: relax.op.strided_slice(x, [1], [0], [4096], [2])) == "-|a"


def test_a_slice_from_afar_moves_the_operand():
    # All of the result is in the last half of the operand, so that it would move twice.
    assert moved(lambda x: relax.op.strided_slice(x, [1], [1024], [4096])) == "a|-"
