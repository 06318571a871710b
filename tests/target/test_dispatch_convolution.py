"""DispatchConvolution: convolutions become calls of the runtime."""

import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def test_attributes_become_text():
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor(("n", 28, 28, 8), "float32"),
            w: R.Tensor((3, 3, 4, 16), "float32"),
            v: R.Tensor((16, 8, 2, 2), "float32"),
        ):
            with R.dataflow():
                lv = R.nn.conv2d(
                    x,
                    w,
                    strides=[2, 1],
                    padding=[1, 0, 1, 0],
                    dilation=[1, 2],
                    groups=2,
                    data_layout="NHWC",
                    kernel_layout="HWIO",
                    out_layout="NCHW",
                )
                gv = R.nn.conv2d_transpose(lv, v, strides=[2, 2], output_padding=[1, 0])
                R.output(gv)
            return gv

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor(("n", 28, 28, 8), "float32"),
            w: R.Tensor((3, 3, 4, 16), "float32"),
            v: R.Tensor((16, 8, 2, 2), "float32"),
        ):
            n = T.int64()
            with R.dataflow():
                lv = R.call_dps_packed(
                    "distir.runtime.convolution",
                    (
                        x,
                        w,
                        R.str("NHWC,HWIO->NCHW strides=2,1 padding=1,0,1,0 dilation=1,2 groups=2"),
                    ),
                    out_ty=R.Tensor((n, 16, 14, 24), "float32"),
                )
                gv = R.call_dps_packed(
                    "distir.runtime.convolution",
                    (
                        lv,
                        v,
                        R.str(
                            "NCHW,IOHW->NCHW strides=2,2 padding=0,0,0,0 dilation=1,1 groups=1 "
                            "transposed"
                        ),
                    ),
                    out_ty=R.Tensor((n, 8, 29, 48), "float32"),
                )
                R.output(gv)
            return gv

    found = dx.transform.DispatchConvolution()(Before)
    tvm.ir.assert_structural_equal(found, Expected)
    assert relax.analysis.check_well_formed(found)


def convolution(data, weight, dtype, dims=None, **options):
    """A module of one convolution: shapes and dtype of its operands."""
    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(name, relax.TensorType(shape, dtype))
        for name, shape in (("x", data), ("w", weight))
    )
    operator = getattr(relax.op.nn, f"conv{dims or len(data) - 2}d")
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(operator(x, w, **options)))
    return builder.get()


def test_what_stays():
    """Little work, layouts with blocks, and dtypes that BLAS and the runtime lack."""
    for mod in (
        convolution((1, 2, 8), (2, 2, 3), "float32"),
        convolution((1, 8, 16), (8, 8, 3), "int8"),
        convolution((1, 8, 16), (8, 8, 3), "int32"),
        convolution((1, 8, 16), (8, 8, 3), "int16"),
        convolution(
            (2, 2, 16, 16, 8),
            (2, 16, 3, 3, 8),
            "float32",
            dims=2,
            data_layout="NCHW8c",
            kernel_layout="OIHW8o",
        ),
    ):
        assert dx.transform.DispatchConvolution()(mod).same_as(mod)
