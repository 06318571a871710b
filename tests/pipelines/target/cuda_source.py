"""Reads the accumulators of sums in generated CUDA source."""

from __future__ import annotations

import re

SMALL = r"(?:half|nv_bfloat16|__nv_fp8\w*)"
PLACE = r"\*\(\w+\*\)\(.*?\)(?=[ ;,)]|$)|(?:\(\((?:volatile )?\w+\*\)\w+\)|\w+)\[.*?\](?=[ ;,).]|$)"


def modules(module):
    yield module
    for imported in module.imports:
        yield from modules(imported)


def source_of(exe):
    """The CUDA source in an executable."""
    [kernels] = [module for module in modules(exe.mod) if module.kind == "cuda"]
    return kernels.inspect_source()


def small_accumulators(source):
    """Places of small floats that a kernel writes after it has read them; fragments of sums."""
    found = []
    for kernel in source.split('extern "C" __global__')[1:]:
        found += re.findall(rf"wmma::accumulator, [\d, ]+, {SMALL}> \w+", kernel)
        declared = rf"\b{SMALL}[248]?\*? (?:__restrict__ )?(\w+)[\[,);]"
        small = set(re.findall(declared, kernel))
        read = set()
        for line in kernel.splitlines():
            statement = re.match(r"\s*(?:[\w ]+ )?(.*?) = (.*);", line)
            if statement:
                target, value = statement.groups()
                read |= _places(value)
                if _places(target) & read and _is_small(target, small):
                    found.append(line.strip())
    return found


def _places(text):
    return {re.sub(r"[() ]|volatile", "", place) for place in re.findall(PLACE, text)}


def _is_small(target, small):
    cast = re.search(r"\((?:volatile )?(\w+)\*\)", target)
    if cast:
        return re.fullmatch(SMALL + "[248]?", cast[1]) is not None
    name = re.match(r"\w+", target)
    return name is not None and name[0] in small
