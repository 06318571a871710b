"""ShareOperands: operands of large collectives lie in memory that other workers can read."""

from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def place(mod):
    found = dx.transform.ShareOperands()(mod)
    assert relax.analysis.check_well_formed(found)
    return found


def test_operands_and_what_an_all_reduce_writes_to():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor((128, 512), "float32")):
            a = R.builtin.alloc_tensor(R.shape([128, 512]), "float32", 0)
            _ = R.call_packed("kernel", x, a, ty_args=(R.Any,))
            b = a
            c = R.reshape(b, R.shape([512, 128]))
            d = R.builtin.alloc_tensor(R.shape([256, 128]), "float32", 0)
            _1 = R.call_packed(
                "distir.runtime.reduce_scatter",
                c,
                R.str("[[0,1]]"),
                R.prim_value(0),
                R.str("sum"),
                d,
                ty_args=(R.Any,),
            )
            e = R.builtin.alloc_tensor(R.shape([256, 128]), "float32", 0)
            _2 = R.call_packed(
                "distir.runtime.all_reduce",
                d,
                R.str("[[0,1]]"),
                R.str("sum"),
                e,
                ty_args=(R.Any,),
            )
            f = R.builtin.alloc_tensor(R.shape([128, 512]), "float32", 0)
            _3 = R.call_packed("kernel", e, f, ty_args=(R.Any,))
            return f

    text = place(Before).script()
    made = [line.split(":")[0].strip() for line in text.splitlines() if "new_tensor" in line]
    kept = [line.split(":")[0].strip() for line in text.splitlines() if "alloc_tensor" in line]
    assert (made, kept) == (["a", "d", "e"], ["f"])
    assert (
        'R.call_packed("distir.runtime.new_tensor", R.shape([128, 512]), R.dtype("float32")' in text
    )


def test_small_operands_stay():
    @I.ir_module
    class Before:
        @R.function(pure=False)
        def main(x: R.Tensor((4, 8), "float32")):
            a = R.builtin.alloc_tensor(R.shape([4, 8]), "float32", 0)
            _ = R.call_packed("kernel", x, a, ty_args=(R.Any,))
            b = R.call_packed(
                "distir.runtime.shared_all_reduce",
                a,
                R.str("[[0,1]]"),
                R.str("sum"),
                ty_args=(R.Tensor((4, 8), "float32"),),
            )
            return b

    assert place(Before).same_as(Before)
