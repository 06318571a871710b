"""Lowers a kernel through the passes, for tests of its rule."""

import tvm

import distir_ext as dx

LOWERING = tvm.transform.Sequential(
    [
        dx.transform.PropagateSharding(),
        dx.transform.LegalizeRedistribute(),
        dx.transform.LowerDistIR(),
    ]
)


def collectives(mod):
    return [
        word.split("(")[0] for word in mod["main"].script().split() if word.startswith("R.ccl.")
    ]
