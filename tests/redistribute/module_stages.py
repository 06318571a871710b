"""Runs the passes on a module, and returns the module after each pass."""

import distir_ext as dx
from distir_ext.testing.phases import verify

FOUR, EIGHT = (0, 1, 2, 3), tuple(range(8))


X, Y = (0, 1, 2), (1, 1, 2)


ACROSS = [  # pairs of sides on different device sets
    (((2,), (0, 1), ((X,), ())), ((2,), (2, 3), ((), (X,)))),
    (((2, 2), FOUR, ((X,), (Y,))), ((2,), (2, 3), ((X,), ()))),
    (((2,), (2, 3), ((X,), ())), ((2, 2), FOUR, ((), (Y, X)))),
    (((2, 2), FOUR, ((), ())), ((2,), (1, 2), ((X,), ()))),
    (((1,), (3,), ((), ())), ((2, 2), FOUR, ((X, Y), ()))),
    (((2, 2), FOUR, ((X, Y), ())), ((1,), (0,), ((), ()))),
    (((2, 2), (0, 2, 4, 6), ((X,), (Y,))), ((2, 2), (1, 3, 5, 7), ((Y,), (X,)))),
    (((4,), FOUR, (((0, 1, 4),), ())), ((3,), (1, 5, 6), ((), ()))),
]


def stages(mod):
    """The module after each pass, verified."""
    mod = dx.transform.PropagateSharding()(mod)
    verify(mod, "propagated")
    legal = dx.transform.LegalizeRedistribute()(mod)
    verify(legal, "legalized")
    lowered = dx.transform.LowerDistIR()(legal)
    verify(lowered, "lowered")
    return mod, legal, lowered
