/*!
 * \file tests/gpu/nccl_on_host.cc
 * \brief What distir_ext uses of NCCL, on host memory; ranks are threads or processes of one host.
 *
 * A communicator is a directory, whose path is its unique id; ranks put files into it and look for
 * those of others:
 *
 *   i.<rank>                       the rank is there (which GPU of which host it has)
 *   c<n>.<rank>                    what it brings to the n-th collective
 *   p<source>-<target>.<n>         the n-th message of a pair; the receiver removes it
 *   s<n>.<rank>, s<n>-<color>/     color and key in the n-th split, and what came of it
 *   d.<rank>                       the rank has left; the last one removes the directory
 *
 *   k.<rank>, k<source>-<target>.<rank>   the rank connects for its first collective, or message
 *
 * Collectives meet in the order in which they are enqueued on their communicator; sends and
 * receives are matched per pair of ranks, and those of a group make progress together. As with
 * NCCL, two ranks cannot have one GPU of one host (NCCL_HOSTID says which host a process is).
 *
 * What NCCL does to those who call it wrongly, or too early, is here as well:
 *  - the first operation of a communicator, and the first message of a pair, connects: the call
 *    waits on the host until all ranks have come;
 *  - ncclCommAbort tells the communicator to end, waits for all that its streams have before its
 *    own last operation, and frees it; in a group all of them are told before any is waited for.
 *    ncclCommRevoke does the same without freeing (from NCCL 2.28);
 *  - communicators that were split from one with splitShare have one flag that ends them, and no
 *    memory of their own; others have NCCL_ON_HOST_BUFFER bytes of their device (1 MiB);
 *  - to free a communicator while a call is inside it, or to use it afterwards, is reported as
 *    misuse, as is a call with another current device;
 *  - it enables no peer's memory for kernels: what it needs it maps for itself, as NCCL does since
 *    2.19 (cuMem), so that a kernel that touches memory of another GPU breaks its own;
 *  - float16, bfloat16 and float8 are rounded after each addition, and means multiply first.
 *
 * Directories are made in CUDA_ON_HOST_FOLDER, /dev/shm if it is not set. NCCL_ON_HOST_VERSION is
 * the version (23203).
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "on_host.h"
#include "reduction_on_host.h"
#include "runtime/communicators/nccl/abi.h"

namespace {

using namespace distir::runtime;
using namespace distir::runtime::nccl;
using on_host::BytesOf;
using on_host::Faulty;
using on_host::Reduce;

constexpr int kUnhandledCudaError = 1;
constexpr int kSystemError = 2;
constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;

// Ranks that do not come to a meeting would be waited for by a thread that nobody ends.
constexpr std::chrono::seconds kMeetingLimit{60};

// Which NCCL has ncclCommRevoke.
constexpr int kFirstWithRevoke = 22800;

int Version() {
  static const int version = std::stoi(on_host::Environment("NCCL_ON_HOST_VERSION", "23203"));
  return version;
}

// Files ---------------------------------------------------------------------------------------

/*! \brief Writes a file that appears as a whole. */
bool WriteFile(const std::string& path, const char* data, size_t bytes) {
  const std::string unfinished = path + "~";
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0) return false;
  for (size_t done = 0; done < bytes;) {
    const ssize_t written = write(file, data + done, bytes - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  close(file);
  return rename(unfinished.c_str(), path.c_str()) == 0;
}

bool WriteFile(const std::string& path, const std::string& text) {
  return WriteFile(path, text.data(), text.size());
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string content(file ? static_cast<size_t>(file.tellg()) : 0, '\0');
  file.seekg(0);
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  return content;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

/*! \brief Looks until something is ready; whether it was before `stopped`. */
template <typename Ready, typename Stopped>
bool LookUntil(Ready ready, Stopped stopped) {
  for (int looks = 0; !ready(); ++looks) {
    if (stopped()) return false;
    if (looks < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(looks, 1000)));
    }
  }
  return true;
}

// Communicators ------------------------------------------------------------------------------

/*! \brief What communicators have in common that share resources: when they end, and their work. */
struct Family {
  std::atomic<bool> aborted{false};
  std::atomic<int> num_members{0};
  std::mutex mutex;
  std::map<on_host::Queue*, int64_t> last;  // work of theirs

  void WaitForWork() {
    std::map<on_host::Queue*, int64_t> numbers;
    {
      std::lock_guard<std::mutex> lock(mutex);
      numbers = last;
    }
    for (const auto& [queue, number] : numbers) queue->Wait(number);
  }
};

struct Communicator {
  std::string directory;
  int size;
  int rank;
  int device;
  int split_share;
  std::shared_ptr<Family> family;
  int64_t own_bytes = 0;
  int64_t num_collectives = 0;
  int64_t num_splits = 0;
  std::map<int, int64_t> num_sent{};
  std::map<int, int64_t> num_received{};
  bool connected = false;
  std::set<std::string> connected_pairs{};
  std::atomic<int> num_inside{0};
  std::atomic<bool> freed{false};
  std::atomic<bool> revoked{false};
  std::atomic<int> error{kNcclSuccess};

  bool aborted() const { return family->aborted || revoked; }

  std::string File(const std::string& name, int owner) const {
    return directory + "/" + name + "." + std::to_string(owner);
  }

  template <typename Ready>
  bool Wait(Ready ready) {
    return LookUntil(ready, [this] { return aborted(); }) && !aborted();
  }

  /*! \brief Brings a file, and waits for those of other ranks. */
  template <typename Stopped>
  bool Meet(const std::string& name, const char* data, size_t bytes, const std::vector<int>& others,
            Stopped stopped) {
    if (!WriteFile(File(name, rank), data, bytes)) return false;
    for (int other : others)
      if (!LookUntil([&] { return Exists(File(name, other)); }, stopped)) return false;
    return true;
  }

  std::vector<int> Everybody() const {
    std::vector<int> all;
    for (int other = 0; other < size; ++other) all.push_back(other);
    return all;
  }

  /*! \brief As Meet, on the host and for a limited time. */
  bool MeetOnHost(const std::string& name, const std::string& text,
                  const std::vector<int>& others) {
    const auto limit = std::chrono::steady_clock::now() + kMeetingLimit;
    return Meet(name, text.data(), text.size(), others, [&] {
      return aborted() || !Exists(directory) || std::chrono::steady_clock::now() > limit;
    });
  }

  /*! \brief Waits, within the call, until all ranks have come to their first collective. */
  bool Connect() {
    if (connected || size == 1) return true;
    if (Faulty("stuck connection") && rank != 0)
      LookUntil([] { return false; }, [this] { return aborted(); });
    connected = !aborted() && MeetOnHost("k", "", Everybody());
    return connected;
  }

  /*! \brief Whether the operation that begins is to go wrong. */
  bool Fails() {
    if (Faulty("illegal address")) on_host::Break(device);
    if (on_host::StickyError(device) != 0) return true;
    if (Faulty("async error")) error = kRemoteError;
    const bool fails = Faulty("async error") || Faulty("stall");
    while (fails && !aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return fails;
  }

  void Leave() {
    WriteFile(File("d", rank), "");
    for (int other = 0; other < size; ++other)
      if (!Exists(File("d", other))) return;
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }

  void Free() {
    if (freed.exchange(true)) return on_host::Misused("a communicator is freed twice");
    if (num_inside > 0) on_host::Misused("a communicator is freed while a call is inside it");
    on_host::Reserve(device, -own_bytes);
    --family->num_members;
    Leave();
  }
};

/*! \brief A call that uses a communicator. */
class Inside {
 public:
  explicit Inside(Comm comm) : comm_(static_cast<Communicator*>(comm)) {
    if (comm_->freed) on_host::Misused("a communicator is used after it was freed");
    ++comm_->num_inside;
  }
  ~Inside() { --comm_->num_inside; }
  Communicator* operator->() const { return comm_; }
  Communicator* get() const { return comm_; }

 private:
  Communicator* comm_;
};

/*! \brief Enqueues work of a communicator; NCCL's error if it cannot be. */
int Enqueue(Communicator* comm, Stream stream, std::function<void()> work) {
  if (on_host::CurrentDevice() != comm->device) {
    on_host::Misused("a communicator is called with another current device than its own");
    return kInvalidUsage;
  }
  if (comm->revoked) return kInvalidUsage;
  if (on_host::StickyError(comm->device) != 0) return kUnhandledCudaError;
  on_host::Queue* queue = on_host::FindQueue(stream);
  if (queue == nullptr) return kInvalidArgument;
  if (on_host::CaptureError(queue, false) != 0) return kUnhandledCudaError;
  const int64_t number = queue->Enqueue(std::move(work));
  std::lock_guard<std::mutex> lock(comm->family->mutex);
  comm->family->last[queue] = number;
  return kNcclSuccess;
}

/*! \brief Joins the communicator of a directory; waits for all of its ranks. */
int Join(const std::string& directory, int size, int rank, int split_share,
         const Communicator* parent, Comm* comm) {
  const bool shares = parent != nullptr && parent->split_share == 1 && !parent->revoked;
  // Never freed: streams may still hold operations of a communicator that was aborted.
  auto* made = new Communicator{directory,   size,
                                rank,        on_host::CurrentDevice(),
                                split_share, shares ? parent->family : std::make_shared<Family>()};
  if (Faulty("no connection") && rank == 1) return kSystemError;
  if (!shares) {
    made->own_bytes = std::stoll(on_host::Environment("NCCL_ON_HOST_BUFFER", "1048576"));
    if (!on_host::Reserve(made->device, made->own_bytes)) return kUnhandledCudaError;
  }
  const std::string gpu =
      on_host::Environment("NCCL_HOSTID", "this host") + ", GPU " + std::to_string(made->device);
  const auto limit = std::chrono::steady_clock::now() + kMeetingLimit;
  const bool met = made->Meet("i", gpu.data(), gpu.size(), made->Everybody(), [&] {
    return (parent != nullptr && parent->family->aborted) || !Exists(directory) ||
           std::chrono::steady_clock::now() > limit;
  });
  if (!met) return kSystemError;
  std::set<std::string> gpus;
  for (int other = 0; other < size; ++other) gpus.insert(ReadFile(made->File("i", other)));
  if (gpus.size() != static_cast<size_t>(size)) return kInvalidUsage;
  ++made->family->num_members;
  *comm = made;
  return kNcclSuccess;
}

struct PointToPoint {
  bool is_send;
  char* data;
  size_t bytes;
  int peer;
};

struct Group {
  int depth = 0;
  std::map<Communicator*, std::pair<Stream, std::vector<PointToPoint>>> messages;
  std::vector<std::function<int()>> endings;  // of aborts and revocations
};

thread_local Group group;

int Collective(Comm handle, Stream stream, std::vector<std::pair<const void*, size_t>> touched,
               const char* source, size_t bytes,
               std::function<void(const std::vector<const char*>&)> work) {
  const Inside comm(handle);
  if (!comm->Connect()) return kInternalError;
  const int64_t number = comm->num_collectives++;
  return Enqueue(
      comm.get(), stream,
      [comm = comm.get(), touched = std::move(touched), source, bytes, number,
       work = std::move(work)] {
        if (comm->Fails()) return;
        for (const auto& [data, size] : touched)
          if (!on_host::IsOn(comm->device, data, size)) return on_host::Break(comm->device);
        const std::string name = "c" + std::to_string(number);
        if (!comm->Meet(name, source, bytes, comm->Everybody(), [comm] { return comm->aborted(); }))
          return;
        std::vector<std::string> brought;
        std::vector<const char*> sources;
        for (int other = 0; other < comm->size; ++other) {
          brought.push_back(ReadFile(comm->File(name, other)));
          if (brought.back().size() != bytes) {
            comm->error = kInvalidArgument;
            return;
          }
        }
        for (const std::string& each : brought) sources.push_back(each.data());
        work(sources);
        // Who is here has read all of the collective before.
        unlink(comm->File("c" + std::to_string(number - 1), comm->rank).c_str());
      });
}

void RunPointToPoint(Communicator* comm, const std::vector<PointToPoint>& parts) {
  if (comm->Fails()) return;
  for (const PointToPoint& part : parts)
    if (!on_host::IsOn(comm->device, part.data, part.bytes)) return on_host::Break(comm->device);
  auto path = [comm](int source, int target, int64_t number) {
    return comm->directory + "/p" + std::to_string(source) + "-" + std::to_string(target) + "." +
           std::to_string(number);
  };
  std::vector<std::string> sent;
  for (const PointToPoint& part : parts) {
    if (!part.is_send) continue;
    sent.push_back(path(comm->rank, part.peer, comm->num_sent[part.peer]++));
    WriteFile(sent.back(), part.data, part.bytes);
  }
  for (const PointToPoint& part : parts) {
    if (part.is_send) continue;
    const std::string file = path(part.peer, comm->rank, comm->num_received[part.peer]++);
    if (!comm->Wait([&] { return Exists(file); })) return;
    const std::string message = ReadFile(file);
    if (message.size() != part.bytes) {
      comm->error = kInvalidArgument;
      return;
    }
    std::memcpy(part.data, message.data(), part.bytes);
    unlink(file.c_str());
  }
  for (const std::string& file : sent)
    if (!comm->Wait([&] { return !Exists(file); })) return;
}

/*! \brief Waits, within the call, for the peers of pairs that have no connection yet. */
bool ConnectPairs(Communicator* comm, const std::vector<PointToPoint>& parts) {
  for (const PointToPoint& part : parts) {
    const int source = part.is_send ? comm->rank : part.peer;
    const int target = part.is_send ? part.peer : comm->rank;
    const std::string pair = "k" + std::to_string(source) + "-" + std::to_string(target);
    WriteFile(comm->File(pair, comm->rank), "");
  }
  for (const PointToPoint& part : parts) {
    const int source = part.is_send ? comm->rank : part.peer;
    const int target = part.is_send ? part.peer : comm->rank;
    const std::string pair = "k" + std::to_string(source) + "-" + std::to_string(target);
    if (comm->connected_pairs.count(pair) != 0) continue;
    if (!comm->MeetOnHost(pair, "", {part.peer})) return false;
    comm->connected_pairs.insert(pair);
  }
  return true;
}

int RunMessages(Communicator* communicator, Stream stream, std::vector<PointToPoint> parts) {
  const Inside comm(communicator);
  if (!ConnectPairs(comm.get(), parts)) return kInternalError;
  return Enqueue(comm.get(), stream,
                 [comm = comm.get(), parts = std::move(parts)] { RunPointToPoint(comm, parts); });
}

int PostPointToPoint(Comm handle, Stream stream, const PointToPoint& part) {
  const Inside comm(handle);
  if (part.peer < 0 || part.peer >= comm->size) return kInvalidArgument;
  if (group.depth == 0) return RunMessages(comm.get(), stream, {part});
  auto& [its_stream, parts] = group.messages[comm.get()];
  its_stream = stream;
  parts.push_back(part);
  return kNcclSuccess;
}

/*! \brief Runs the last part of an abort: at the end of the group, if there is one. */
int AtEnd(std::function<int()> ending) {
  if (group.depth == 0) return ending();
  group.endings.push_back(std::move(ending));
  return kNcclSuccess;
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = Version();
  return kNcclSuccess;
}

EXPORT const char* ncclGetErrorString(int result) {
  switch (result) {
    case kUnhandledCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "invalid argument";
  }
}

EXPORT const char* ncclGetLastError(Comm) { return ""; }

EXPORT int ncclGetUniqueId(UniqueId* id) {
  std::string path = on_host::Environment("CUDA_ON_HOST_FOLDER", "/dev/shm") + "/nccl-XXXXXX";
  if (path.size() >= sizeof(id->internal) || mkdtemp(path.data()) == nullptr) return kSystemError;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, path.data(), path.size());
  return kNcclSuccess;
}

EXPORT int ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  if (rank < 0 || rank >= size) return kInvalidArgument;
  if (config->magic != kNcclMagic || config->size != sizeof(Config)) return kInvalidArgument;
  const std::string share = std::to_string(config->splitShare);
  const int split_share =
      std::stoi(on_host::Environment("NCCL_COMM_SPLIT_SHARE_RESOURCES", share.c_str()));
  return Join(id.internal, size, rank, split_share, nullptr, comm);
}

EXPORT int ncclCommSplit(Comm comm, int color, int key, Comm* made, Config*) {
  const Inside parent(comm);
  const std::string name = "s" + std::to_string(parent->num_splits++);
  *made = nullptr;
  if (color < kNcclSplitNoColor) return kInvalidArgument;
  if (!parent->MeetOnHost(name, std::to_string(color) + " " + std::to_string(key),
                          parent->Everybody()))
    return kSystemError;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int other = 0; other < parent->size; ++other) {
    std::istringstream its(ReadFile(parent->File(name, other)));
    int its_color = 0, its_key = 0;
    its >> its_color >> its_key;
    if (its_color == color) members.emplace_back(its_key, other);
  }
  if (color == kNcclSplitNoColor) return kNcclSuccess;
  std::sort(members.begin(), members.end());
  const auto mine = std::find(members.begin(), members.end(), std::pair(key, parent->rank));
  const std::string directory = parent->directory + "/" + name + "-" + std::to_string(color);
  mkdir(directory.c_str(), 0700);
  return Join(directory, static_cast<int>(members.size()), static_cast<int>(mine - members.begin()),
              parent->split_share, parent.get(), made);
}

EXPORT int ncclCommDestroy(Comm comm) {
  auto* communicator = static_cast<Communicator*>(comm);
  if (!communicator->revoked) communicator->family->WaitForWork();
  on_host::Count("destroy");
  communicator->Free();
  return kNcclSuccess;
}

EXPORT int ncclCommAbort(Comm comm) {
  auto* communicator = static_cast<Communicator*>(comm);
  if (communicator->freed) on_host::Misused("a communicator is used after it was freed");
  communicator->family->aborted = true;
  on_host::Count("abort");
  return AtEnd([communicator] {
    communicator->family->WaitForWork();
    communicator->Free();
    return kNcclSuccess;
  });
}

EXPORT int ncclCommRevoke(Comm comm, int flags) {
  auto* communicator = static_cast<Communicator*>(comm);
  if (Version() < kFirstWithRevoke) on_host::Misused("this NCCL has no ncclCommRevoke");
  if (communicator->freed) on_host::Misused("a communicator is used after it was freed");
  if (Faulty("refused revocation")) return kInvalidUsage;
  if (flags != 0 || communicator->revoked.exchange(true)) return kInvalidArgument;
  communicator->family->aborted = true;
  on_host::Count("revoke");
  return AtEnd([communicator] {
    communicator->family->WaitForWork();
    communicator->family->aborted = false;  // its members stay revoked
    return kNcclSuccess;
  });
}

EXPORT int ncclCommGetAsyncError(Comm comm, int* error) {
  *error = Inside(comm)->error;
  return kNcclSuccess;
}

EXPORT int ncclAllReduce(const void* source, void* target, size_t count, int dtype, int operation,
                         Comm comm, Stream stream) {
  const size_t bytes = count * BytesOf(dtype);
  return Collective(comm, stream, {{source, bytes}, {target, bytes}},
                    static_cast<const char*>(source), bytes,
                    [=](const std::vector<const char*>& sources) {
                      Reduce(sources, 0, count, dtype, operation, static_cast<char*>(target));
                    });
}

EXPORT int ncclAllGather(const void* source, void* target, size_t count, int dtype, Comm comm,
                         Stream stream) {
  const size_t bytes = count * BytesOf(dtype);
  const size_t size = static_cast<Communicator*>(comm)->size;
  return Collective(comm, stream, {{source, bytes}, {target, bytes * size}},
                    static_cast<const char*>(source), bytes,
                    [=](const std::vector<const char*>& sources) {
                      char* out = static_cast<char*>(target);
                      for (const char* each : sources) {
                        std::memcpy(out, each, bytes);
                        out += bytes;
                      }
                    });
}

EXPORT int ncclReduceScatter(const void* source, void* target, size_t count, int dtype,
                             int operation, Comm comm, Stream stream) {
  auto* communicator = static_cast<Communicator*>(comm);
  const auto rank = static_cast<size_t>(communicator->rank);
  const size_t part = count * BytesOf(dtype);
  const size_t bytes = part * static_cast<size_t>(communicator->size);
  return Collective(
      comm, stream, {{source, bytes}, {target, part}}, static_cast<const char*>(source), bytes,
      [=](const std::vector<const char*>& sources) {
        Reduce(sources, rank * count, count, dtype, operation, static_cast<char*>(target));
      });
}

EXPORT int ncclSend(const void* source, size_t count, int dtype, int peer, Comm comm,
                    Stream stream) {
  return PostPointToPoint(
      comm, stream,
      {true, static_cast<char*>(const_cast<void*>(source)), count * BytesOf(dtype), peer});
}

EXPORT int ncclRecv(void* target, size_t count, int dtype, int peer, Comm comm, Stream stream) {
  return PostPointToPoint(comm, stream,
                          {false, static_cast<char*>(target), count * BytesOf(dtype), peer});
}

EXPORT int ncclGroupStart() {
  ++group.depth;
  return kNcclSuccess;
}

EXPORT int ncclGroupEnd() {
  if (--group.depth > 0) return kNcclSuccess;
  Group ended = std::exchange(group, Group());
  int result = kNcclSuccess;
  for (auto& [comm, messages] : ended.messages) {
    const int its = RunMessages(comm, messages.first, std::move(messages.second));
    if (its != kNcclSuccess) result = its;
  }
  std::vector<std::thread> threads;  // as NCCL's jobs
  for (auto& ending : ended.endings) threads.emplace_back(std::move(ending));
  for (std::thread& thread : threads) thread.join();
  return result;
}
