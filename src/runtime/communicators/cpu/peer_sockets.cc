#include "runtime/communicators/cpu/peer_sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <type_traits>

namespace distir::runtime::cpu {

namespace {

// A message is a header as it lies in memory, and bytes: hosts have the same version and byte
// order.
static_assert(std::is_trivially_copyable_v<MessageHeader>);
static_assert(alignof(Block) <= 64);

// What no sender puts into one message; a header that claims more is not one.
constexpr int64_t kLongestMessage = int64_t{1} << 30;

// What is read of one peer before the others have their turn.
constexpr size_t kTurnBytes = size_t{4} << 20;

void Ring(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof(one));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

struct PeerSockets::Connection {
  Connection(int rank, int descriptor) : rank(rank), descriptor(descriptor) {}
  ~Connection() {
    FreeBlock(block);
    close(descriptor);
  }

  const int rank;
  const int descriptor;
  // Of the thread: the message that is being read.
  MessageHeader header;
  Block* block = nullptr;  // once the header is complete
  size_t num_read = 0;     // of the header, then of the bytes
  bool ended = false;
  // What is written, oldest first.
  std::mutex mutex;
  std::deque<Block*> unsent;
  size_t num_written = 0;  // of the first one
  bool broken = false;
};

PeerSockets::PeerSockets(const std::vector<int>& descriptors, std::function<void()> wake)
    : wake_(std::move(wake)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) TVM_FFI_THROW(RuntimeError) << "can not make an eventfd: " << strerror(errno);
  for (size_t rank = 0; rank < descriptors.size(); ++rank) {
    connections_.emplace_back();
    if (descriptors[rank] < 0) continue;
    fcntl(descriptors[rank], F_SETFL, fcntl(descriptors[rank], F_GETFL) | O_NONBLOCK);
    connections_.back() = std::make_unique<Connection>(static_cast<int>(rank), descriptors[rank]);
  }
  thread_ = std::thread([this] { Run(); });
}

PeerSockets::~PeerSockets() {
  stopping_.store(true);
  Ring(event_);
  thread_.join();
  close(event_);
  for (const auto& [rank, block] : arrived_) FreeBlock(block);
}

void PeerSockets::Send(int rank, Block* block) {
  Connection* connection = connections_[rank].get();
  std::lock_guard<std::mutex> lock(connection->mutex);
  connection->unsent.push_back(block);
  if (connection->unsent.size() == 1 && !Write(connection)) Ring(event_);
}

// Writes what the socket takes; whether that is all. The caller holds the connection's mutex.
bool PeerSockets::Write(Connection* connection) {
  std::deque<Block*>& unsent = connection->unsent;
  while (!unsent.empty()) {
    Block* block = unsent.front();
    const size_t total = sizeof(MessageHeader) + static_cast<size_t>(block->header.num_bytes);
    if (!connection->broken) {
      const size_t done = connection->num_written;
      const size_t body_done = done > sizeof(MessageHeader) ? done - sizeof(MessageHeader) : 0;
      const size_t header_done = done - body_done;
      iovec parts[2] = {
          {reinterpret_cast<char*>(&block->header) + header_done,
           sizeof(MessageHeader) - header_done},
          {block->bytes() + body_done, static_cast<size_t>(block->header.num_bytes) - body_done}};
      msghdr message{};
      message.msg_iov = parts;
      message.msg_iovlen = 2;
      const ssize_t sent = sendmsg(connection->descriptor, &message, MSG_NOSIGNAL);
      if (sent < 0 && WouldBlock()) return false;
      if (sent < 0) {
        connection->broken = true;  // the thread finds out, too: reading fails as well
      } else {
        connection->num_written += static_cast<size_t>(sent);
        if (connection->num_written < total) continue;
      }
    }
    unsent.pop_front();
    connection->num_written = 0;
    block->num_readers.fetch_sub(1, std::memory_order_release);
  }
  return true;
}

// Reads what has arrived; false at the end of the stream.
bool PeerSockets::Read(Connection* connection) {
  for (size_t turn = 0; turn < kTurnBytes;) {
    Block*& block = connection->block;
    const size_t size =
        block == nullptr ? sizeof(MessageHeader) : static_cast<size_t>(block->header.num_bytes);
    char* target = block == nullptr ? reinterpret_cast<char*>(&connection->header) : block->bytes();
    if (connection->num_read < size) {
      const ssize_t count = recv(connection->descriptor, target + connection->num_read,
                                 size - connection->num_read, 0);
      if (count < 0) return WouldBlock();
      if (count == 0) return false;
      turn += static_cast<size_t>(count);
      connection->num_read += static_cast<size_t>(count);
      if (connection->num_read < size) continue;
    }
    connection->num_read = 0;
    if (block == nullptr) {
      const int64_t num_bytes = connection->header.num_bytes;
      if (num_bytes < 0 || num_bytes > kLongestMessage) return false;
      block = NewBlock(num_bytes);
      block->header = connection->header;
      continue;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      arrived_.emplace_back(connection->rank, block);
      anything_arrived_.store(true, std::memory_order_seq_cst);
    }
    block = nullptr;
    wake_();
  }
  return true;
}

std::vector<std::pair<int, Block*>> PeerSockets::TakeArrived() {
  std::vector<std::pair<int, Block*>> taken;
  std::lock_guard<std::mutex> lock(mutex_);
  taken.swap(arrived_);
  anything_arrived_.store(false, std::memory_order_seq_cst);
  return taken;
}

void PeerSockets::End(Connection* connection) {
  connection->ended = true;
  {
    std::lock_guard<std::mutex> lock(connection->mutex);
    connection->broken = true;
    Write(connection);  // counts down what nobody will read
  }
  lost_.store(connection->rank, std::memory_order_seq_cst);
  wake_();
}

void PeerSockets::Run() {
  std::vector<pollfd> watched;
  std::vector<Connection*> of_watched;
  while (true) {
    watched.assign(1, {event_, POLLIN, 0});
    of_watched.assign(1, nullptr);
    for (const std::unique_ptr<Connection>& connection : connections_) {
      if (connection == nullptr || connection->ended) continue;
      std::lock_guard<std::mutex> lock(connection->mutex);
      const int write = connection->unsent.empty() ? 0 : POLLOUT;
      watched.push_back({connection->descriptor, static_cast<int16_t>(POLLIN | write), 0});
      of_watched.push_back(connection.get());
    }
    if (poll(watched.data(), watched.size(), -1) < 0) continue;  // interrupted
    if (stopping_.load()) return;
    if (watched[0].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t size = read(event_, &count, sizeof(count));
    }
    for (size_t i = 1; i < watched.size(); ++i) {
      if ((watched[i].revents & POLLOUT) != 0) {
        std::lock_guard<std::mutex> lock(of_watched[i]->mutex);
        Write(of_watched[i]);
      }
      const bool readable = (watched[i].revents & ~POLLOUT) != 0;
      if (readable && !Read(of_watched[i])) End(of_watched[i]);
    }
  }
}

}  // namespace distir::runtime::cpu
