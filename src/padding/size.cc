// Computes common divisors and quotients of sizes that are products.
#include "padding/size.h"

#include <algorithm>
#include <numeric>

#include "ir/build.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "mesh/sharding.h"

namespace distir::padding {

namespace {

/*! \brief Takes an expression out of a list; returns whether it was there. */
bool Take(const ir::Expr& wanted, std::vector<ir::Expr>* from) {
  auto found = std::find_if(from->begin(), from->end(),
                            [&](const ir::Expr& each) { return ir::SameDim(each, wanted); });
  if (found == from->end()) return false;
  from->erase(found);
  return true;
}

}  // namespace

Size::Size(const ir::Expr& dim) { number_ = ir::CollectFactors(dim, &symbols_); }

bool Size::operator==(const Size& other) const {
  if (number_ != other.number_ || symbols_.size() != other.symbols_.size()) return false;
  std::vector<ir::Expr> left = other.symbols_;
  return std::all_of(symbols_.begin(), symbols_.end(),
                     [&](const ir::Expr& symbol) { return Take(symbol, &left); });
}

ir::Expr Size::ToExpr() const {
  std::vector<ir::Expr> factors = symbols_;
  factors.push_back(ir::MakeInt(number_));
  return ir::Product(factors);
}

ir::Expr Size::Even(int64_t shards) const { return Padded(Size(1), *this, shards); }

ir::Expr Size::Padded(const Size& grain, const Size& units, int64_t shards) {
  if (units.symbols_.empty()) {
    Size padded = grain;
    padded.number_ *= mesh::EvenExtent(units.number_, shards);
    return padded.ToExpr();
  }
  std::vector<ir::Expr> factors = grain.symbols_;
  if (ir::AlwaysDivides(units.ToExpr(), shards)) {
    factors.push_back(ir::Multiply(units.ToExpr(), grain.number_));
  } else {
    // The size of a shard stands by itself, so that dividing by the shards leaves it.
    factors.push_back(ir::FloorDivide(ir::Add(units.ToExpr(), shards - 1), shards));
    factors.push_back(ir::MakeInt(grain.number_ * shards));
  }
  return ir::Product(factors);
}

Size Size::CommonDivisor(const Size& a, const Size& b) {
  Size common(std::gcd(a.number_, b.number_));
  std::vector<ir::Expr> left = b.symbols_;
  for (const ir::Expr& symbol : a.symbols_) {
    if (Take(symbol, &left)) common.symbols_.push_back(symbol);
  }
  return common;
}

Size Size::DividedBy(const Size& divisor) const {
  Size quotient = *this;
  quotient.number_ /= divisor.number_;
  for (const ir::Expr& symbol : divisor.symbols_) Take(symbol, &quotient.symbols_);
  return quotient;
}

}  // namespace distir::padding
