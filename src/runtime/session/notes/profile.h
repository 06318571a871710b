/*!
 * \file runtime/session/notes/profile.h
 * \brief Records the times of a worker's operators while it is profiled.
 *
 * TVM's virtual machine calls the worker around each of its calls (RecordOperator in step.cc). A
 * worker that is profiled notes the time there, on a GPU once all that was enqueued is done, so
 * that nothing overlaps. Events are nested: in a step lie its operators, in the call of a function
 * those of the function. Work of the machine itself (memory, shapes) is left out.
 *
 * Recording takes some 0.2 us for an operator; a worker that is not profiled looks at one pointer.
 */
#ifndef DISTIR_RUNTIME_SESSION_NOTES_PROFILE_H_
#define DISTIR_RUNTIME_SESSION_NOTES_PROFILE_H_

#include <tvm/ffi/container/array.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace distir::runtime {

class WorkerContext;

/*! \brief Record of the operators that one worker has run. Used by its thread only. */
class Profile {
 public:
  explicit Profile(WorkerContext* worker) : worker_(*worker) {}

  /*! \brief A step, or an operator of it; `name` is the function that the machine calls. */
  void Begins(std::string_view name);
  /*! \param value Its result, if it is a condition; else -1. */
  void Ends(std::string_view name, int64_t value);

  /*! \brief True if calls of a function are left out. */
  static bool IsLeftOut(std::string_view name);

  /*!
   * \brief The names, and an array per event in the order of their begin: index of the name, index
   *        of the event that it lies in or -1, begin and end in seconds of the steady clock, index
   *        of the flow (traffic.h) of a collective or -1, value of a condition or -1.
   */
  tvm::ffi::Array<tvm::ffi::Any> Rows() const;

 private:
  struct Event {
    int name, outer;
    double begin, end;
    int flow;
    int64_t value;
  };
  double Now() const;

  WorkerContext& worker_;
  std::unordered_map<std::string, int> index_;
  std::vector<std::string> names_;
  std::vector<Event> events_;
  std::vector<int> open_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_NOTES_PROFILE_H_
