// Finds weights whose annotation cuts within heads, so that propagation copies heads instead.
#include "propagation/copied_heads.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "rules/call/projection.h"

namespace distir::propagation {

namespace {

using mesh::AxisList;
using rules::FactorShardings;

/*! \brief A dimension, or a factor, that comes from dimensions of weights. */
struct Columns {
  SmallVector<StatedDim, 1> of;
  int64_t shards = 1;      // that it would be cut in, if all of them went into it and behind it
  bool is_within = false;  // there are shards in front of it, which are fewer than stated

  bool empty() const { return of.empty(); }
};

/*! \brief Weight columns that the dimensions of a tensor come from. */
struct Tensor {
  std::vector<Columns> dims;
  bool is_weight;  // a weight itself, or a view of it
};

const AxisList& AxesOf(const StatedDim& stated) { return stated.source->sharding.dims[stated.dim]; }

template <typename List>
bool Contains(const List& all, const StatedDim& stated) {
  return std::find(all.begin(), all.end(), stated) != all.end();
}

class HeadFinder {
 public:
  explicit HeadFinder(const Program& program) : program_(program) {}

  std::vector<StatedDim> Run() {
    for (size_t s = 0; s < program_.slots.size(); ++s) AddStated(static_cast<int>(s));
    if (tensors_.size() < 2) return {};
    for (const Link& link : program_.links) {
      for (int slot : program_.Results(link)) computed_.insert(slot);
    }
    for (const Link& link : program_.links) {
      if (link.crossing == nullptr && !link.blocked.forward) Visit(link);
    }
    std::vector<StatedDim> found;
    for (const auto& [smaller, larger] : met_) {
      if (inputs_.count(smaller.source) || inputs_.count(larger) || Contains(found, smaller))
        continue;
      found.push_back(smaller);
    }
    return found;
  }

 private:
  void AddStated(int slot) {
    const Source* stated = program_.slots[slot].stated;
    if (stated == nullptr || !stated->annotates_param) return;
    Tensor tensor{std::vector<Columns>(stated->sharding.dims.size()), true};
    bool any = false;
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      const int64_t shards = mesh::NumShards(stated->sharding.dims[d]);
      if (shards < 2 || stated->IsOpen(d) || stated->Priority(d) > 0) continue;
      tensor.dims[d] = {{{stated, static_cast<int>(d)}}, shards};
      elements_[stated] = program_.slots[slot].info->elements;
      any = true;
    }
    if (any) tensors_.emplace(slot, std::move(tensor));
  }

  /*! \brief Columns and shardings that an operand gives the factors of a link. */
  struct View {
    std::vector<Columns> columns;  // by factor
    FactorShardings solved;
    bool is_weight = false;
    SmallVector<StatedDim, 1> unfactored = {};  // the call needs all of them
  };

  void Visit(const Link& link) {
    const IntRange operands = program_.Operands(link);
    const bool any = std::any_of(operands.begin(), operands.end(),
                                 [this](int slot) { return tensors_.count(slot) > 0; });
    if (!any) return;
    const bool is_of_weights = IsOfWeights(*link.rule, operands);
    if (!is_of_weights) FindInputs(*link.rule, operands);
    views_.resize(operands.size());
    for (size_t i = 0; i < operands.size(); ++i)
      Look(*link.rule, link.rule->operands[i], operands[i], &views_[i]);
    std::vector<Columns>& kept = kept_;
    kept.assign(link.rule->factors.size(), {});
    for (size_t i = 0; i < views_.size(); ++i) {
      for (const StatedDim& stated : views_[i].unfactored) Meets(stated, i, kept.size());
      for (size_t f = 0; f < kept.size(); ++f) {
        for (const StatedDim& stated : views_[i].columns[f].of) {
          if (Meets(stated, i, f)) continue;
          Add(stated, views_[i].columns[f], &kept[f]);
        }
      }
    }
    const IntRange results = program_.Results(link);
    for (size_t i = 0; i < results.size(); ++i)
      Keep(*link.rule, link.rule->results[i], kept, results[i], is_of_weights);
  }

  /*! \brief True if a result is a view of a weight, or made of weights alone, element by element or
   * packed element by packed element: of numbers of four bits and their scales. */
  bool IsOfWeights(const rules::FactorRule& rule, const IntRange& operands) const {
    const auto is_weight = [this](int slot) {
      auto known = tensors_.find(slot);
      return known != tensors_.end() ? known->second.is_weight : computed_.count(slot) == 0;
    };
    const auto stays_apart = [](const rules::Factor& factor) {
      return factor.Is<rules::ParallelFactor>() || factor.Is<rules::ReplicatedFactor>();
    };
    return (operands.size() == 1 ||
            std::all_of(rule.factors.begin(), rule.factors.end(), stays_apart)) &&
           std::all_of(operands.begin(), operands.end(), is_weight);
  }

  /*!
   * \brief The first operand of an operator is an input: x in matmul(x, w). Those behind it are
   * weights only for products, or biases of these: not the ids and the scores of
   * scatter_elements(zeros, ids, scores).
   */
  void FindInputs(const rules::FactorRule& rule, const IntRange& operands) {
    const bool takes_weights =
        IsProduct(rule) || std::any_of(operands.begin(), operands.end(), [this](int slot) {
          auto known = tensors_.find(slot);
          return known != tensors_.end() && !known->second.is_weight;
        });
    for (int slot : operands) {
      if (slot != *operands.begin() && takes_weights) continue;
      auto known = tensors_.find(slot);
      if (known == tensors_.end() || !known->second.is_weight) continue;
      for (const Columns& columns : known->second.dims)
        for (const StatedDim& stated : columns.of) inputs_.insert(stated.source);
    }
  }

  /*! \brief True if two operands are summed along a factor that both have. */
  static bool IsProduct(const rules::FactorRule& rule) {
    std::vector<int> num_operands(rule.factors.size(), 0);
    for (const rules::TensorFactors& operand : rule.operands)
      for (const rules::FactorList& factors : operand)
        for (int f : factors) ++num_operands[f];
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (num_operands[f] > 1 && rule.factors[f].reduction() == mesh::Reduction::kSum) return true;
    }
    return false;
  }

  /*! \brief Fills a view, which may be that of an operand of another link. */
  void Look(const rules::FactorRule& rule, const rules::TensorFactors& factors, int slot,
            View* into) const {
    View& view = *into;
    view.columns.assign(rule.factors.size(), {});
    view.solved.assign(rule.factors.size(), {});
    view.unfactored.clear();
    view.is_weight = false;
    rules::Project(rule, factors, program_.slots[slot].sharding, &view.solved);
    auto known = tensors_.find(slot);
    if (known == tensors_.end()) return;
    view.is_weight = known->second.is_weight;
    for (size_t d = 0; d < factors.size(); ++d) {
      const Columns& columns = known->second.dims[d];
      if (columns.empty()) continue;
      if (factors[d].empty())
        view.unfactored.insert(view.unfactored.end(), columns.of.begin(), columns.of.end());
      int64_t left = columns.shards;
      for (size_t at = 0; at < factors[d].size() && (at == 0 || left > 1); ++at) {
        const int64_t size = rule.factors[factors[d][at]].size;
        const bool is_last = at + 1 == factors[d].size();
        const int64_t taken = is_last || size < 0 ? left : std::min(left, size);
        view.columns[factors[d][at]] = {columns.of, taken, columns.is_within || at > 0};
        left = (left + taken - 1) / taken;
      }
    }
  }

  /*!
   * \brief True if columns meet something that is sharded elsewhere over their axes. If these are
   * columns of a larger weight, and both have been multiplied before, the former is copied.
   * \param factor On which the columns are; the number of factors where they are on none.
   */
  bool Meets(const StatedDim& stated, size_t operand, size_t factor) {
    bool meets = false;
    for (size_t j = 0; j < views_.size(); ++j) {
      if (j == operand) continue;
      for (size_t g = 0; g < views_[j].solved.size(); ++g) {
        if (g == factor || !mesh::Overlaps(views_[j].solved[g], AxesOf(stated))) continue;
        const Columns& other = views_[j].columns[g];
        const bool any_weight = views_[operand].is_weight || views_[j].is_weight;
        // A tensor that has followed another part of these columns, as a cache, is no stranger; nor
        // is a bias to columns of which a kernel makes heads.
        const bool is_strange =
            (other.empty() || any_weight) && !Contains(views_[operand].columns[g].of, stated);
        meets = meets || is_strange;
        // A weight with a dimension for heads, and one for what is in a head, says what it wants.
        const bool is_matrix = stated.source->sharding.dims.size() <= 2;
        if (any_weight || !is_matrix) continue;
        const Source* larger = LargestOf(other.of);
        const Source* own = factor < views_[operand].columns.size()
                                ? LargestOf(views_[operand].columns[factor].of)
                                : stated.source;
        if (larger == nullptr || elements_.at(own) >= elements_.at(larger)) continue;
        meets = true;
        met_.emplace_back(stated, larger);
      }
    }
    return meets;
  }

  /*! \brief The largest of the tensors that together are a weight: the weight itself, not its bias
   * or scales. */
  const Source* LargestOf(const SmallVector<StatedDim, 1>& all) const {
    const Source* largest = nullptr;
    for (const StatedDim& each : all) {
      if (largest == nullptr || elements_.at(each.source) > elements_.at(largest))
        largest = each.source;
    }
    return largest;
  }

  static void Add(const StatedDim& stated, const Columns& from, Columns* to) {
    if (!Contains(to->of, stated)) to->of.push_back(stated);
    to->shards = std::max(to->shards, from.shards);
    to->is_within = to->is_within || from.is_within;
  }

  void Keep(const rules::FactorRule& rule, const rules::TensorFactors& factors,
            const std::vector<Columns>& kept, int slot, bool is_weight) {
    const mesh::Sharding& solved = program_.slots[slot].sharding;
    Tensor tensor{std::vector<Columns>(factors.size()), is_weight};
    bool any = false;
    for (size_t d = 0; d < factors.size(); ++d) {
      Columns& columns = tensor.dims[d];
      for (int f : factors[d]) {
        if (kept[f].empty()) break;
        const Columns in_front = columns;  // of the factors before this one
        for (const StatedDim& stated : kept[f].of) {
          // Columns gathered here are not there any more. But a part of a head cannot be kept, and
          // one that has made way for other columns will meet them.
          const bool is_cut = kept[f].is_within || kept[f].shards < mesh::NumShards(AxesOf(stated));
          const bool is_there = std::any_of(
              solved.dims.begin(), solved.dims.end(),
              [&](const AxisList& axes) { return mesh::Overlaps(axes, AxesOf(stated)); });
          if (!is_cut && !is_there) continue;
          Columns with = kept[f];
          with.shards *= in_front.empty() ? 1 : in_front.shards;
          with.is_within = f == factors[d][0] ? with.is_within : in_front.is_within;
          Add(stated, with, &columns);
        }
        if (rule.factors[f].size < 0 || kept[f].shards < rule.factors[f].size) break;
      }
      any = any || !columns.empty();
    }
    if (any) tensors_.emplace(slot, std::move(tensor));
  }

  const Program& program_;
  std::unordered_map<int, Tensor> tensors_;  // by slot
  std::unordered_set<int> computed_;         // slots that calls give
  std::unordered_map<const Source*, double> elements_;
  std::vector<View> views_;                               // of the link that is visited
  std::vector<Columns> kept_;                             // of its factors
  std::unordered_set<const Source*> inputs_;              // no weights
  std::vector<std::pair<StatedDim, const Source*>> met_;  // by a larger one, in program order
};

}  // namespace

std::vector<StatedDim> CopiedHeads(const Program& program) { return HeadFinder(program).Run(); }

}  // namespace distir::propagation
