/*!
 * \file runtime/communicators/cpu/hierarchical_communicator.h
 * \brief Hierarchical collectives of groups on several hosts: steps within each host, and the least
 * traffic between hosts.
 *
 * A group of h hosts with m members each, host by host, is h groups within hosts and m across them,
 * of the members with the same place in their host:
 *
 *   all-reduce      reduce-scatter within, all-reduce across, all-gather within
 *   all-gather      all-gather across, all-gather within
 *   reduce-scatter  reduce-scatter within, reduce-scatter across
 *
 * So of B bytes per member each host sends 2 (h-1)/h B for an all-reduce, (h-1) m B for an
 * all-gather of blocks of B, and (h-1)/h B for a reduce-scatter, which is the least there is. If
 * each member sent to each member of another host, it would be m times as much.
 *
 * So sums of floats are added in another order, which depends on the hosts alone: results are the
 * same on all members and in every run. If bits have to be those of one host, and for floats of
 * 16 and 8 bits, which are rounded once, a reduction does not go this way but like that of a group
 * which is not host by host.
 *
 * Example: ranks 0..3 on two hosts of two: within [0, 1] and [2, 3], across [0, 2] and [1, 3].
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_HIERARCHICAL_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_HIERARCHICAL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"

namespace distir::runtime::cpu {

class HierarchicalCommunicator : public Communicator {
 public:
  /*!
   * \param flat Has the collectives that these are made of.
   * \param host_of By rank the host of a worker.
   * \param bitwise True if sums keep the order of the group.
   */
  HierarchicalCommunicator(std::unique_ptr<Communicator> flat, std::vector<int> host_of,
                           bool bitwise)
      : flat_(std::move(flat)), host_of_(std::move(host_of)), bitwise_(bitwise) {}

  std::string MakeAddress() final { return flat_->MakeAddress(); }
  void Join(const std::string& address) final { flat_->Join(address); }
  void OpenPartition(const std::vector<std::vector<int>>& groups) final;
  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final;
  bool PrefersNewTensors() const final { return flat_->PrefersNewTensors(); }
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) final {
    return flat_->NewTensor(shape, dtype);
  }
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final;
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final;
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final;
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final;
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final {
    flat_->Slice(group, x, dim, out);
  }
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;
  int64_t bytes_to_hosts() const final { return flat_->bytes_to_hosts(); }

 private:
  tvm::ffi::Tensor Scratch(const std::vector<int64_t>& shape, DLDataType dtype);
  bool MayReorder(DLDataType dtype, ReduceKind kind) const;

  const std::unique_ptr<Communicator> flat_;
  const std::vector<int> host_of_;
  const bool bitwise_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_HIERARCHICAL_COMMUNICATOR_H_
