// Reads products of two tensors as contractions.
#include "target/products/contraction.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "support/contains.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

// A product of fewer multiplications takes less time in a loop, fused with its neighbours.
constexpr int64_t kSmallestWork = 1024;

/*! \brief Batch dimensions from the right, rows, columns; a vector has no rows or no columns. */
void LabelMatmul(int left_rank, int right_rank, Contraction* contraction) {
  constexpr int kRows = 0, kContracted = 1, kColumns = 2, kBatch = 3;
  auto batch_of = [](int rank, Labels* labels) {
    for (int d = rank - 3; d >= 0; --d) labels->push_back(kBatch + d);
  };
  batch_of(left_rank, &contraction->labels[0]);
  batch_of(right_rank, &contraction->labels[1]);
  batch_of(std::max(left_rank, right_rank), &contraction->result);
  if (left_rank > 1) {
    contraction->labels[0].push_back(kRows);
    contraction->result.push_back(kRows);
  }
  contraction->labels[0].push_back(kContracted);
  contraction->labels[1].push_back(kContracted);
  if (right_rank > 1) {
    contraction->labels[1].push_back(kColumns);
    contraction->result.push_back(kColumns);
  }
}

bool HasRepeated(Labels labels) {
  std::sort(labels.begin(), labels.end());
  return std::adjacent_find(labels.begin(), labels.end()) != labels.end();
}

/*! \brief True if BLAS computes the contraction: no label is repeated in or summed over a single
 * operand, and some label is contracted. */
bool IsProduct(const Contraction& contraction) {
  const auto& [left, right] = contraction.labels;
  bool contracts = false;
  for (const auto& [mine, other] : {std::pair(left, right), std::pair(right, left)}) {
    for (int label : mine) {
      bool is_kept = Has(contraction.result, label);
      if (!is_kept && !Has(other, label)) return false;
      contracts = contracts || !is_kept;
    }
  }
  return contracts && !HasRepeated(left) && !HasRepeated(right) && !HasRepeated(contraction.result);
}

/*! \brief True if there is too little to multiply; symbolic sizes count as enough. */
bool IsSmall(const Contraction& contraction) {
  std::unordered_map<int, int64_t> sizes;
  for (int i = 0; i < 2; ++i) {
    const auto& shape = ir::ShapeOf(ir::TensorType::Cast(contraction.operands[i].ty()));
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t size = ir::StaticDim(shape[d]);
      if (size < 0) return false;
      int64_t& known = sizes[contraction.labels[i][d]];
      known = std::max(known, size);
    }
  }
  int64_t work = 1;
  for (const auto& [label, size] : sizes) {
    if (size == 0) return true;
    if (work < kSmallestWork) work *= size;
  }
  return work < kSmallestWork;
}

}  // namespace

std::optional<Contraction> ReadContraction(const ir::Call& call, const ir::Type& type) {
  bool is_einsum = ir::IsOp(call.op(), "relax.einsum");
  if (!is_einsum && !ir::IsOp(call.op(), "relax.matmul")) return std::nullopt;
  ffi::Array<ir::Expr> operands = call.args();
  if (is_einsum) {
    ir::Tuple fields = ir::Tuple::Cast(call.args()[0]);
    if (!fields.defined()) return std::nullopt;
    operands = fields.fields();
  }
  auto result = ir::TensorType::Cast(type);
  if (operands.size() != 2 || !result.defined() || !ir::ShapeExpr::Is(result.shape()))
    return std::nullopt;
  std::vector<int> ranks;
  for (const ir::Expr& operand : operands) {
    auto tensor = ir::TensorType::Cast(operand.ty());
    if (!tensor.defined() || !ir::HasKnownShape(tensor)) return std::nullopt;
    ranks.push_back(tensor.ndim());
  }

  Contraction contraction;
  contraction.operands = {operands[0], operands[1]};
  if (is_einsum) {
    rules::Equation equation = rules::ReadEquation(call, ranks, result.ndim());
    if (equation.operands.size() != 2) return std::nullopt;
    contraction.labels = {equation.operands[0], equation.operands[1]};
    contraction.result = equation.result;
  } else {
    LabelMatmul(ranks[0], ranks[1], &contraction);
  }
  for (int i = 0; i < 2; ++i) {
    if (static_cast<int>(contraction.labels[i].size()) != ranks[i]) return std::nullopt;
  }
  if (static_cast<int>(contraction.result.size()) != result.ndim()) return std::nullopt;
  if (!IsProduct(contraction) || IsSmall(contraction)) return std::nullopt;
  return contraction;
}

std::optional<std::string> Subscripts(const Contraction& contraction) {
  static const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::unordered_map<int, char> letter_of;
  auto text_of = [&](const Labels& labels) {
    std::string text;
    for (int label : labels) {
      size_t next = std::min(letter_of.size(), letters.size() - 1);
      text += letter_of.emplace(label, letters[next]).first->second;
    }
    return text;
  };
  std::string text = text_of(contraction.labels[0]);
  text += "," + text_of(contraction.labels[1]);
  text += "->" + text_of(contraction.result);
  if (letter_of.size() > letters.size()) return std::nullopt;
  return text;
}

}  // namespace distir::target
