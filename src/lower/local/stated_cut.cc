// Cuts a kernel whose rule a user states, along loops and intermediate buffers.
#include "lower/local/stated_cut.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_map>

#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "support/error.h"

namespace distir::lower {

namespace {

class StatedCut {
 public:
  StatedCut(const std::string& what, const rules::KernelRule& kernel, const PartsOfDims& parts)
      : what_(what), kernel_(kernel) {
    size_t tensor = 0;
    for (const ir::Var& param : kernel.function.params()) {
      auto type = ir::BufferType::Cast(param.ty());
      if (!type.defined()) {
        given_.push_back(param);
        continue;
      }
      for (size_t d = 0; d < parts[tensor].size(); ++d)
        dims_.push_back({param, d, type.shape()[d], parts[tensor][d]});
      ++tensor;
    }
  }

  std::vector<int64_t> Run() {
    CheckSymbols();
    bool any_fixed = false;
    for (const Dim& dim : dims_) any_fixed = any_fixed || IsFixed(dim);
    if (!any_fixed) return {};
    shards_.assign(kernel_.factors.size(), 0);
    for (const Dim& dim : dims_) Cut(dim);
    for (int64_t& count : shards_) count = std::max<int64_t>(count, 1);
    CheckNested();
    return shards_;
  }

 private:
  struct Dim {
    ir::Var buffer;
    size_t index;
    ir::Expr size;
    int64_t parts;
  };

  static bool IsFixed(const Dim& dim) { return dim.parts > 1 && ir::StaticDim(dim.size) >= 0; }

  [[noreturn]] void Refuse(const std::string& why) const {
    TVM_FFI_THROW(ValueError) << what_ << " cannot run on shards: " << why;
  }

  static std::string Place(const Dim& dim) {
    return "dimension " + std::to_string(dim.index) + " of `" + dim.buffer.name() + "`";
  }

  static std::string InParts(int64_t parts) {
    return parts == 1 ? "whole" : "in " + std::to_string(parts) + " parts";
  }

  // ---- symbolic sizes

  // A kernel finds a size in one dimension and expects it of all others.
  void CheckSymbols() const {
    std::unordered_map<const ffi::Object*, const Dim*> by_size;
    for (const Dim& dim : dims_) {
      auto size = ir::Var::Cast(dim.size);
      if (!size.defined()) continue;
      const Dim& first = *by_size.try_emplace(size.get(), &dim).first->second;
      if (first.parts != dim.parts) RefuseSize(size, first, dim);
      for (const ir::Var& scalar : given_) {
        if (scalar.same_as(size) && dim.parts > 1)
          Refuse("its size `" + size.name() + "` is an argument, but " + Place(dim) + " is " +
                 InParts(dim.parts));
      }
    }
    for (const Dim& dim : dims_) {
      if (ir::Var::Is(dim.size) || ir::StaticDim(dim.size) >= 0) continue;
      const Dim* known = nullptr;
      ir::Expr global = ir::SubstituteVars(dim.size, [&](const ir::Var& size) {
        auto found = by_size.find(size.get());
        if (found == by_size.end() || found->second->parts == 1) return ir::Expr();
        known = found->second;
        return ir::Expr(ir::Multiply(size, known->parts));
      });
      if (ir::SameDim(global, ir::Multiply(dim.size, dim.parts))) continue;
      if (known != nullptr) RefuseSize(ir::Var::Cast(known->size), *known, dim);
      Refuse("the size of " + Place(dim) + ", which is " + InParts(dim.parts) +
             ", follows from sizes that are whole");
    }
  }

  [[noreturn]] void RefuseSize(const ir::Var& size, const Dim& a, const Dim& b) const {
    Refuse("size `" + size.name() + "` is " + InParts(a.parts) + " in " + Place(a) + " and " +
           InParts(b.parts) + " in " + Place(b));
  }

  // ---- fixed sizes

  // Major factors are cut first; a minor one only where those before it are in parts of one.
  void Cut(const Dim& dim) {
    if (!kernel_.failure.empty()) {
      if (!IsFixed(dim)) return;
      Refuse(Place(dim) + " is " + InParts(dim.parts) +
             ", its size is fixed, and the loops cannot be" + " cut: " + kernel_.failure +
             "; give it a symbolic size");
    }
    const rules::FactorList& factors = kernel_.buffers.at(dim.buffer.get())[dim.index];
    int64_t rest = dim.parts;
    for (int factor : factors) {
      int64_t size = kernel_.factors[factor].size;
      int64_t wanted = rest;
      if (size >= 0 && rest % size == 0) wanted = size;
      if (size >= 0 && size % wanted != 0) break;
      rest /= wanted;
      if (wanted > 1 && !kernel_.uncuttable[factor].empty())
        Refuse(Place(dim) + " is " + InParts(dim.parts) + ", but " + kernel_.uncuttable[factor]);
      int64_t& known = shards_[factor];
      if (known != 0 && known != wanted)
        Refuse(Place(dim) + " is " + InParts(dim.parts) +
               ", but the index maps tie it to one that is " + InParts(known) + AlongLoop(factor));
      known = wanted;
    }
    if (rest > 1)
      Refuse(Place(dim) + " is " + InParts(dim.parts) +
             ", which does not fit how its index maps split it");
  }

  // A range of which a minor part is cut where a major one is not would have shards that are no
  // blocks.
  void CheckNested() const {
    for (const ir::Var& loop : kernel_.iterator_order)
      CheckNested(kernel_.iterators.at(loop.get()), "loop `" + loop.name() + "`");
    auto check = [this](const ir::Var& buffer) {
      auto found = kernel_.buffers.find(buffer.get());
      if (found == kernel_.buffers.end()) return;
      for (const rules::FactorList& factors : found->second)
        CheckNested(factors, "a dimension of `" + buffer.name() + "`");
    };
    for (const ir::Var& param : kernel_.function.params()) check(param);
    for (const ir::Var& buffer : kernel_.intermediates) check(buffer);
  }

  void CheckNested(const rules::FactorList& factors, const std::string& where) const {
    bool is_cut_up = true;
    for (int factor : factors) {
      if (shards_[factor] > 1 && !is_cut_up)
        Refuse(where + " would be cut in between: its elements on a worker are not in a row");
      is_cut_up = is_cut_up && shards_[factor] == kernel_.factors[factor].size;
    }
  }

  /*! \brief The first loop over a factor, for messages. */
  std::string AlongLoop(int factor) const {
    for (const ir::Var& loop : kernel_.iterator_order) {
      const rules::FactorList& factors = kernel_.iterators.at(loop.get());
      if (std::count(factors.begin(), factors.end(), factor) > 0)
        return " along loop `" + loop.name() + "`";
    }
    return "";
  }

  const std::string& what_;
  const rules::KernelRule& kernel_;
  std::vector<Dim> dims_;
  std::vector<ir::Var> given_;  // scalar parameters
  std::vector<int64_t> shards_;
};

}  // namespace

std::vector<int64_t> CutByStatedRule(const std::string& what, const rules::KernelRule& kernel,
                                     const PartsOfDims& parts) {
  return StatedCut(what, kernel, parts).Run();
}

}  // namespace distir::lower
