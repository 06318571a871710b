"""Programs with caches of keys and values."""

from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Cached:
    @R.function(pure=False)
    def main(x: R.Tensor((3, 4, 6), "float32"), y: R.Tensor((5, 4, 6), "float32")):
        z: R.Tensor((8, 4, 6), "float32") = R.zeros(R.shape([8, 4, 6]), dtype="float32")
        cache: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_create",
            z,
            R.shape([8, 4, 6]),
            R.prim_value(0),
            ty_args=(R.Any,),
        )
        with_x: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", cache, x, ty_args=(R.Any,)
        )
        with_y: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", with_x, y, ty_args=(R.Any,)
        )
        view: R.Tensor((8, 4, 6), "float32") = R.call_packed(
            "vm.builtin.attention_kv_cache_view",
            with_y,
            R.shape([8, 4, 6]),
            ty_args=(R.Tensor((8, 4, 6), "float32"),),
        )
        w = R.multiply(view, view)
        return w
