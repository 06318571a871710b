// Registers the collective operators of R.dist and R.ccl, and looks up their records.
#include "dialect/operators/collective_record.h"

#include <string>
#include <string_view>
#include <vector>

#include "ir/tvm/registration.h"
#include "support/pointer_map.h"

namespace distir::dialect {

namespace {

struct Records {
  const abi::CollectiveRecord* on_dtensors = nullptr;
  const abi::CollectiveRecord* on_tensors = nullptr;
};

Records RecordsOf(const ir::Expr& op) {
  const ir::Op* named = ir::Op::As(op);
  if (named == nullptr) return {};
  // Operators are unique and never freed.
  static thread_local PointerMap<Records> known;
  if (const Records* records = known.Find(op.get())) return *records;
  const ffi::String name = named->name();
  const std::string_view text(name.data(), name.size());
  Records records{abi::FindOnDTensors(text), abi::FindOnTensors(text)};
  // TVM's own operators may be called as collectives that are none here: `R.ccl.view`.
  if (records.on_dtensors != nullptr && !records.on_dtensors->is_on_dtensors)
    records.on_dtensors = nullptr;
  if (records.on_tensors != nullptr && !records.on_tensors->is_on_tensors)
    records.on_tensors = nullptr;
  return known[op.get()] = records;
}

void Register(const std::string& name, const abi::CollectiveRecord& record, InferFunction infer) {
  const std::vector<std::string> arguments = abi::ArgumentsOf(record);
  std::vector<const char*> names;
  for (const std::string& each : arguments) names.push_back(each.c_str());
  ir::RegisterOp(name, record.text, names, record.has_result);
  ir::SetInferType(name, infer);
}

}  // namespace

const abi::CollectiveRecord* RecordOnDTensors(const ir::Expr& op) {
  return RecordsOf(op).on_dtensors;
}
const abi::CollectiveRecord* RecordOnTensors(const ir::Expr& op) {
  return RecordsOf(op).on_tensors;
}

void RegisterCollective(abi::Collective collective, InferFunction on_dtensors,
                        InferFunction on_tensors) {
  const abi::CollectiveRecord& record = abi::RecordOf(collective);
  if (record.is_on_dtensors) {
    Register(abi::OnDTensors(collective), record, on_dtensors);
    ir::SetInferDTensorType(abi::OnDTensors(collective), on_dtensors);
  }
  if (record.is_on_tensors) Register(abi::OnTensors(collective), record, on_tensors);
}

}  // namespace distir::dialect
