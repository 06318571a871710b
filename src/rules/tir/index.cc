// Reads index expressions as sums of digits, and writes them back.
#include "rules/tir/index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ir/symbolic.h"
#include "ir/tir_node.h"

namespace distir::rules {

namespace {

/*! \brief A sum of digits, of digits times one symbolic size, and of a constant. */
struct Sum {
  DigitSum digits;
  int64_t base = 0;
  DigitSum multiples;  // each is times `symbol`
  ir::Expr symbol;     // null when there are no multiples

  bool IsConstant() const { return digits.empty() && multiples.empty(); }
  bool IsZero() const { return IsConstant() && base == 0; }
};

class IndexReader {
 public:
  explicit IndexReader(const FindIterator& find) : find_(find) {}

  std::optional<Sum> Read(const ir::Expr& expr) {
    if (auto constant = ir::IntImm::Cast(expr); constant.defined()) {
      Sum sum;
      sum.base = constant.value();
      return sum;
    }
    if (auto var = ir::Var::Cast(expr); var.defined()) return ReadIterator(var);
    if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) {
      // Widening of an integer index.
      if (ir::ScalarType(expr).code != kDLInt) return std::nullopt;
      return Read(cast.value());
    }
    ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
    if (!binary.defined()) return std::nullopt;
    std::optional<Sum> a = Read(binary.a());
    if (!a) return std::nullopt;
    if (IsSymbol(binary.b())) return ReadWithSymbol(*a, binary.kind(), binary.b());
    std::optional<Sum> b = Read(binary.b());
    if (!b) return std::nullopt;
    switch (binary.kind()) {
      case ir::BinaryKind::kAdd:
        return Added(*a, *b);
      case ir::BinaryKind::kSub:
        if (!b->IsConstant()) return std::nullopt;
        a->base -= b->base;
        return a;
      case ir::BinaryKind::kMul:
        if (a->IsConstant()) std::swap(a, b);
        return b->IsConstant() ? Times(*a, b->base) : std::nullopt;
      case ir::BinaryKind::kFloorDiv:
        return b->IsConstant() ? Divided(*a, b->base, /*remainder=*/false) : std::nullopt;
      case ir::BinaryKind::kFloorMod:
        return b->IsConstant() ? Divided(*a, b->base, /*remainder=*/true) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<Sum> ReadIterator(const ir::Var& var) {
    std::optional<Iterator> iterator = find_(var);
    if (!iterator) return std::nullopt;
    Sum sum;
    int64_t size = ir::StaticDim(iterator->extent);
    if (size == 1) return sum;
    extents_.emplace(iterator->range, iterator->extent);
    sum.digits.push_back({iterator->range, 1, size, 1});
    return sum;
  }

  bool IsSymbol(const ir::Expr& expr) const {
    return ir::Var::Is(expr) && !find_(ir::Var::Cast(expr)).has_value();
  }

  // i * n, (i * n + j) // n and (i * n + j) % n, for j that runs to n.
  std::optional<Sum> ReadWithSymbol(Sum sum, ir::BinaryKind kind, const ir::Expr& symbol) const {
    if (sum.IsZero()) {
      bool stays_zero = kind == ir::BinaryKind::kMul || kind == ir::BinaryKind::kFloorDiv ||
                        kind == ir::BinaryKind::kFloorMod;
      return stays_zero ? std::optional<Sum>(sum) : std::nullopt;
    }
    if (sum.base != 0) return std::nullopt;
    if (kind == ir::BinaryKind::kMul && sum.multiples.empty()) {
      std::swap(sum.digits, sum.multiples);
      sum.symbol = symbol;
      return sum;
    }
    bool is_division = kind == ir::BinaryKind::kFloorDiv || kind == ir::BinaryKind::kFloorMod;
    if (!is_division || !FillsOrIsZero(sum.digits, symbol)) return std::nullopt;
    if (!sum.multiples.empty() && !ir::SameDim(sum.symbol, symbol)) return std::nullopt;
    Sum part;
    part.digits = kind == ir::BinaryKind::kFloorDiv ? sum.multiples : sum.digits;
    return part;
  }

  /*! \brief True if the digits are nothing, or one iterator that runs to `size`. */
  bool FillsOrIsZero(const DigitSum& digits, const ir::Expr& size) const {
    if (digits.empty()) return true;
    if (digits.size() != 1 || digits[0].extent >= 0 || digits[0].scale != 1) return false;
    return ir::SameDim(extents_.at(digits[0].range), size);
  }

  static DigitSum Sorted(DigitSum digits) {
    std::stable_sort(digits.begin(), digits.end(),
                     [](const Digit& a, const Digit& b) { return a.scale > b.scale; });
    return digits;
  }

  static std::optional<Sum> Added(Sum a, const Sum& b) {
    if (!a.multiples.empty() && !b.multiples.empty()) {
      if (!ir::SameDim(a.symbol, b.symbol)) return std::nullopt;
    } else if (a.multiples.empty()) {
      a.symbol = b.symbol;
    }
    a.digits.insert(a.digits.end(), b.digits.begin(), b.digits.end());
    a.multiples.insert(a.multiples.end(), b.multiples.begin(), b.multiples.end());
    a.digits = Sorted(std::move(a.digits));
    a.multiples = Sorted(std::move(a.multiples));
    a.base += b.base;
    return a;
  }

  static std::optional<Sum> Times(Sum sum, int64_t factor) {
    if (factor == 0) return Sum();
    if (factor < 0) return std::nullopt;
    for (DigitSum* digits : {&sum.digits, &sum.multiples}) {
      for (Digit& digit : *digits) digit.scale *= factor;
    }
    sum.base *= factor;
    return sum;
  }

  // The digits at or above the divisor are the quotient; those below, which must not carry, the
  // remainder. A digit on both sides is cut.
  static std::optional<Sum> Divided(const Sum& sum, int64_t divisor, bool remainder) {
    if (divisor <= 0 || !sum.multiples.empty()) return std::nullopt;
    if (sum.IsConstant() && sum.base >= 0) {
      Sum constant;
      constant.base = remainder ? sum.base % divisor : sum.base / divisor;
      return constant;
    }
    if (sum.base != 0) return std::nullopt;
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
    Sum& part = remainder ? rest : quotient;
    part.digits = Sorted(std::move(part.digits));
    return part;
  }

  const FindIterator& find_;
  std::map<int, ir::Expr> extents_;  // of the iterators read, by range
};

}  // namespace

std::optional<DigitSum> ReadIndex(const ir::Expr& index, const FindIterator& find) {
  std::optional<Sum> sum = IndexReader(find).Read(index);
  if (!sum || sum->base != 0 || !sum->multiples.empty()) return std::nullopt;
  return sum->digits;
}

ir::Expr WriteIndex(const DigitSum& digits, const ir::Expr& index, const FindIterator& find) {
  struct Named {
    ir::Var var;
    int64_t size;
  };
  std::map<int, Named> iterators;
  ir::VisitVars(index, [&](const ir::Var& var) {
    if (auto iterator = find(var))
      iterators.emplace(iterator->range, Named{var, ir::StaticDim(iterator->extent)});
  });
  const DLDataType type = ir::ScalarType(index);
  ir::Expr sum = ir::MakeIntLike(0, index);
  for (const Digit& digit : digits) {
    auto found = iterators.find(digit.range);
    if (found == iterators.end()) return ir::Expr();
    const auto& [var, size] = found->second;
    const DLDataType own = ir::ScalarType(var);
    if (own.code != type.code || own.bits != type.bits) return ir::Expr();
    ir::Expr value = var;
    if (digit.low != 1) value = ir::QuotientOf(value, digit.low);
    const bool is_cut_off = digit.extent >= 0 && digit.low * digit.extent != size;
    if (is_cut_off) value = ir::RemainderOf(value, digit.extent);
    sum = ir::AddIndices(sum, ir::MultiplyExtent(value, digit.scale));
  }
  return sum;
}

}  // namespace distir::rules
