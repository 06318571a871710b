// Writes a program as an optimisation problem: a way to compute each call, a sharding for each
// tensor.
#include "autosharding/model.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "rules/call/call_cost.h"
#include "support/error.h"

namespace distir::autosharding {

using autoshard::Choice;
using autoshard::kInfinite;
using mesh::Sharding;
using propagation::FunctionGraph;
using propagation::SlotInfo;

namespace {

// Seconds for a byte that a device holds: of ways that take equally long, the one that needs less.
constexpr double kPerByteHeld = 1e-18;

// A normalisation in shards has its statistics reduced one after the other, and reads what it
// normalises for each of them: between those of a root mean square (1, 0.5) and a softmax (2, 2).
constexpr double kStatisticsOfNorms = 1.5;
constexpr double kPassesOfNorms = 1.25;

bool HasStatistics(const rules::FactorRule& rule, const Way& way) {
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    const rules::DecomposedFactor* factor = rule.factors[f].decomposed();
    if (factor != nullptr && factor->exchanged == rules::Exchanged::kStatistics &&
        !way.factors[f].empty())
      return true;
  }
  return false;
}

/*! \brief True if a sharding is one that a source allows. */
bool Allows(const propagation::Source& source, const Sharding& sharding) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const mesh::AxisList& stated = source.sharding.dims[d];
    const bool fits =
        source.IsOpen(d) ? mesh::IsPrefix(stated, sharding.dims[d]) : stated == sharding.dims[d];
    if (!fits || mesh::Overlaps(source.replicated, sharding.dims[d])) return false;
  }
  return true;
}

Sharding WithoutPartial(Sharding sharding) {
  sharding.partial.clear();
  sharding.reduction = mesh::Reduction::kNone;
  return sharding;
}

}  // namespace

Model::Model(const FunctionGraph& main, const GraphOf& graph_of, const Works& works,
             const DeviceLimits& limits, Moves* moves, int root)
    : limits_(limits), moves_(*moves), root_(root) {
  Collect(main, graph_of);
  CountCalls(graph_of);
  NumberTimes(graphs_.at(&main).get(), graph_of);
  for (const FunctionGraph* graph : order_) {
    GraphNodes* nodes = graphs_.at(graph).get();
    AddCalls(nodes, works);
    FindNeeded(nodes);
    AddTensors(nodes);
    FindKernels(nodes);
    PriceCalls(nodes);
    AddEdges(nodes);
  }
  for (const FunctionGraph* graph : order_) AddCallEdges(Of(*graph), graph_of);
  RequireFinite();
  SetMemoryLimit(autoshard::kUnlimited);
  for (const FunctionGraph* graph : order_) AddMemory(Of(*graph));
}

/*! \brief The solver adds up whole numbers. */
void Model::RequireFinite() const {
  double ticks = 0;
  for (const autoshard::Node& node : problem_.nodes)
    ticks += static_cast<double>(*std::max_element(node.costs.begin(), node.costs.end()));
  for (const autoshard::Edge& edge : problem_.edges)
    ticks += static_cast<double>(*std::max_element(edge.costs.begin(), edge.costs.end()));
  DISTIR_REQUIRE(ticks < static_cast<double>(kInfinite), ValueError)
      << "one call of `" << order_.front()->name << "` may take " << ticks / kTicksPerSecond
      << " seconds on this cluster; automatic sharding adds up to a million";
}

/*! \brief Makes an entry for a graph and those that it calls, callers before callees. */
void Model::Collect(const FunctionGraph& graph, const GraphOf& graph_of) {
  if (graphs_.count(&graph) > 0) return;
  graphs_[&graph] = std::make_unique<GraphNodes>();
  graphs_[&graph]->graph = &graph;
  for (const propagation::CallSite& site : graph.calls) Collect(graph_of(site.callee), graph_of);
  order_.insert(order_.begin(), &graph);
}

void Model::CountCalls(const GraphOf& graph_of) {
  graphs_.at(order_.front())->count = 1;
  for (const FunctionGraph* graph : order_) {
    for (const propagation::CallSite& site : graph->calls)
      graphs_.at(&graph_of(site.callee))->count += graphs_.at(graph)->count;
  }
}

/*! \brief Numbers the calls of a graph; those of a function where it is called first. */
void Model::NumberTimes(GraphNodes* nodes, const GraphOf& graph_of) {
  const FunctionGraph& graph = *nodes->graph;
  nodes->calls.resize(graph.nodes.size());
  size_t next = 0;
  for (size_t i = 0; i <= graph.nodes.size(); ++i) {
    for (; next < graph.calls.size() && graph.calls[next].position == i; ++next) {
      GraphNodes* callee = graphs_.at(&graph_of(graph.calls[next].callee)).get();
      if (callee->calls.empty()) NumberTimes(callee, graph_of);
    }
    if (i < graph.nodes.size()) nodes->calls[i].time = num_times_++;
  }
  nodes->end = num_times_;
}

const NumberedWays& Model::Ways(const rules::FactorRule* rule) {
  auto [found, is_new] = ways_.try_emplace(rule);
  NumberedWays& known = found->second;
  if (!is_new) return known;
  known.ways = WaysOf(*rule, moves_.mesh());
  known.operands.resize(rule->operands.size());
  known.results.resize(rule->results.size());
  for (const Way& way : known.ways) {
    for (size_t o = 0; o < way.operands.size(); ++o)
      known.operands[o].push_back(moves_.Number(way.operands[o]));
    for (size_t r = 0; r < way.results.size(); ++r)
      known.results[r].push_back(moves_.Number(way.results[r]));
  }
  return known;
}

/*! \brief Marks what the results of the function depend on, since TVM leaves out the rest, and what
 * is computed of constants alone. */
void Model::FindNeeded(GraphNodes* nodes) {
  const FunctionGraph& graph = *nodes->graph;
  std::vector<bool> is_read(graph.slots.size(), false);
  const auto read = [&](const propagation::SlotList& slots) {
    for (int slot : slots) is_read[slot] = true;
  };
  read(graph.results);
  for (const propagation::CallSite& site : graph.calls) read(site.arguments);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const propagation::Node& node = graph.nodes[i];
    nodes->calls[i].is_needed = std::any_of(node.results.begin(), node.results.end(),
                                            [&](int slot) { return is_read[slot]; });
    if (nodes->calls[i].is_needed) read(node.operands);
  }
  std::vector<bool> is_folded(graph.slots.size(), false);
  for (size_t s = 0; s < graph.slots.size(); ++s) is_folded[s] = graph.slots[s].is_constant;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const propagation::Node& node = graph.nodes[i];
    if (!std::all_of(node.operands.begin(), node.operands.end(),
                     [&](int slot) { return is_folded[slot]; }))
      continue;
    nodes->calls[i].is_folded = true;
    for (int slot : node.results) is_folded[slot] = true;
  }
}

void Model::FindKernels(GraphNodes* nodes) {
  std::vector<Kernels::Call> calls;
  for (const CallNode& call : nodes->calls)
    calls.push_back({call.rule, &call.work, call.is_needed, call.is_folded});
  for (const Tensor& tensor : nodes->tensors) nodes->is_outside.push_back(tensor.is_outside);
  nodes->kernels.emplace(*nodes->graph, std::move(calls), nodes->is_outside, limits_, moves_,
                         &prices_);
}

/*! \brief Seconds of each way of a call, beside its part of kernels: those between its shards. */
const std::vector<double>& Model::SecondsBetweenShards(GraphNodes* nodes, size_t index) {
  const FunctionGraph& graph = *nodes->graph;
  const propagation::Node& node = graph.nodes[index];
  const CallNode& call = nodes->calls[index];
  Words key = {Address(call.rule)};
  for (const propagation::SlotList* slots : {&node.operands, &node.results}) {
    for (int slot : *slots) key.push_back(Bits(graph.slots[slot].bytes()));
  }
  auto [found, is_new] = between_shards_.try_emplace(std::move(key));
  std::vector<double>& all = found->second;
  if (!is_new) return all;
  rules::PricedTensors operands, results;
  for (int slot : node.operands)
    operands.Add(nullptr, graph.slots[slot].sizes, graph.slots[slot].bytes());
  for (int slot : node.results)
    results.Add(nullptr, graph.slots[slot].sizes, graph.slots[slot].bytes());
  for (size_t w = 0; w < call.rule->ways.size(); ++w) {
    const Way& way = call.rule->ways[w];
    double seconds = moves_.SecondsBetweenShards(*node.rule, operands, results, way.factors);
    if (HasStatistics(*node.rule, way)) {
      seconds *= kStatisticsOfNorms;
      seconds += kPassesOfNorms * nodes->kernels->SecondsToAccess(index, w);
    }
    all.push_back(seconds);
  }
  return all;
}

int64_t Model::Ticks(const GraphNodes& nodes, double seconds) const {
  return static_cast<int64_t>(std::llround(nodes.count * seconds * kTicksPerSecond));
}

void Model::AddCalls(GraphNodes* nodes, const Works& works) {
  const FunctionGraph& graph = *nodes->graph;
  for (const auto& [call, index] : graph.node_of_call) nodes->calls[index].work = works.Of(call);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    CallNode& call = nodes->calls[i];
    DISTIR_REQUIRE(graph.nodes[i].crossing == nullptr, ValueError)
        << "`" << graph.name << "` has a manual region; automatic sharding needs a program without";
    call.node = static_cast<int>(problem_.nodes.size());
    call.rule = &Ways(graph.nodes[i].rule);
    problem_.nodes.emplace_back();
  }
}

void Model::PriceCalls(GraphNodes* nodes) {
  for (size_t i = 0; i < nodes->calls.size(); ++i) {
    const CallNode& call = nodes->calls[i];
    const std::vector<double>& computing = nodes->kernels->SecondsOf(i);
    const std::vector<double>& between = SecondsBetweenShards(nodes, i);
    for (size_t w = 0; w < computing.size(); ++w) {
      const bool is_computed = call.is_needed && !(call.is_folded && w == 0);
      const double seconds = is_computed ? computing[w] + between[w] : 0;
      problem_.nodes[call.node].costs.push_back(Ticks(*nodes, seconds));
    }
  }
}

void Model::AddTensors(GraphNodes* nodes) {
  const FunctionGraph& graph = *nodes->graph;
  nodes->tensors.resize(graph.slots.size());
  std::vector<Tensor>& tensors = nodes->tensors;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const propagation::Node& node = graph.nodes[i];
    // Rules of other ranks say nothing of shardings, as that of a condition and its branches.
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const int slot = node.operands[o];
      if (node.rule->operands[o].size() != graph.slots[slot].sizes.size()) continue;
      tensors[slot].readers.push_back({i, o});
      tensors[slot].last_read = nodes->calls[i].time;
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      const int slot = node.results[r];
      if (node.rule->results[r].size() == graph.slots[slot].sizes.size())
        tensors[slot].makers.push_back({i, r});
    }
  }
  const auto keep = [&](const propagation::SlotList& slots) {
    for (int slot : slots) tensors[slot].is_kept = true;
  };
  for (int slot : graph.params) tensors[slot].is_outside = true;
  for (int slot : graph.results) tensors[slot].is_outside = true;
  for (const propagation::CallSite& site : graph.calls) {
    for (int slot : site.arguments) tensors[slot].is_outside = true;
    for (int slot : site.results) tensors[slot].is_outside = true;
  }
  keep(graph.params);
  if (nodes->graph != order_.front()) keep(graph.results);
  for (const propagation::CallSite& site : graph.calls) {
    keep(site.arguments);
    keep(site.results);
    for (int slot : site.arguments) tensors[slot].last_read = nodes->end;
  }
  for (int slot : graph.params) tensors[slot].last_read = num_times_;
  for (int slot : graph.results) tensors[slot].last_read = num_times_;
  for (const propagation::Source& source : graph.sources) {
    DISTIR_REQUIRE(source.root == root_, ValueError)
        << "`" << graph.slots[source.slot].name << "` in `" << graph.name
        << "` is annotated on another mesh than the one that is to be planned for";
    tensors[source.slot].is_kept = true;
    tensors[source.slot].stated = &source;
  }
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const propagation::Node& node = graph.nodes[i];
    if (!nodes->calls[i].work.is_view || node.operands.size() != 1) continue;
    for (int result : node.results) {  // lies where its operand does
      tensors[result].is_stored = false;
      int& last_read = tensors[node.operands[0]].last_read;
      last_read = std::max(last_read, tensors[result].last_read);
    }
  }
  for (size_t s = 0; s < tensors.size(); ++s) {
    Tensor& tensor = tensors[s];
    if (graph.slots[s].is_constant) {
      tensor.is_kept = false;
      continue;
    }
    if (tensor.makers.size() > 1 || tensor.readers.size() > 1) tensor.is_kept = true;
    if (!tensor.is_kept) continue;
    std::vector<int> shardings;
    const auto add = [&](const Sharding& sharding) {
      if (tensor.stated != nullptr && !Allows(*tensor.stated, sharding)) return;
      const int number = moves_.Number(sharding);
      if (std::find(shardings.begin(), shardings.end(), number) == shardings.end())
        shardings.push_back(number);
    };
    add(Sharding::Replicated(static_cast<int>(graph.slots[s].sizes.size())));
    if (tensor.stated != nullptr) add(tensor.stated->sharding);
    for (const Use& maker : tensor.makers) {
      for (const Way& way : nodes->calls[maker.call].rule->ways)
        add(WithoutPartial(way.results[maker.operand]));
    }
    for (const Use& reader : tensor.readers) {
      for (const Way& way : nodes->calls[reader.call].rule->ways) add(way.operands[reader.operand]);
    }
    TVM_FFI_ICHECK(!shardings.empty()) << "a tensor has no sharding";
    tensor.node = static_cast<int>(problem_.nodes.size());
    autoshard::Node& node = problem_.nodes.emplace_back();
    for (int each : shardings) {
      const double held =
          LocalBytes(graph.slots[s].sizes, graph.slots[s].bytes(), moves_.Sharding(each));
      node.costs.push_back(Ticks(*nodes, held * kPerByteHeld));
    }
    tensor.shardings = &*shardings_.insert(std::move(shardings)).first;
  }
}

const std::vector<double>& Model::SecondsBetween(const SlotInfo& info, const std::vector<int>& from,
                                                 const std::vector<int>& to) {
  Words key = {Address(&from), Address(&to), Bits(info.bytes())};
  key.insert(key.end(), info.sizes.begin(), info.sizes.end());
  auto [found, is_new] = seconds_.try_emplace(std::move(key));
  if (is_new) found->second = moves_.SecondsBetween(info.sizes, info.bytes(), from, to);
  return found->second;
}

void Model::AddEdges(GraphNodes* nodes) {
  const FunctionGraph& graph = *nodes->graph;
  Kernels& kernels = *nodes->kernels;
  for (size_t s = 0; s < nodes->tensors.size(); ++s) {
    const Tensor& tensor = nodes->tensors[s];
    const SlotInfo& info = graph.slots[s];
    const int slot = static_cast<int>(s);
    if (info.is_constant) continue;
    const auto add = [&](int from, const std::vector<int>& source, int to,
                         const std::vector<int>& target, const std::vector<double>* divided) {
      const std::vector<double>& seconds = SecondsBetween(info, source, target);
      autoshard::Edge& edge = problem_.edges.emplace_back();
      edge.from = from;
      edge.to = to;
      edge.costs.reserve(seconds.size());
      for (size_t i = 0; i < seconds.size(); ++i)
        edge.costs.push_back(Ticks(*nodes, seconds[i] + (divided == nullptr ? 0 : (*divided)[i])));
    };
    const auto call_of = [&](const Use& use) -> const CallNode& { return nodes->calls[use.call]; };
    const auto made = [&](const Use& maker) -> const std::vector<int>& {
      return call_of(maker).rule->results[maker.operand];
    };
    const auto needed = [&](const Use& reader) -> const std::vector<int>& {
      return call_of(reader).rule->operands[reader.operand];
    };
    const bool is_inner = kernels.IsInner(slot);
    if (tensor.node >= 0) {
      const std::vector<int>& held = *tensor.shardings;
      for (const Use& maker : tensor.makers) {
        if (!call_of(maker).is_needed) continue;
        add(call_of(maker).node, made(maker), tensor.node, held,
            is_inner ? &kernels.SecondsToDivideBehind(slot, held) : nullptr);
      }
      for (const Use& reader : tensor.readers) {
        if (!call_of(reader).is_needed) continue;
        add(tensor.node, held, call_of(reader).node, needed(reader),
            is_inner ? &kernels.SecondsToDivideBefore(slot, held, reader.call, reader.operand)
                     : nullptr);
      }
    } else if (!tensor.makers.empty() && !tensor.readers.empty() &&
               call_of(tensor.readers[0]).is_needed) {
      const Use& maker = tensor.makers[0];
      const Use& reader = tensor.readers[0];
      add(call_of(maker).node, made(maker), call_of(reader).node, needed(reader),
          is_inner ? &kernels.SecondsToDivide(slot) : nullptr);
    }
  }
}

/*! \brief Joins arguments to parameters, and results to what a caller gets. */
void Model::AddCallEdges(const GraphNodes& nodes, const GraphOf& graph_of) {
  const FunctionGraph& graph = *nodes.graph;
  for (const propagation::CallSite& site : graph.calls) {
    const GraphNodes& callee = Of(graph_of(site.callee));
    const auto join = [&](const propagation::SlotList& outside,
                          const propagation::SlotList& inside) {
      for (size_t i = 0; i < std::min(outside.size(), inside.size()); ++i) {
        const Tensor& from = nodes.tensors[outside[i]];
        const Tensor& to = callee.tensors[inside[i]];
        if (from.node < 0 || to.node < 0) continue;
        autoshard::Edge& edge = problem_.edges.emplace_back();
        edge.from = from.node;
        edge.to = to.node;
        for (double each : SecondsBetween(graph.slots[outside[i]], *from.shardings, *to.shardings))
          edge.costs.push_back(Ticks(nodes, each));
      }
    };
    join(site.arguments, callee.graph->params);
    join(site.results, callee.graph->results);
  }
}

void Model::AddMemory(const GraphNodes& nodes) {
  const FunctionGraph& graph = *nodes.graph;
  const bool is_main = &graph == order_.front();
  const std::set<int> params(graph.params.begin(), graph.params.end());
  for (size_t s = 0; s < nodes.tensors.size(); ++s) {
    const Tensor& tensor = nodes.tensors[s];
    const int slot = static_cast<int>(s);
    if (graph.slots[s].is_constant || !tensor.is_stored || nodes.kernels->IsInner(slot)) continue;
    if (params.count(slot) > 0) {
      if (is_main) AddHeld(nodes, slot, 0, num_times_);  // others are the caller's
    } else if (!tensor.makers.empty()) {
      const int begin = nodes.calls[tensor.makers[0].call].time;
      AddHeld(nodes, slot, begin, std::max(begin + 1, std::min(tensor.last_read + 1, num_times_)));
    }
  }
}

/*! \brief While a call makes or reads a tensor, it counts as this call has it, else as it is held.
 */
void Model::AddHeld(const GraphNodes& nodes, int slot, int begin, int end) {
  const Tensor& tensor = nodes.tensors[slot];
  const SlotInfo& info = nodes.graph->slots[slot];
  const auto bytes = [&](const Sharding& sharding) {
    return static_cast<int64_t>(std::ceil(LocalBytes(info.sizes, info.bytes(), sharding)));
  };
  const auto add = [&](const CallNode& call, const auto& sharding_of, int from, int to) {
    std::vector<int64_t> amounts;
    for (const Way& way : call.rule->ways) amounts.push_back(bytes(sharding_of(way)));
    problem_.nodes[call.node].usages.push_back({from, to, std::move(amounts)});
  };
  const auto hold = [&](int from, int to) {
    if (from >= to) return;
    if (tensor.node < 0) {
      const Use& maker = tensor.makers[0];
      return add(
          nodes.calls[maker.call],
          [&](const Way& way) -> const Sharding& { return way.results[maker.operand]; }, from, to);
    }
    std::vector<int64_t> amounts;
    for (int each : *tensor.shardings) amounts.push_back(bytes(moves_.Sharding(each)));
    problem_.nodes[tensor.node].usages.push_back({from, to, std::move(amounts)});
  };
  int next = begin;
  const auto use = [&](const Use& at, bool makes) {
    const CallNode& call = nodes.calls[at.call];
    if (call.time < next || call.time >= end) return;  // the same call once more
    hold(next, call.time);
    add(
        call,
        [&](const Way& way) -> const Sharding& {
          return makes ? way.results[at.operand] : way.operands[at.operand];
        },
        call.time, call.time + 1);
    next = call.time + 1;
  };
  for (const Use& maker : tensor.makers) use(maker, true);
  for (const Use& reader : tensor.readers) use(reader, false);
  hold(next, end);
}

const Way& Model::WayOf(const FunctionGraph& graph, size_t node, const Choice& choice) const {
  const CallNode& call = Of(graph).calls[node];
  return call.rule->ways[choice[call.node]];
}

std::optional<Sharding> Model::ShardingOf(const FunctionGraph& graph, int slot,
                                          const Choice& choice) const {
  const Tensor& tensor = Of(graph).tensors[slot];
  if (graph.slots[slot].is_constant) return std::nullopt;
  if (tensor.node >= 0) return moves_.Sharding((*tensor.shardings)[choice[tensor.node]]);
  if (tensor.makers.empty()) return std::nullopt;
  const Use& maker = tensor.makers[0];
  const Sharding& made = WayOf(graph, maker.call, choice).results[maker.operand];
  if (made.partial.empty() || tensor.readers.empty()) return WithoutPartial(made);
  const Use& reader = tensor.readers[0];
  return WayOf(graph, reader.call, choice).operands[reader.operand];
}

Model::LeastMemory Model::LeastPossible() const {
  std::vector<int64_t> change(num_times_ + 1, 0);
  for (const autoshard::Node& node : problem_.nodes) {
    for (const autoshard::Usage& usage : node.usages) {
      const int64_t least = *std::min_element(usage.amounts.begin(), usage.amounts.end());
      change[usage.begin] += least;
      change[usage.end] -= least;
    }
  }
  std::vector<std::pair<const FunctionGraph*, size_t>> at(num_times_);
  for (const FunctionGraph* graph : order_) {
    const GraphNodes& nodes = Of(*graph);
    for (size_t i = 0; i < nodes.calls.size(); ++i) at[nodes.calls[i].time] = {graph, i};
  }
  LeastMemory most;
  int64_t now = 0;
  for (int time = 0; time < num_times_; ++time) {
    now += change[time];
    if (now > most.bytes) most = {now, at[time].first, at[time].second};
  }
  return most;
}

std::vector<bool> Model::UsableAxes() const {
  std::vector<bool> usable(moves_.mesh().ndim(), false);
  for (const auto& [rule, known] : ways_) {
    for (const Way& way : known.ways) {
      for (const mesh::AxisList& axes : way.factors) {
        for (const mesh::AxisRef& axis : axes) usable[axis.axis] = true;
      }
    }
  }
  return usable;
}

}  // namespace distir::autosharding
