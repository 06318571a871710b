// Keeps TVM's warnings off the standard error stream for as long as somebody captures them.
//
// TVM writes "[10:52:54] /path/file.cc:80: Warning: text" to std::cerr, which this library shares
// with it. Everything else goes on to where std::cerr led before, at once; a line that may become
// a warning waits for its end.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <mutex>
#include <streambuf>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/functions.h"

namespace distir {

namespace ffi = tvm::ffi;

namespace {

constexpr const char* kTime = "[00:00:00] ";
constexpr const char* kWarning = ": Warning: ";

/*! \brief True if a line begins as TVM's log does, as far as it is there. */
bool BeginsAsLog(const std::string& line) {
  const std::string pattern = kTime;
  for (size_t i = 0; i < std::min(line.size(), pattern.size()); ++i) {
    const bool is_digit = line[i] >= '0' && line[i] <= '9';
    if (pattern[i] == '0' ? !is_digit : line[i] != pattern[i]) return false;
  }
  return true;
}

class LogCapture : public std::streambuf {
 public:
  static LogCapture& Global() {
    static LogCapture capture;
    return capture;
  }

  void Begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (depth_++ == 0) behind_ = std::cerr.rdbuf(this);
  }

  /*! \brief The warnings since Begin; of nested captures, those that no inner one took. */
  std::vector<std::string> End() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--depth_ == 0) {
      for (auto& [thread, line] : lines_) Pass(&line);
      lines_.clear();
      if (std::cerr.rdbuf() == this) std::cerr.rdbuf(behind_);
    }
    return std::exchange(warnings_, {});
  }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char one = traits_type::to_char_type(c);
    xsputn(&one, 1);
    return c;
  }

  std::streamsize xsputn(const char* text, std::streamsize count) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string& line = lines_[std::this_thread::get_id()];
    for (std::streamsize i = 0; i < count; ++i) {
      line += text[i];
      if (text[i] != '\n') continue;
      if (BeginsAsLog(line) && line.find(kWarning) != std::string::npos) {
        line.pop_back();
        warnings_.push_back(std::exchange(line, {}));
      } else {
        Pass(&line);
      }
    }
    if (!BeginsAsLog(line)) Pass(&line);
    return count;
  }

  int sync() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return behind_->pubsync();
  }

 private:
  void Pass(std::string* text) {
    behind_->sputn(text->data(), static_cast<std::streamsize>(text->size()));
    text->clear();
  }

  std::mutex mutex_;
  int depth_ = 0;
  std::streambuf* behind_ = nullptr;
  std::map<std::thread::id, std::string> lines_;  // begun by each thread
  std::vector<std::string> warnings_;
};

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.support.BeginLogCapture", [] { LogCapture::Global().Begin(); })
      .def("distir.support.EndLogCapture", [] {
        ffi::Array<ffi::String> warnings;
        for (const std::string& line : LogCapture::Global().End()) warnings.push_back(line);
        return warnings;
      });
}

}  // namespace

}  // namespace distir
