/*!
 * \file autoshard/graph.h
 * \brief The nodes and edges of a problem as flat arrays of floats, for message passing and local
 * search.
 */
#ifndef DISTIR_AUTOSHARD_GRAPH_H_
#define DISTIR_AUTOSHARD_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autoshard/problem.h"

namespace distir::autoshard {

/*! \brief An edge, as one of its nodes sees it. */
struct Arc {
  int32_t other;
  int32_t edge;
  /*! \brief Starts of the messages to this node, and to the other one. */
  size_t mine;
  size_t others;
  /*! \brief Costs: a row for each strategy of the other node, a column for each of this one. */
  const double* rows;
};

/*! \brief Arrays of a problem; forbidden costs are infinite. */
class Graph {
 public:
  explicit Graph(const Problem& problem);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  int32_t size() const { return static_cast<int32_t>(first_.size()) - 1; }
  int32_t times() const { return static_cast<int32_t>(limits_.size()); }
  /*! \brief Strategies of all nodes. */
  size_t strategies() const { return costs_.size(); }
  /*! \brief Entries of all messages: two per edge. */
  size_t messages() const { return messages_; }
  /*! \brief Costs and amounts of memory that one visit of all nodes reads. */
  size_t work() const { return work_; }
  int32_t SizeOf(int32_t v) const { return static_cast<int32_t>(first_[v + 1] - first_[v]); }
  /*! \brief Start of the strategies of a node among those of all nodes. */
  size_t First(int32_t v) const { return first_[v]; }
  const double* CostsOf(int32_t v) const { return costs_.data() + first_[v]; }
  const std::vector<Arc>& ArcsOf(int32_t v) const { return arcs_[v]; }
  const std::vector<Usage>& UsagesOf(int32_t v) const { return problem_.nodes[v].usages; }
  const std::vector<int64_t>& limits() const { return limits_; }
  double constant() const { return static_cast<double>(problem_.constant); }
  const Problem& problem() const { return problem_; }

 private:
  const Problem& problem_;
  std::vector<size_t> first_;
  std::vector<double> costs_;
  std::vector<double> entries_;
  std::vector<std::vector<Arc>> arcs_;
  const std::vector<int64_t>& limits_;
  size_t messages_ = 0;
  size_t work_ = 0;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_GRAPH_H_
