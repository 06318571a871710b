/*!
 * \file runtime/builtins.cc
 * \brief Entry points of compiled programs: distir.runtime.<collective>, destination passing, and
 * distir.runtime.shared_<collective>, which returns memory that the group's workers may share.
 *
 * Checks arguments, resolves descriptors for this worker and hands over to its communicator. All
 * checks come before the communicator is called: a worker that fails here fails alone and ends
 * the step for all, a worker that fails half way would leave its peers with half a result.
 */
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "abi/collective.h"
#include "runtime/kernels/add_rms_norm.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/session/job.h"
#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

// Checks the tensors of one call; messages begin with the operation and the worker's device.
class Checker {
 public:
  Checker(abi::Collective collective, const WorkerContext& worker)
      : operation_(abi::NameOf(collective)),
        device_id_(worker.device_id()),
        memory_(worker.memory()) {}

  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    std::ostringstream text;
    text << operation_ << " on device " << device_id_ << ": ";
    (text << ... << parts);
    TVM_FFI_THROW(ValueError) << text.str();
    TVM_FFI_UNREACHABLE();
  }

  void RowMajor(const char* name, const TensorView& tensor) const {
    if (!tensor.IsContiguous())
      Fail(name, " of shape ", FormatList(tensor.shape()), " is not contiguous");
  }

  void InHostMemory() const {
    if (memory_.device_type != kDLCPU) Fail("it needs tensors in host memory");
  }

  // Row-major, and where the worker's tensors lie.
  void Local(const char* name, const TensorView& tensor) const {
    const DLDevice device = tensor.device();
    if (device.device_type != memory_.device_type || device.device_id != memory_.device_id) {
      Fail(name, " lies on ", DeviceName(device), ", the tensors of this worker on ",
           DeviceName(memory_));
    }
    RowMajor(name, tensor);
  }

  int Dim(const char* name, int64_t dim, const TensorView& x) const {
    if (dim < 0 || dim >= x.ndim()) {
      Fail(name, " ", dim, " is not a dimension of x of shape ", FormatList(x.shape()));
    }
    return static_cast<int>(dim);
  }

  int64_t Divide(const TensorView& x, int dim, int parts) const {
    if (x.size(dim) % parts != 0) {
      Fail("dimension ", dim, " of x of shape ", FormatList(x.shape()), " does not divide into ",
           parts, " parts");
    }
    return x.size(dim) / parts;
  }

  void Output(const TensorView& x, const TensorView& out,
              const std::vector<int64_t>& expected) const {
    Local("x", x);
    Local("out", out);
    if (x.dtype() != out.dtype()) {
      Fail("x is ", ffi::DLDataTypeToString(x.dtype()), ", out is ",
           ffi::DLDataTypeToString(out.dtype()));
    }
    if (ShapeOf(out) != expected) {
      Fail("out has shape ", FormatList(out.shape()), ", the result of x of shape ",
           FormatList(x.shape()), " has ", FormatList(expected));
    }
  }

 private:
  static std::string DeviceName(DLDevice device) {
    const std::string id = std::to_string(device.device_id);
    if (device.device_type == kDLCPU) return "the host";
    if (device.device_type == kDLCUDA) return "cuda(" + id + ")";
    return "device " + id + " of type " + std::to_string(device.device_type);
  }

  const char* operation_;
  int device_id_;
  DLDevice memory_;
};

int64_t BytesOf(const TensorView& tensor) { return tensor.numel() * ElementBytes(tensor.dtype()); }

void AllReduce(TensorView x, const String& groups, const String& kind, TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  Checker(abi::Collective::kAllReduce, worker).Output(x, out, ShapeOf(x));
  Group* group = worker.FindGroup(groups);
  worker.communicator().AllReduce(group, x, ParseReduceKind(kind), out);
  worker.traffic().CountInGroup(abi::Collective::kAllReduce, groups, *group, BytesOf(x));
}

ffi::Tensor SharedAllReduce(TensorView x, const String& groups, const String& kind) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kAllReduce, worker);
  check.InHostMemory();
  Group* group = worker.FindGroup(groups);
  ffi::Tensor out = worker.communicator().SharedResult(group, x.shape(), x.dtype());
  check.Output(x, out, ShapeOf(x));
  worker.communicator().AllReduce(group, x, ParseReduceKind(kind), out);
  worker.traffic().CountInGroup(abi::Collective::kAllReduce, groups, *group, BytesOf(x));
  return out;
}

// For the operand or the result of a large collective.
ffi::Tensor NewTensor(const ffi::Shape& shape, DLDataType dtype) {
  return WorkerContext::Current().communicator().NewTensor(shape, dtype);
}

// The sum is whole after the all-reduce; adding and norming then take one pass over it.
void AllReduceAddRmsNorm(TensorView x, TensorView residual, TensorView weight, const String& groups,
                         double epsilon, TensorView sum, TensorView normed) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kAllReduceAddRmsNorm, worker);
  const AddRmsNormFunction add_rms_norm = FindAddRmsNorm(x.dtype());
  for (const TensorView& like : {residual, sum, normed}) check.Output(x, like, ShapeOf(x));
  check.InHostMemory();
  check.Local("weight", weight);
  const int64_t width = x.ndim() == 0 ? 1 : x.size(x.ndim() - 1);
  if (weight.dtype() != x.dtype() || ShapeOf(weight) != std::vector<int64_t>{width}) {
    check.Fail("weight is ", ffi::DLDataTypeToString(weight.dtype()), " of shape ",
               FormatList(weight.shape()), ", the last dimension of x is ", width, " ",
               ffi::DLDataTypeToString(x.dtype()));
  }
  Group* group = worker.FindGroup(groups);
  worker.communicator().AllReduce(group, x, ReduceKind::kSum, sum);
  worker.traffic().CountInGroup(abi::Collective::kAllReduceAddRmsNorm, groups, *group, BytesOf(x));
  if (x.numel() == 0) return;
  add_rms_norm(DataOf(sum), DataOf(residual), DataOf(weight), x.numel() / width, width,
               static_cast<float>(epsilon), DataOf(normed));
}

void AllGather(TensorView x, const String& groups, int64_t dim, TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kAllGather, worker);
  Group* group = worker.FindGroup(groups);
  const int axis = check.Dim("dim", dim, x);
  std::vector<int64_t> expected = ShapeOf(x);
  expected[axis] *= group->size();
  check.Output(x, out, expected);
  worker.communicator().AllGather(group, x, axis, out);
  worker.traffic().CountInGroup(abi::Collective::kAllGather, groups, *group, BytesOf(x));
}

ffi::Tensor SharedAllGather(TensorView x, const String& groups, int64_t dim) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kAllGather, worker);
  check.InHostMemory();
  Group* group = worker.FindGroup(groups);
  const int axis = check.Dim("dim", dim, x);
  std::vector<int64_t> shape = ShapeOf(x);
  shape[axis] *= group->size();
  ffi::Tensor out = worker.communicator().SharedResult(group, ffi::Shape(shape), x.dtype());
  check.Output(x, out, shape);
  worker.communicator().AllGather(group, x, axis, out);
  worker.traffic().CountInGroup(abi::Collective::kAllGather, groups, *group, BytesOf(x));
  return out;
}

void ReduceScatter(TensorView x, const String& groups, int64_t dim, const String& kind,
                   TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kReduceScatter, worker);
  Group* group = worker.FindGroup(groups);
  const int axis = check.Dim("dim", dim, x);
  std::vector<int64_t> expected = ShapeOf(x);
  expected[axis] = check.Divide(x, axis, group->size());
  check.Output(x, out, expected);
  worker.communicator().ReduceScatter(group, x, axis, ParseReduceKind(kind), out);
  worker.traffic().CountInGroup(abi::Collective::kReduceScatter, groups, *group, BytesOf(x));
}

void AllToAll(TensorView x, const String& groups, int64_t split_dim, int64_t concat_dim,
              TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kAllToAll, worker);
  Group* group = worker.FindGroup(groups);
  const int split = check.Dim("split_dim", split_dim, x);
  const int concat = check.Dim("concat_dim", concat_dim, x);
  std::vector<int64_t> expected = ShapeOf(x);
  expected[split] = check.Divide(x, split, group->size());
  expected[concat] *= group->size();
  check.Output(x, out, expected);
  worker.communicator().AllToAll(group, x, split, concat, out);
  worker.traffic().CountInGroup(abi::Collective::kAllToAll, groups, *group, BytesOf(x));
}

void Slice(TensorView x, const String& groups, int64_t dim, TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kSlice, worker);
  Group* group = worker.FindGroup(groups);
  const int axis = check.Dim("dim", dim, x);
  std::vector<int64_t> expected = ShapeOf(x);
  expected[axis] = check.Divide(x, axis, group->size());
  check.Output(x, out, expected);
  worker.communicator().Slice(*group, x, axis, out);
}

void RunTransfer(abi::Collective kind, const String& plan_json, const TensorView* x,
                 const TensorView* out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(kind, worker);
  const TransferPlan& plan = worker.FindTransferPlan(plan_json);
  if (plan.is_source != (x != nullptr) || plan.is_target != (out != nullptr)) {
    check.Fail("the plan of channel ", plan.channel, " has this device as ",
               plan.is_source ? (plan.is_target ? "source and target" : "source only")
                              : (plan.is_target ? "target only" : "neither source nor target"));
  }
  if (x != nullptr) check.Local("x", *x);
  if (out != nullptr) check.Local("out", *out);
  if (x != nullptr && out != nullptr && x->dtype() != out->dtype()) {
    check.Fail("x is ", ffi::DLDataTypeToString(x->dtype()), ", out is ",
               ffi::DLDataTypeToString(out->dtype()));
  }
  worker.communicator().Transfer(plan, x, out);
  worker.traffic().CountPieces(kind, plan_json, plan, x, out);
  if (!plan.receives.empty()) worker.received_at = Now();
}

// Relax has no call without a result; an empty shape costs nothing and has a type (R.Shape([])).
ffi::Shape Send(TensorView x, const String& plan) {
  RunTransfer(abi::Collective::kSend, plan, &x, nullptr);
  return ffi::Shape({});
}

void Recv(const String& plan, TensorView out) {
  RunTransfer(abi::Collective::kRecv, plan, nullptr, &out);
}

void Transfer(TensorView x, const String& plan, TensorView out) {
  RunTransfer(abi::Collective::kTransfer, plan, &x, &out);
}

void SegmentExchange(TensorView x, const String& plan_json, TensorView out) {
  WorkerContext& worker = WorkerContext::Current();
  const Checker check(abi::Collective::kSegmentExchange, worker);
  const SegmentPlan& plan = worker.FindSegmentPlan(plan_json);
  std::vector<int64_t> expected = ShapeOf(x);
  const int dim = check.Dim("dim", plan.dim, x);
  if (x.ndim() != static_cast<int>(plan.transfer.source_units.size()) ||
      x.size(dim) != plan.source_size) {
    check.Fail("the plan moves along dimension ", dim, " of ", plan.transfer.source_units.size(),
               ", which has ", plan.source_size, " elements; x has shape ", FormatList(x.shape()));
  }
  expected[dim] = plan.target_size;
  check.Output(x, out, expected);
  worker.communicator().FillGaps(plan, out);
  worker.communicator().Transfer(plan.transfer, &x, &out);
  worker.traffic().CountPieces(abi::Collective::kSegmentExchange, plan_json, plan.transfer, &x,
                               &out);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def(abi::Builtin(abi::Collective::kAllReduce).c_str(), AllReduce)
      .def("distir.runtime.new_tensor", NewTensor)
      .def(abi::SharedBuiltin(abi::Collective::kAllReduce).c_str(), SharedAllReduce)
      .def(abi::SharedBuiltin(abi::Collective::kAllGather).c_str(), SharedAllGather)
      .def(abi::Builtin(abi::Collective::kAllReduceAddRmsNorm).c_str(), AllReduceAddRmsNorm)
      .def(abi::Builtin(abi::Collective::kAllGather).c_str(), AllGather)
      .def(abi::Builtin(abi::Collective::kReduceScatter).c_str(), ReduceScatter)
      .def(abi::Builtin(abi::Collective::kAllToAll).c_str(), AllToAll)
      .def(abi::Builtin(abi::Collective::kSlice).c_str(), Slice)
      .def(abi::Builtin(abi::Collective::kSegmentExchange).c_str(), SegmentExchange)
      .def(abi::Builtin(abi::Collective::kSend).c_str(), Send)
      .def(abi::Builtin(abi::Collective::kRecv).c_str(), Recv)
      .def(abi::Builtin(abi::Collective::kTransfer).c_str(), Transfer);
}

}  // namespace

}  // namespace distir::runtime
