#include "expand/algorithm.h"

#include <tvm/ffi/error.h>

#include <map>
#include <string>
#include <unordered_map>

namespace distir {
namespace expand {

namespace {

std::map<std::string, Algorithm>& Algorithms() {
  static std::map<std::string, Algorithm> algorithms;
  return algorithms;
}

}  // namespace

bool SpecialCall::IsSpecial(size_t operand, int dim) const {
  for (int f : rule.operands[operand][dim]) {
    if (rule.factors[f].kind == rules::FactorKind::kSpecial && !sharding.factors[f].empty())
      return true;
  }
  return false;
}

const mesh::AxisList& SpecialCall::SpecialAxes() const {
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].kind == rules::FactorKind::kSpecial && !sharding.factors[f].empty())
      return sharding.factors[f];
  }
  TVM_FFI_ICHECK(false) << "no special factor is sharded";
  TVM_FFI_UNREACHABLE();
}

AlgorithmTable::AlgorithmTable(std::initializer_list<std::pair<const char*, Algorithm>> entries) {
  for (const auto& [op, algorithm] : entries) Algorithms()[op] = algorithm;
}

Algorithm FindAlgorithm(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return nullptr;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, Algorithm> cache;
  auto it = cache.find(op.get());
  if (it == cache.end()) {
    auto found = Algorithms().find(ir::Op::Cast(op).name());
    it = cache.emplace(op.get(), found == Algorithms().end() ? nullptr : found->second).first;
  }
  return it->second;
}

std::vector<int> Marked(const std::vector<bool>& mask) {
  std::vector<int> dims;
  for (size_t d = 0; d < mask.size(); ++d) {
    if (mask[d]) dims.push_back(static_cast<int>(d));
  }
  return dims;
}

}  // namespace expand
}  // namespace distir
