// Simulates all devices event by event. Devices that behave alike are simulated once, as a class.
#include "analysis/timeline/timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace distir::analysis {

namespace {

constexpr int kStreams = 2;
constexpr double kUnknown = -1;  // a time that is not known yet

/*! \brief The classes of the devices of a list, ascending. */
std::vector<int> ClassesIn(const Communication& communication, int list,
                           const std::vector<int>& class_of) {
  std::set<int> found;
  if (list >= 0) {
    for (int device : communication.lists[list]) found.insert(class_of[device]);
  }
  return {found.begin(), found.end()};
}

/*! \brief Gives equal keys equal numbers, in order of first occurrence. */
class Numbering {
 public:
  int operator()(const std::vector<int>& key) {
    return numbers_.emplace(key, static_cast<int>(numbers_.size())).first->second;
  }
  size_t size() const { return numbers_.size(); }

 private:
  std::map<std::vector<int>, int> numbers_;
};

}  // namespace

Timeline::Timeline(TimelineProblem problem) : problem_(std::move(problem)) {
  FindClasses();
  NumberEvents();
  FindPeers();
}

void Timeline::FindClasses() {
  size_t count = 0;
  {
    Numbering numbering;
    for (const std::vector<int>& programs : problem_.devices)
      class_of_.push_back(numbering(programs));
    count = numbering.size();
  }
  while (true) {
    std::vector<std::vector<int>> keys;
    for (int number : class_of_) keys.push_back({number});
    for (const Communication& each : problem_.communications) {
      Numbering sets;
      std::vector<int> set_of_list;
      for (size_t list = 0; list < each.lists.size(); ++list)
        set_of_list.push_back(sets(ClassesIn(each, static_cast<int>(list), class_of_)));
      for (size_t device = 0; device < keys.size(); ++device) {
        for (int list : {each.sources[device], each.targets[device]})
          keys[device].push_back(list < 0 ? -1 : set_of_list[list]);
      }
    }
    Numbering numbering;
    for (size_t device = 0; device < keys.size(); ++device)
      class_of_[device] = numbering(keys[device]);
    // Classes are only ever split, so as many are the same ones.
    if (numbering.size() == count) break;
    count = numbering.size();
  }
  classes_.resize(count);
  for (size_t device = 0; device < class_of_.size(); ++device)
    classes_[class_of_[device]].devices.push_back(static_cast<int>(device));
}

void Timeline::NumberEvents() {
  for (Class& each : classes_) {
    const std::vector<int>& by_virtual_stage = problem_.devices[each.devices[0]];
    for (const auto& [virtual_stage, microbatch] : problem_.order) {
      const int program = by_virtual_stage[virtual_stage];
      each.programs.push_back(program);
      each.first_event.push_back(num_events_);
      if (program < 0) continue;
      for (const Operation& operation : problem_.programs[program]) {
        int turn = 0;
        if (operation.communication >= 0) {
          std::vector<int64_t>& events = each.events_of[operation.communication];
          turn = static_cast<int>(events.size());
          events.push_back(num_events_);
        }
        turn_.push_back(turn);
        ++num_events_;
      }
    }
  }
}

void Timeline::FindPeers() {
  for (Class& each : classes_) {
    const int device = each.devices[0];  // any: all are joined to the same classes
    for (const auto& [index, events] : each.events_of) {
      const Communication& communication = problem_.communications[index];
      each.sources[index] = ClassesIn(communication, communication.sources[device], class_of_);
      each.targets[index] = ClassesIn(communication, communication.targets[device], class_of_);
    }
  }
}

/*! \brief One run over all events. */
class Timeline::Simulation {
 public:
  Simulation(const Timeline& timeline)
      : timeline_(timeline),
        problem_(timeline.problem_),
        arrivals_(timeline.num_events_, kUnknown),
        begins_(timeline.num_events_, kUnknown),
        ends_(timeline.num_events_, kUnknown),
        arrival_causes_(timeline.num_events_, -1),
        causes_(timeline.num_events_, -1),
        first_waiting_(timeline.num_events_, -1) {
    for (const std::vector<Operation>& program : problem_.programs) {
      std::array<std::vector<int>, kStreams> streams;
      for (size_t i = 0; i < program.size(); ++i)
        streams[program[i].stream].push_back(static_cast<int>(i));
      streams_.push_back(std::move(streams));
    }
    for (size_t index = 0; index < timeline_.classes_.size(); ++index) {
      for (int stream = 0; stream < kStreams; ++stream)
        workers_.push_back({static_cast<int>(index), stream});
    }
    for (size_t worker = 0; worker < workers_.size(); ++worker)
      ready_.push_back(static_cast<int>(worker));
    while (!ready_.empty()) {
      const int worker = ready_.back();
      ready_.pop_back();
      Advance(worker);
    }
  }

  double Seconds() const {
    return ends_.empty() ? 0 : std::max(0.0, *std::max_element(ends_.begin(), ends_.end()));
  }

  TimelineResult Result() const {
    TimelineResult result;
    result.seconds = Seconds();
    if (!ends_.empty())
      result.last_event = std::max_element(ends_.begin(), ends_.end()) - ends_.begin();
    for (size_t index = 0; index < timeline_.classes_.size(); ++index) {
      const Class& each = timeline_.classes_[index];
      const bool is_last = index + 1 == timeline_.classes_.size();
      const int64_t first = each.first_event.empty() ? 0 : each.first_event[0];
      const int64_t last = is_last || each.first_event.empty()
                               ? timeline_.num_events_
                               : timeline_.classes_[index + 1].first_event[0];
      result.classes.push_back({each.devices,
                                first,
                                {arrivals_.begin() + first, arrivals_.begin() + last},
                                {begins_.begin() + first, begins_.begin() + last},
                                {causes_.begin() + first, causes_.begin() + last}});
    }
    for (const Worker& worker : workers_) {
      if (worker.blocked_event >= 0)
        result.blocked.push_back({worker.blocked_event, worker.waits_for});
    }
    return result;
  }

 private:
  /*! \brief A stream of a class. */
  struct Worker {
    int index;  // of the class
    int stream;
    size_t entry = 0, position = 0;  // what comes next: of the order, and of the program's stream
    int64_t previous = -1;           // the event before
    int64_t blocked_event = -1, waits_for = -1;
    int next_waiting = -1;  // another worker that waits for the same event
  };

  /*! \brief Runs a stream until something that it waits for is not known. */
  void Advance(int number) {
    Worker& worker = workers_[number];
    worker.blocked_event = -1;
    const Class& mine = timeline_.classes_[worker.index];
    for (; worker.entry < problem_.order.size(); ++worker.entry, worker.position = 0) {
      const int program = mine.programs[worker.entry];
      if (program < 0) continue;
      const std::vector<int>& stream = streams_[program][worker.stream];
      for (; worker.position < stream.size(); ++worker.position) {
        const int index = stream[worker.position];
        const int64_t event = mine.first_event[worker.entry] + index;
        const Operation& operation = problem_.programs[program][index];
        if (arrivals_[event] == kUnknown) {
          const int64_t missing = Arrive(worker, mine, operation, event);
          if (missing >= 0) return Block(number, event, missing);
          Wake(event);
        }
        if (!Begin(number, mine, operation, event)) return;
        ends_[event] = begins_[event] + operation.seconds;
        worker.previous = event;
        Wake(event);
      }
    }
  }

  /*! \brief Sets the arrival. \return An event that has to end before and has not; else -1. */
  int64_t Arrive(const Worker& worker, const Class& mine, const Operation& operation,
                 int64_t event) {
    double latest = 0;
    int64_t cause = -1, missing = -1;
    const auto wait_for = [&](int64_t other) {
      if (ends_[other] == kUnknown) {
        missing = other;
      } else if (ends_[other] > latest || (cause < 0 && ends_[other] == latest)) {
        latest = ends_[other];
        cause = other;
      }
    };
    if (worker.previous >= 0) wait_for(worker.previous);
    for (int before : operation.after) wait_for(mine.first_event[worker.entry] + before);
    if (worker.position == 0) {
      for (int64_t last : EventsOfLimit(mine, worker.entry)) wait_for(last);
    }
    if (missing >= 0) return missing;
    arrivals_[event] = latest;
    arrival_causes_[event] = cause;
    return -1;
  }

  /*! \brief Events that must end before a device begins an entry of the order, by its limit of
   * microbatches in flight. */
  std::vector<int64_t> EventsOfLimit(const Class& mine, size_t entry) const {
    std::vector<int64_t> events;
    const int limit = problem_.limits.empty() ? 0 : problem_.limits[mine.devices[0]];
    if (limit == 0 || entry < static_cast<size_t>(limit)) return events;
    std::set<int> classes;
    for (int device : problem_.finishers) classes.insert(timeline_.class_of_[device]);
    for (int index : classes) {
      const Class& last = timeline_.classes_[index];
      const int program = last.programs[entry - limit];
      if (program < 0) continue;
      for (const std::vector<int>& stream : streams_[program]) {
        if (!stream.empty()) events.push_back(last.first_event[entry - limit] + stream.back());
      }
    }
    return events;
  }

  /*! \brief Sets the beginning, when all others of a collective have arrived; else blocks. */
  bool Begin(int number, const Class& mine, const Operation& operation, int64_t event) {
    double latest = arrivals_[event];
    int64_t cause = arrival_causes_[event];
    const auto wait_for = [&](const std::vector<int>& classes) {
      for (int index : classes) {
        const int64_t other = EventOf(index, operation.communication, timeline_.turn_[event]);
        if (other < 0 || arrivals_[other] == kUnknown) {
          Block(number, event, other);
          return false;
        }
        if (arrivals_[other] > latest) {
          latest = arrivals_[other];
          cause = arrival_causes_[other];
        }
      }
      return true;
    };
    if (operation.communication >= 0) {
      const bool sends_only = operation.kind == OperationKind::kSend;
      const bool waits_for_targets =
          problem_.sends_wait && operation.kind != OperationKind::kReceive;
      if (!sends_only && !wait_for(mine.sources.at(operation.communication))) return false;
      if (waits_for_targets && !wait_for(mine.targets.at(operation.communication))) return false;
    }
    begins_[event] = latest;
    causes_[event] = cause;
    return true;
  }

  /*! \brief The turn-th event of a communication in a class, -1 if there is none. */
  int64_t EventOf(int index, int communication, int turn) const {
    const Class& other = timeline_.classes_[index];
    auto events = other.events_of.find(communication);
    if (events == other.events_of.end() || static_cast<size_t>(turn) >= events->second.size())
      return -1;
    return events->second[turn];
  }

  void Block(int number, int64_t event, int64_t waits_for) {
    Worker& worker = workers_[number];
    worker.blocked_event = event;
    worker.waits_for = waits_for;
    if (waits_for < 0) return;
    worker.next_waiting = first_waiting_[waits_for];
    first_waiting_[waits_for] = number;
  }

  void Wake(int64_t event) {
    for (int number = first_waiting_[event]; number >= 0; number = workers_[number].next_waiting)
      ready_.push_back(number);
    first_waiting_[event] = -1;
  }

  const Timeline& timeline_;
  const TimelineProblem& problem_;
  std::vector<std::array<std::vector<int>, kStreams>> streams_;  // by program
  std::vector<Worker> workers_;
  std::vector<int> ready_;  // workers
  // By event.
  std::vector<double> arrivals_, begins_, ends_;
  std::vector<int64_t> arrival_causes_, causes_;
  std::vector<int> first_waiting_;  // workers; -1: none
};

TimelineResult Timeline::Run() const { return Simulation(*this).Result(); }

double Timeline::SecondsWithout(int label) {
  std::vector<std::pair<Operation*, double>> changed;
  for (std::vector<Operation>& program : problem_.programs) {
    for (Operation& operation : program) {
      if (operation.label != label) continue;
      changed.emplace_back(&operation, operation.seconds);
      operation.seconds = 0;
    }
  }
  const double seconds = Simulation(*this).Seconds();
  for (const auto& [operation, before] : changed) operation->seconds = before;
  return seconds;
}

}  // namespace distir::analysis
