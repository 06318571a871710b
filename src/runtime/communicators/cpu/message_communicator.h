/*!
 * \file runtime/communicators/cpu/message_communicator.h
 * \brief Collectives between workers that share no address space, as messages.
 *
 * Large data goes in chunks. An all-reduce of a chunk has two rounds: each member gets its part
 * of the chunk from all others and reduces it, then sends the result to all of them. A small one,
 * or one of two members, has one round: everybody gets everything and reduces it for itself. A
 * reduction goes in group order either way, so results have the same bits as those of workers that
 * are threads.
 *
 * If all tensors of a large collective lie in memory that all members can read, members tell each
 * other where they lie, and work on them as threads do (direct_work.h).
 *
 * If the backend has a library with collectives of its own between hosts, the library may do the
 * collective (library_collectives.h).
 *
 * Every message carries the call that it belongs to; the receiver checks that it makes the same.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_MESSAGE_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_MESSAGE_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/cpu/memory_box.h"
#include "runtime/communicators/cpu/transport.h"
#include "runtime/communicators/library_collectives.h"

namespace distir::runtime::cpu {

class MessageCommunicator : public Communicator {
 public:
  /*! \param library Has collectives of its own between hosts; null if there is none. */
  MessageCommunicator(std::shared_ptr<Transport> transport, int rank, std::vector<int> device_ids,
                      std::unique_ptr<LibraryCollectives> library)
      : transport_(std::move(transport)),
        rank_(rank),
        device_ids_(std::move(device_ids)),
        wait_([transport = transport_.get()](const Describe& what,
                                             const std::function<bool()>& ready) {
          transport->WaitFor(what, ready);
        }),
        library_(std::move(library)) {}

  void Join(const std::string& address) final;
  void OpenPartition(const std::vector<std::vector<int>>& groups) final;
  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final;
  bool PrefersNewTensors() const final { return true; }
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) final {
    return transport_->NewTensor(shape, dtype);
  }
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final;
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final;
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final;
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final;
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final {
    CopySlice(group, x, dim, out);
  }
  int64_t bytes_to_hosts() const final { return transport_->bytes_to_hosts() + library_bytes_; }
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;

 private:
  class Round;
  class Conversation;

  template <typename MakeWork>
  bool MeetDirectly(Group* group, const char* operation, TensorView x, TensorView out,
                    int64_t argument0, int64_t argument1, bool writes_to_others,
                    MakeWork make_work);
  template <typename MakePacked>
  bool ByLibrary(Group* group, const char* operation, TensorView x, const LibraryCall& call,
                 int64_t argument0, int64_t argument1, MakePacked make_packed);
  void SendBox(const TransferPlan& plan, int peer, const MemoryBox& box);
  void ReceiveBox(const TransferPlan& plan, int peer, const MemoryBox& box);

  const std::shared_ptr<Transport> transport_;
  const int rank_;
  const std::vector<int> device_ids_;
  const WaitUntil wait_;
  const std::unique_ptr<LibraryCollectives> library_;
  int64_t library_bytes_ =
      0;  // what its collectives send at least, as it does not say what they do
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_MESSAGE_COMMUNICATOR_H_
