// Sends messages between hosts through a backend's message carrier.
#include "runtime/communicators/cpu/processes/carried_peers.h"

#include <utility>

namespace distir::runtime::cpu {

namespace {

char* Carried(Block* block) { return reinterpret_cast<char*>(&block->header); }

// Of the block, what is before and what is within a message without its bytes.
int64_t HeaderOffset() {
  static Block block;
  return Carried(&block) - reinterpret_cast<char*>(&block);
}
int64_t HeaderBytes() { return static_cast<int64_t>(sizeof(Block)) - HeaderOffset(); }

}  // namespace

CarriedPeers::CarriedPeers(std::shared_ptr<MessageCarrier> carrier, std::set<int> neighbours,
                           Room room, std::function<void()> wake)
    : neighbours_(std::move(neighbours)),
      room_(room),
      wake_(std::move(wake)),
      carrier_(std::move(carrier)) {
  carrier_->Receive(
      {[this](int rank, int64_t num_bytes) { return Begin(rank, num_bytes); },
       [this](int rank, char* bytes, int64_t num_bytes) { End(rank, bytes, num_bytes); }});
}

CarriedPeers::~CarriedPeers() {
  for (const auto& [rank, block] : arrived_) FreeBlock(block);
}

void CarriedPeers::Send(int rank, Block* block, int64_t num_bytes) {
  carrier_->Send(rank, Carried(block), HeaderBytes() + num_bytes, &block->num_readers);
}

char* CarriedPeers::Begin(int rank, int64_t num_bytes) {
  const int64_t size = num_bytes - HeaderBytes();
  if (size < 0 || size > kLongestMessage) {
    damaged_.store(rank, std::memory_order_seq_cst);
    return nullptr;
  }
  if (!room_.Take(size)) {
    flooding_.store(rank, std::memory_order_seq_cst);
    return nullptr;
  }
  return Carried(NewBlock(size));
}

void CarriedPeers::End(int rank, char* bytes, int64_t num_bytes) {
  Block* block = reinterpret_cast<Block*>(bytes - HeaderOffset());
  const int64_t size = num_bytes - HeaderBytes();
  if (block->header.num_bytes != size || !block->header.IsValid(kLongestMessage)) {
    FreeBlock(block);
    damaged_.store(rank, std::memory_order_seq_cst);
  } else {
    const std::lock_guard<std::mutex> lock(mutex_);
    arrived_.emplace_back(rank, block);
    anything_arrived_.store(true, std::memory_order_seq_cst);
  }
  wake_();
}

std::vector<std::pair<int, Block*>> CarriedPeers::TakeArrived() {
  std::vector<std::pair<int, Block*>> taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  taken.swap(arrived_);
  anything_arrived_.store(false, std::memory_order_seq_cst);
  return taken;
}

int CarriedPeers::lost() const {
  const int damaged = damaged_.load(std::memory_order_seq_cst);
  return damaged >= 0 ? damaged : carrier_->lost();
}

}  // namespace distir::runtime::cpu
