// Passes boxes between threads, straight into a waiting receiver where there is one.
#include "runtime/communicators/cpu/threads/mailbox.h"

#include <tvm/ffi/error.h>

#include <utility>

#include "runtime/communicators/cpu/waiting_policy.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

class Mailbox::Receiving : public Waiting {
 public:
  Receiving(const Mailbox* mailbox, const Request* request)
      : mailbox_(mailbox), request_(request) {}
  bool Satisfied() const final {
    return request_->done.load(std::memory_order_acquire) ||
           mailbox_->num_messages_.load(std::memory_order_acquire) > 0;
  }
  std::string Describe() const final { return "recv on " + mailbox_->name_; }

 private:
  const Mailbox* mailbox_;
  const Request* request_;
};

void Mailbox::Wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void Mailbox::Send(const MemoryBox& source) {
  const int64_t element_bytes = ElementBytes(source.dtype);
  std::unique_lock<std::mutex> lock(mutex_);
  if (request_ != nullptr && messages_.empty() && source.Matches(*request_->target)) {
    const MemoryBox& target = *request_->target;
    const BoxCopy copy(source.extent, source.byte_strides, target.byte_strides, element_bytes);
    Request* request = std::exchange(request_, nullptr);
    lock.unlock();
    copy.Run(source.data, target.data);
    lock.lock();
    request->done.store(true, std::memory_order_release);
    changed_.notify_all();
    return;
  }
  lock.unlock();
  Message message{source, std::vector<char>(NumElements(source.extent) * element_bytes)};
  message.box.byte_strides = RowMajorStrides(source.extent, element_bytes);
  BoxCopy(source.extent, source.byte_strides, message.box.byte_strides, element_bytes)
      .Run(source.data, message.bytes.data());
  lock.lock();
  messages_.push_back(std::move(message));
  num_messages_.store(static_cast<int>(messages_.size()), std::memory_order_release);
  changed_.notify_all();
}

void Mailbox::Receive(int rank, const MemoryBox& target) {
  Request request;
  request.target = &target;
  std::unique_lock<std::mutex> lock(mutex_);
  if (messages_.empty()) {
    request_ = &request;
    lock.unlock();
    Receiving receiving(this, &request);
    if (!YieldUntil([&] { return receiving.Satisfied(); })) {
      progress_->WaitBegins(rank, &receiving);
      std::string deadlock;
      lock.lock();
      while (!receiving.Satisfied() && deadlock.empty() &&
             !aborted_->load(std::memory_order_relaxed)) {
        const bool woken = changed_.wait_for(lock, kSleep, [&] {
          return receiving.Satisfied() || aborted_->load(std::memory_order_relaxed);
        });
        if (!woken) deadlock = progress_->FindDeadlock(rank);
      }
      lock.unlock();
      progress_->WaitEnds(rank);
      lock.lock();
      if (!receiving.Satisfied() && request_ == &request) {
        request_ = nullptr;
        if (!deadlock.empty()) TVM_FFI_THROW(ValueError) << deadlock;
        TVM_FFI_THROW(RuntimeError)
            << "recv on " << name_ << " stopped because another worker failed";
      }
    } else {
      lock.lock();
    }
    // A sender that has taken the request is writing to `target` and must finish first.
    while (!request.done.load(std::memory_order_acquire) && request_ != &request) {
      changed_.wait(lock);
    }
    if (request.done.load(std::memory_order_acquire)) return;
    request_ = nullptr;
  }
  Message message = std::move(messages_.front());
  messages_.pop_front();
  num_messages_.store(static_cast<int>(messages_.size()), std::memory_order_release);
  lock.unlock();
  if (!message.box.Matches(target)) {
    TVM_FFI_THROW(ValueError) << "the programs of the workers disagree on " << name_ << ": sent "
                              << message.box.Describe() << ", expected " << target.Describe()
                              << (message.box.call != target.call ? " of another call" : "");
  }
  BoxCopy(target.extent, message.box.byte_strides, target.byte_strides, ElementBytes(target.dtype))
      .Run(message.bytes.data(), target.data);
}

}  // namespace distir::runtime::cpu
