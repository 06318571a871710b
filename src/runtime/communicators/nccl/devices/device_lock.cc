// Locks GPUs between the processes of a user by file locks.
#include "runtime/communicators/nccl/devices/device_lock.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/communicators/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

constexpr const char* kShareVariable = "DISTIR_EXT_SHARE_CUDA_DEVICES";

// Workers outlive a controller that was killed by some seconds (worker_process.cc).
constexpr std::chrono::seconds kEndOfHolders{8};
constexpr std::chrono::milliseconds kLook{50};

/*! \brief A file descriptor that is closed, which ends its lock. */
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool valid() const { return number_ >= 0; }
  bool Lock(int kind) const { return flock(number_, kind | LOCK_NB) == 0; }
  int get() const { return number_; }
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

std::string Hexadecimal(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

/*! \brief A name for text of any length (FNV-1a), which is the same in all processes. */
std::string NameOf(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211U;
  return Hexadecimal(std::string(reinterpret_cast<const char*>(&hash), sizeof(hash)));
}

std::string UuidOf(int device) {
  std::vector<char> properties(kMostBytesOfDeviceProperties);
  CheckCuda(Cuda().cudaGetDeviceProperties(properties.data(), device), "cudaGetDeviceProperties");
  return Hexadecimal(std::string(properties.data() + kOffsetOfUuid, kBytesOfUuid));
}

/*! \brief Makes a folder that only this user writes to. */
void MakeFolder(const std::string& path) {
  const bool made = mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  struct stat status = {};
  const bool is_there = made && lstat(path.c_str(), &status) == 0;
  DISTIR_REQUIRE(is_there, RuntimeError)
      << "the folder " << path
      << ", where workers note which GPUs they use, cannot be made: " << std::strerror(errno);
  DISTIR_REQUIRE(S_ISDIR(status.st_mode) && status.st_uid == geteuid(), RuntimeError)
      << path << ", where workers note which GPUs they use, is no folder of this user";
}

std::string FolderOf(int device) {
  std::string path = "/tmp/distir_ext-" + std::to_string(geteuid());
  MakeFolder(path);
  MakeFolder(path += "/gpus");
  MakeFolder(path += "/" + UuidOf(device));
  return path;
}

std::string CommandOf(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  constexpr size_t kMostShown = 200;
  return command.size() <= kMostShown ? command : command.substr(0, kMostShown) + "...";
}

/*! \brief This process, for the messages of others: "process 12, a worker of 10 (python x.py)". */
std::string DescribeProcess(bool is_process) {
  std::string text = "process " + std::to_string(getpid());
  const pid_t user = is_process ? getppid() : getpid();
  if (is_process) text += ", a worker of process " + std::to_string(user);
  return text + " (" + CommandOf(user) + ")";
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/*! \brief Finds a process of another session with a file in the folder; removes stale files. */
std::optional<std::string> FindOther(const std::string& folder, const std::string& session) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listed(opendir(folder.c_str()), closedir);
  if (listed == nullptr) return std::nullopt;
  while (const dirent* entry = readdir(listed.get())) {
    const std::string name = entry->d_name;
    if (name[0] == '.' || name.rfind(session + ".", 0) == 0) continue;
    const std::string path = folder + "/" + name;
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) continue;
    if (!file.Lock(LOCK_SH)) return ReadAll(path);
    unlink(path.c_str());
  }
  return std::nullopt;
}

}  // namespace

DeviceLock::DeviceLock(int device, const std::string& session, bool is_process,
                       const std::function<bool()>& aborted) {
  const char* share = std::getenv(kShareVariable);
  const bool shares = share != nullptr && std::string(share) == "1";
  DISTIR_REQUIRE(share == nullptr || shares || std::string(share) == "0", ValueError)
      << kShareVariable << " is \"" << share << "\"; it must be 0 or 1";
  const std::string folder = FolderOf(device);
  const std::string name = NameOf(session);
  const auto limit = std::chrono::steady_clock::now() + kEndOfHolders;
  while (true) {
    // The holder of the folder's lock looks at it and adds a file.
    const Descriptor guard(open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    DISTIR_REQUIRE(guard.valid(), RuntimeError)
        << folder << "/.lock cannot be opened: " << std::strerror(errno);
    const bool is_late = std::chrono::steady_clock::now() > limit;
    std::optional<std::string> other = "a process that does not go on";
    if (guard.Lock(LOCK_EX)) {
      other = shares ? std::nullopt : FindOther(folder, name);
      if (!other.has_value()) {
        path_ = folder + "/" + name + "." + std::to_string(getpid());
        Descriptor file(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        const std::string text = DescribeProcess(is_process);
        DISTIR_REQUIRE(
            file.valid() && file.Lock(LOCK_EX) &&
                write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
            RuntimeError)
            << path_ << " cannot be written and locked: " << std::strerror(errno);
        file_ = file.Release();
        return;
      }
    }
    DISTIR_REQUIRE(!aborted(), RuntimeError)
        << "waiting for CUDA device " << device << " stopped because another worker failed";
    DISTIR_REQUIRE(!is_late, RuntimeError)
        << "CUDA device " << device << " is used by another session, of " << *other
        << ". End that one, or take other GPUs (CUDA_VISIBLE_DEVICES, DISTIR_EXT_CUDA_DEVICES); "
        << kShareVariable
        << "=1 lets sessions have GPUs together, where their memory is enough and "
        << "they may wait for each other";
    std::this_thread::sleep_for(kLook);
  }
}

DeviceLock::~DeviceLock() {
  unlink(path_.c_str());
  close(file_);
}

}  // namespace distir::runtime::nccl
