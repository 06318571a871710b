// Maps dtypes and reductions to those of NCCL.
#include "runtime/communicators/nccl/data_type.h"

#include <tvm/ffi/error.h>

#include "runtime/communicators/nccl/abi.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

struct Row {
  int code;
  int bits;
  int nccl;
};

constexpr Row kRows[] = {
    {kDLFloat, 16, kNcclFloat16},
    {kDLFloat, 32, kNcclFloat32},
    {kDLFloat, 64, kNcclFloat64},
    {kDLBfloat, 16, kNcclBfloat16},
    {kDLInt, 8, kNcclInt8},
    {kDLInt, 32, kNcclInt32},
    {kDLInt, 64, kNcclInt64},
    {kDLUInt, 8, kNcclUint8},
    {kDLUInt, 32, kNcclUint32},
    {kDLUInt, 64, kNcclUint64},
    {kDLBool, 8, kNcclUint8},
    {kDLFloat8_e4m3fn, 8, kNcclFloat8e4m3},
    {kDLFloat8_e5m2, 8, kNcclFloat8e5m2},
};

bool IsFloat(int nccl_dtype) { return nccl_dtype >= kNcclFloat16 && nccl_dtype <= kNcclFloat8e5m2; }

int FindOperation(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return kNcclSum;
    case ReduceKind::kMax:
      return kNcclMax;
    case ReduceKind::kMin:
      return kNcclMin;
    case ReduceKind::kProd:
      return kNcclProd;
    case ReduceKind::kMean:
      return kNcclAvg;
  }
  return kNcclSum;
}

}  // namespace

Reduction FindReduction(DLDataType dtype, ReduceKind kind) {
  for (const Row& row : kRows) {
    if (dtype.code != row.code || dtype.bits != row.bits || dtype.lanes != 1) continue;
    const bool is_bool = row.code == kDLBool;
    DISTIR_REQUIRE(kind != ReduceKind::kMean || IsFloat(row.nccl), TypeError)
        << "the mean of " << tvm::ffi::DLDataTypeToString(dtype) << " is not defined";
    if (is_bool && kind == ReduceKind::kSum) return {row.nccl, kNcclMax};
    if (is_bool && kind == ReduceKind::kProd) return {row.nccl, kNcclMin};
    return {row.nccl, FindOperation(kind)};
  }
  TVM_FFI_THROW(TypeError) << "NCCL cannot reduce tensors of dtype "
                           << tvm::ffi::DLDataTypeToString(dtype)
                           << "; cast to one that it has, such as int32 or float32";
  TVM_FFI_UNREACHABLE();
}

}  // namespace distir::runtime::nccl
