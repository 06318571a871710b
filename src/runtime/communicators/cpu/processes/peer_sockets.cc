// Sends and receives messages over connected sockets, with a thread of its own.
#include "runtime/communicators/cpu/processes/peer_sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <type_traits>

#include "runtime/tls/tls_stream.h"
#include "support/descriptor.h"

namespace distir::runtime::cpu {

namespace {

// A message is a header as it lies in memory, and bytes: hosts have the same version and byte
// order.
static_assert(std::is_trivially_copyable_v<MessageHeader>);
static_assert(alignof(Block) <= 64);

// The most that one record of TLS has.
constexpr size_t kRecordBytes = size_t{1} << 14;
static_assert(sizeof(MessageHeader) < kRecordBytes);

// Bytes read of one peer before the others have their turn.
constexpr size_t kTurnBytes = size_t{4} << 20;

void Wake(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event, &one, sizeof(one));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

struct PeerSockets::Connection {
  Connection(int rank, const Peer& peer)
      : rank(rank), descriptor(peer.descriptor), own(peer.descriptor) {
    if (peer.key.empty()) return;
    tls = std::make_unique<tls::TlsStream>(std::move(own), peer.connecting, peer.key);
    staged.reserve(kRecordBytes);
  }
  ~Connection() { FreeBlock(block); }

  // As recv and sendmsg of two parts.
  ssize_t Receive(char* data, size_t size);
  ssize_t Send(iovec (&parts)[2]);

  // Events that reading and writing wait for, if there is anything to be read or written.
  int16_t waited_for() const {
    const int reading = read_waits_to_write ? POLLIN | POLLOUT : POLLIN;
    const int writing = unsent.empty() || write_waits_to_read ? 0 : POLLOUT;
    return static_cast<int16_t>(reading | writing);
  }

  const int rank;
  const int descriptor;
  // Either of them has the descriptor.
  support::Descriptor own;
  std::unique_ptr<tls::TlsStream> tls;  // nullptr: as it is
  // Of the thread: the message that is being read.
  MessageHeader header;
  Block* block = nullptr;   // once the header is complete
  size_t num_read = 0;      // of the header, then of the bytes
  bool unfinished = false;  // there may be more to be read, which poll does not see
  bool read_waits_to_write = false;
  bool ended = false;
  std::atomic<uint64_t> unread{0};  // room that its messages take
  // Queued writes, oldest first.
  std::mutex mutex;
  std::deque<std::pair<Block*, size_t>> unsent;  // each with the number of its bytes
  size_t num_written = 0;                        // of the first one
  bool write_waits_to_read = false;
  std::vector<char> staged;  // the begin of a message as one record
  bool broken = false;
};

ssize_t PeerSockets::Connection::Receive(char* data, size_t size) {
  if (tls == nullptr) return recv(descriptor, data, size, 0);
  const ssize_t count = tls->Read(data, size);
  read_waits_to_write = count == tls::kWaitsWrite;
  if (count >= 0) return count;
  errno = EAGAIN;
  return -1;
}

// With TLS the rest of a header shares a record with what follows it. Unsent bytes are staged
// the same way again, as TLS wants it.
ssize_t PeerSockets::Connection::Send(iovec (&parts)[2]) {
  if (tls == nullptr) {
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return sendmsg(descriptor, &message, MSG_NOSIGNAL);
  }
  const char* header = static_cast<const char*>(parts[0].iov_base);
  const char* body = static_cast<const char*>(parts[1].iov_base);
  ssize_t count;
  if (parts[0].iov_len == 0) {
    count = tls->Write(body, parts[1].iov_len);
  } else {
    const size_t rest = std::min(parts[1].iov_len, kRecordBytes - parts[0].iov_len);
    staged.assign(header, header + parts[0].iov_len);
    staged.insert(staged.end(), body, body + rest);
    count = tls->Write(staged.data(), staged.size());
  }
  write_waits_to_read = count == tls::kWaitsRead;
  if (count > 0) return count;
  errno = count == tls::kEnded ? EPIPE : EAGAIN;
  return -1;
}

PeerSockets::PeerSockets(const std::vector<Peer>& peers, Room room, std::function<void()> wake)
    : room_(room), wake_(std::move(wake)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) TVM_FFI_THROW(RuntimeError) << "cannot make an eventfd: " << strerror(errno);
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    connections_.emplace_back();
    const int descriptor = peers[rank].descriptor;
    if (descriptor < 0) continue;
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    connections_.back() = std::make_unique<Connection>(static_cast<int>(rank), peers[rank]);
  }
  thread_ = std::thread([this] { Run(); });
}

PeerSockets::~PeerSockets() {
  stopping_.store(true);
  Wake(event_);
  thread_.join();
  close(event_);
  for (const auto& [rank, block] : arrived_) FreeBlock(block);
}

void PeerSockets::Send(int rank, Block* block, int64_t num_bytes) {
  Connection* connection = connections_[rank].get();
  std::lock_guard<std::mutex> lock(connection->mutex);
  connection->unsent.emplace_back(block, static_cast<size_t>(num_bytes));
  if (connection->unsent.size() == 1 && !Write(connection)) Wake(event_);
}

// Writes what the socket takes; whether that is all. The caller holds the connection's mutex.
bool PeerSockets::Write(Connection* connection) {
  std::deque<std::pair<Block*, size_t>>& unsent = connection->unsent;
  while (!unsent.empty()) {
    const auto [block, num_bytes] = unsent.front();
    const size_t total = sizeof(MessageHeader) + num_bytes;
    if (!connection->broken) {
      const size_t done = connection->num_written;
      const size_t body_done = done > sizeof(MessageHeader) ? done - sizeof(MessageHeader) : 0;
      const size_t header_done = done - body_done;
      iovec parts[2] = {{reinterpret_cast<char*>(&block->header) + header_done,
                         sizeof(MessageHeader) - header_done},
                        {block->bytes() + body_done, num_bytes - body_done}};
      const ssize_t sent = connection->Send(parts);
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
  connection->unfinished = false;
  for (size_t turn = 0; turn < kTurnBytes;) {
    Block*& block = connection->block;
    const size_t size =
        block == nullptr ? sizeof(MessageHeader) : static_cast<size_t>(block->header.num_bytes);
    char* target = block == nullptr ? reinterpret_cast<char*>(&connection->header) : block->bytes();
    if (connection->num_read < size) {
      const ssize_t count =
          connection->Receive(target + connection->num_read, size - connection->num_read);
      if (count < 0) return WouldBlock();
      if (count == 0) return false;
      turn += static_cast<size_t>(count);
      connection->num_read += static_cast<size_t>(count);
      if (connection->num_read < size) continue;
    }
    connection->num_read = 0;
    if (block == nullptr) {
      if (!connection->header.IsValid(kLongestMessage)) return false;
      if (!TakeRoom(connection, connection->header.num_bytes)) return false;
      block = NewBlock(connection->header.num_bytes);
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
  connection->unfinished = true;
  return true;
}

bool PeerSockets::TakeRoom(Connection* connection, int64_t num_bytes) {
  connection->unread.fetch_add(Room::SizeOf(num_bytes), std::memory_order_relaxed);
  if (room_.Take(num_bytes)) return true;
  int most = connection->rank;
  for (const std::unique_ptr<Connection>& each : connections_) {
    if (each != nullptr && each->unread > connections_[most]->unread) most = each->rank;
  }
  flooding_.store(most, std::memory_order_seq_cst);
  return false;
}

void PeerSockets::GiveBack(int rank, int64_t num_bytes) {
  connections_[rank]->unread.fetch_sub(Room::SizeOf(num_bytes), std::memory_order_relaxed);
  room_.GiveBack(num_bytes);
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

void PeerSockets::Serve(Connection* connection, bool writable, bool readable) {
  // TLS may have to read before it writes, and the other way round.
  const bool both = connection->tls != nullptr;
  if ((readable || both) && !Read(connection)) {
    End(connection);
    return;
  }
  if (!writable && !both) return;
  std::lock_guard<std::mutex> lock(connection->mutex);
  Write(connection);
}

void PeerSockets::Run() {
  for (const std::unique_ptr<Connection>& connection : connections_) {
    if (connection != nullptr && connection->tls != nullptr) Serve(connection.get(), true, true);
  }
  std::vector<pollfd> watched;
  std::vector<Connection*> of_watched;
  while (true) {
    watched.assign(1, {event_, POLLIN, 0});
    of_watched.assign(1, nullptr);
    bool unfinished = false;
    for (const std::unique_ptr<Connection>& connection : connections_) {
      if (connection == nullptr || connection->ended) continue;
      std::lock_guard<std::mutex> lock(connection->mutex);
      watched.push_back({connection->descriptor, connection->waited_for(), 0});
      unfinished |= connection->unfinished;
      of_watched.push_back(connection.get());
    }
    if (poll(watched.data(), watched.size(), unfinished ? 0 : -1) < 0) continue;  // interrupted
    if (stopping_.load()) return;
    if (watched[0].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t size = read(event_, &count, sizeof(count));
    }
    for (size_t i = 1; i < watched.size(); ++i) {
      const bool writable = (watched[i].revents & POLLOUT) != 0;
      const bool readable = (watched[i].revents & ~POLLOUT) != 0 || of_watched[i]->unfinished;
      if (writable || readable) Serve(of_watched[i], writable, readable);
    }
  }
}

}  // namespace distir::runtime::cpu
