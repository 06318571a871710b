#include "rules/tir_index.h"

#include <algorithm>
#include <map>

#include "ir/symbolic.h"
#include "ir/tir_node.h"

namespace distir {
namespace rules {

namespace {

/*! \brief A sum of digits and a constant. */
struct Sum {
  DigitSum digits;
  int64_t base = 0;
};

class IndexReader {
 public:
  explicit IndexReader(const FindIterator& find) : find_(find) {}

  std::optional<Sum> Read(const ir::Expr& expr) {
    if (int64_t value = ir::StaticDim(expr); ir::IntImm::Is(expr)) return Sum{{}, value};
    if (auto var = ir::Var::Cast(expr); var.defined()) {
      std::optional<Iterator> iterator = find_(var);
      if (!iterator) return std::nullopt;
      int64_t size = ir::StaticDim(iterator->extent);
      if (size == 1) return Sum{};
      extents_.emplace(iterator->range, iterator->extent);
      return Sum{{{iterator->range, 1, size, 1}}};
    }
    if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) {
      // Widening of an integer index.
      if (ir::ScalarType(expr).code != kDLInt) return std::nullopt;
      return Read(cast.value());
    }
    ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
    if (!binary.defined()) return std::nullopt;
    std::optional<Sum> a = Read(binary.a());
    if (!a) return std::nullopt;
    if (IsZero(*a) && IsSymbol(binary.b()) && binary.kind() == ir::BinaryKind::kMul) return a;
    if (IsWhole(*a, binary.b())) {
      if (binary.kind() == ir::BinaryKind::kFloorMod) return a;
      if (binary.kind() == ir::BinaryKind::kFloorDiv) return Sum{};
    }
    std::optional<Sum> b = Read(binary.b());
    if (!b) return std::nullopt;
    switch (binary.kind()) {
      case ir::BinaryKind::kAdd:
        a->digits.insert(a->digits.end(), b->digits.begin(), b->digits.end());
        a->base += b->base;
        return Sorted(*a);
      case ir::BinaryKind::kSub:
        if (!b->digits.empty()) return std::nullopt;
        a->base -= b->base;
        return a;
      case ir::BinaryKind::kMul:
        if (a->digits.empty()) std::swap(a, b);
        return b->digits.empty() ? Times(*a, b->base) : std::nullopt;
      case ir::BinaryKind::kFloorDiv:
        return b->digits.empty() ? Divided(*a, b->base, /*remainder=*/false) : std::nullopt;
      case ir::BinaryKind::kFloorMod:
        return b->digits.empty() ? Divided(*a, b->base, /*remainder=*/true) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

 private:
  static Sum Sorted(Sum sum) {
    std::stable_sort(sum.digits.begin(), sum.digits.end(),
                     [](const Digit& a, const Digit& b) { return a.scale > b.scale; });
    return sum;
  }

  static std::optional<Sum> Times(Sum sum, int64_t factor) {
    if (factor <= 0) return std::nullopt;
    for (Digit& digit : sum.digits) digit.scale *= factor;
    sum.base *= factor;
    return sum;
  }

  static bool IsZero(const Sum& sum) { return sum.digits.empty() && sum.base == 0; }
  bool IsSymbol(const ir::Expr& expr) const {
    return ir::Var::Is(expr) && !find_(ir::Var::Cast(expr)).has_value();
  }

  // As in x % n and x // n for an iterator x that runs to n.
  bool IsWhole(const Sum& sum, const ir::Expr& size) const {
    if (sum.base != 0 || sum.digits.size() != 1) return false;
    const Digit& digit = sum.digits[0];
    if (digit.extent >= 0 || digit.scale != 1) return false;
    return extents_.count(digit.range) > 0 && ir::SameDim(extents_.at(digit.range), size);
  }

  // The digits at or above the divisor are the quotient; those below, which must not carry, the
  // remainder. A digit on both sides is cut.
  static std::optional<Sum> Divided(const Sum& sum, int64_t divisor, bool remainder) {
    if (divisor <= 0 || sum.base != 0) return std::nullopt;
    Sum quotient, rest;
    int64_t largest_rest = 0;
    for (const Digit& digit : sum.digits) {
      if (digit.scale % divisor == 0) {
        quotient.digits.push_back(digit);
        quotient.digits.back().scale /= divisor;
        continue;
      }
      if (digit.extent < 0) return std::nullopt;
      Digit low = digit;
      if (digit.scale * digit.extent > divisor) {
        int64_t cut = divisor / digit.scale;
        if (divisor % digit.scale != 0 || digit.extent % cut != 0) return std::nullopt;
        quotient.digits.push_back({digit.range, digit.low * cut, digit.extent / cut, 1});
        low.extent = cut;
      }
      largest_rest += (low.extent - 1) * low.scale;
      rest.digits.push_back(low);
    }
    if (largest_rest >= divisor) return std::nullopt;
    return Sorted(remainder ? rest : quotient);
  }

  const FindIterator& find_;
  std::map<int, ir::Expr> extents_;  // of the iterators read, by range
};

}  // namespace

std::optional<DigitSum> ReadIndex(const ir::Expr& index, const FindIterator& find) {
  std::optional<Sum> sum = IndexReader(find).Read(index);
  // (i * n + j) % n: the multiples of a symbolic size must go first.
  if (!sum) sum = IndexReader(find).Read(ir::Simplify(index));
  if (!sum || sum->base != 0) return std::nullopt;
  return sum->digits;
}

}  // namespace rules
}  // namespace distir
