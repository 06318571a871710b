/*!
 * \file analysis/timeline/timeline.h
 * \brief Event simulation of the operations of all devices, without IR.
 *
 * A device has one or two streams, and each runs its operations in order. A collective begins when
 * all of its group have reached it, a receive or an exchange (which is a collective here) when
 * those that send to it have come to theirs. Sends wait for nobody, or (NCCL) for those who
 * receive.
 *
 * Every operation begins when the last of what it waits for has ended, so times do not depend on
 * the order in which they are found. From the last event back, each time to what it has waited for
 * longest, leads a critical path, whose durations sum to the whole time.
 *
 * Devices of one *class* run the same programs, and each collective joins them to the same classes.
 * So they reach everything at the same times (by induction over the events: a beginning is a
 * maximum over classes), and one device of a class is simulated for all. Classes are found by
 * splitting those of equal programs until no collective tells two devices of one apart.
 *
 * Worked example: devices 0 and 1 run a kernel of 1 s and send, 2 and 3 receive and run one of 2 s.
 * There are two classes. With two microbatches the first works from 0 to 2, the second from 1 to 5.
 */
#ifndef DISTIR_ANALYSIS_TIMELINE_TIMELINE_H_
#define DISTIR_ANALYSIS_TIMELINE_TIMELINE_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/timeline/communication.h"

namespace distir::analysis {

enum class OperationKind { kCompute, kCollective, kSend, kReceive };

/*! \brief One operation of a program. */
struct Operation {
  OperationKind kind;
  double seconds;
  int stream;              // 0 or 1
  int communication;       // which of the problem's; -1: none
  int label;               // equal for operations that are asked about together
  std::vector<int> after;  // earlier operations of the same program that end before it begins
};

struct TimelineProblem {
  std::vector<std::vector<Operation>> programs;
  std::vector<Communication> communications;
  /*! \brief Per device its program by virtual stage; -1: none. */
  std::vector<std::vector<int>> devices;
  /*! \brief Virtual stages and microbatches, in the order in which all devices run them. */
  std::vector<std::pair<int, int>> order;
  /*! \brief Per device how many microbatches it may have begun that `finishers` have not ended; 0:
   * any number. For programs of one virtual stage. */
  std::vector<int> limits;
  std::vector<int> finishers;  // devices
  bool sends_wait = false;     // for those who receive
};

/*! \brief Times of a class's operations, in order of `order`, then of programs.
 */
struct ClassTimes {
  std::vector<int> devices;
  int64_t first_event;           // events of all classes are numbered one after the other
  std::vector<double> arrivals;  // when the device had come to it
  std::vector<double> begins;    // when the others had, too
  /*! \brief The event whose end is the beginning; -1: it begins at once. */
  std::vector<int64_t> causes;
};

/*! \brief An event that never begins, and the one that it waits for; -1: one that there is not. */
struct Blocked {
  int64_t event, waits_for;
};

struct TimelineResult {
  double seconds = 0;
  int64_t last_event = -1;  // the one that ends last; -1: there is none
  std::vector<ClassTimes> classes;
  std::vector<Blocked> blocked;  // if devices wait for each other for ever
};

class Timeline {
 public:
  explicit Timeline(TimelineProblem problem);
  /*! \brief Lets everything begin as early as it may. */
  TimelineResult Run() const;
  /*! \brief Seconds of the whole if operations of a label took no time. */
  double SecondsWithout(int label);

 private:
  class Simulation;
  struct Class {
    std::vector<int> devices;
    std::vector<int> programs;         // per entry of the order; -1: none
    std::vector<int64_t> first_event;  // per entry of the order
    /*! \brief Events of the class in each communication, in order. */
    std::unordered_map<int, std::vector<int64_t>> events_of;
    /*! \brief Classes whose data it needs, and that need its data, by communication. */
    std::unordered_map<int, std::vector<int>> sources, targets;
  };

  void FindClasses();
  void NumberEvents();
  void FindPeers();

  TimelineProblem problem_;
  std::vector<int> class_of_;  // by device
  std::vector<Class> classes_;
  int64_t num_events_ = 0;
  std::vector<int> turn_;  // by event, how many of the same communication its device has before it
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_TIMELINE_TIMELINE_H_
