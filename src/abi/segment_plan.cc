// Computes the pieces that one device sends and receives when segments move along a dimension. Also
// reads and writes segment plans, which state such a move, as JSON.
#include "abi/segment_plan.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "abi/json_writer.h"

namespace distir::abi {

std::string ToJson(const SegmentPlan& plan) {
  std::vector<std::string> segments;
  for (const Segment& each : plan.segments) {
    segments.push_back(
        JsonIntegers(std::vector<int64_t>{each.source, each.target, each.step, each.count}));
  }
  std::vector<std::pair<std::string, std::string>> members = {
      {"channel", std::to_string(plan.channel)},
      {"dim", std::to_string(plan.dim)},
      {"source_size", std::to_string(plan.source_size)},
      {"target_size", std::to_string(plan.target_size)},
      {"fill", JsonString(plan.fill)},
      {"segments", JsonArray(segments)},
      {"source", ToJson(plan.source)},
      {"target", ToJson(plan.target)},
  };
  if (!plan.closeness.levels.empty()) members.emplace_back("near", ToJson(plan.closeness));
  return JsonObject(members);
}

namespace {

int64_t ReadExtent(const JsonReader& root, const char* key, int64_t blocks) {
  const int64_t size = root.Key(key).Natural(kMostElements);
  if (size % blocks != 0)
    root.Key(key).Fail("does not divide into " + std::to_string(blocks) + " blocks");
  return size;
}

void ReadSegments(const JsonReader& list, SegmentPlan* plan) {
  std::vector<std::pair<int64_t, int64_t>> given;
  for (int64_t i = 0, n = list.Size(); i < n; ++i) {
    const std::vector<int64_t> row = list.At(i).Integers();
    if (row.size() != 4) list.At(i).Fail("has not four integers");
    const Segment each{row[0], row[1], row[2], row[3]};
    // In this order: what is computed last is within 64 bits then.
    const bool is_inside = each.count >= 1 && each.target >= 0 && each.count <= plan->target_size &&
                           each.target <= plan->target_size - each.count && each.source >= 0 &&
                           each.source < plan->source_size &&
                           each.step >= -kMostElements / each.count &&
                           each.step <= kMostElements / each.count;
    const int64_t last = is_inside ? each.source + (each.count - 1) * each.step : -1;
    if (last < 0 || last >= plan->source_size) {
      list.At(i).Fail("lies outside of its tensors");
    }
    plan->segments.push_back(each);
    given.emplace_back(each.target, each.target + each.count);
  }
  std::sort(given.begin(), given.end());
  for (size_t i = 1; i < given.size(); ++i) {
    if (given[i].first < given[i - 1].second) list.Fail("give a place twice");
  }
}

}  // namespace

SegmentPlan ReadSegmentPlan(const std::string& json) {
  const JsonReader root = JsonReader::Parse("segment plan", json);
  SegmentPlan plan;
  plan.channel = root.Key("channel").Integer();
  plan.source = ReadLayout(root.Key("source"));
  plan.target = ReadLayout(root.Key("target"));
  plan.dim = root.Key("dim").Integer();
  const size_t ndim = plan.source.dims.size();
  if (plan.dim < 0 || plan.dim >= static_cast<int64_t>(ndim))
    root.Key("dim").Fail("is no dimension");
  for (size_t d = 0; d < std::max(ndim, plan.target.dims.size()); ++d) {
    const bool is_alike = ndim == plan.target.dims.size() &&
                          (static_cast<int64_t>(d) == plan.dim ||
                           CountOf(plan.source.dims[d]) == CountOf(plan.target.dims[d]));
    if (!is_alike) root.Key("target").Fail("differs from the source in another dimension");
  }
  plan.source_size = ReadExtent(root, "source_size", CountOf(plan.source.dims[plan.dim]));
  plan.target_size = ReadExtent(root, "target_size", CountOf(plan.target.dims[plan.dim]));
  plan.fill = root.Key("fill").Text();
  char* end = nullptr;
  std::strtod(plan.fill.c_str(), &end);
  if (plan.fill.empty() || *end != '\0') root.Key("fill").Fail("is not a number");
  ReadSegments(root.Key("segments"), &plan);
  if (root.Has("near")) plan.closeness = ReadCloseness(root.Key("near"));
  return plan;
}

namespace {

int64_t LastSource(const Segment& segment) {
  return segment.source + (segment.count - 1) * segment.step;
}
int64_t LowestSource(const Segment& segment) {
  return std::min(segment.source, LastSource(segment));
}

}  // namespace

SegmentPlanner::SegmentPlanner(const SegmentPlan& plan)
    : plan_(plan),
      source_(plan.source),
      target_(plan.target),
      neighbours_(plan.closeness),
      by_target_(plan.segments),
      by_source_(plan.segments),
      source_extent_(plan.source_size / source_.counts()[plan.dim]),
      target_extent_(plan.target_size / target_.counts()[plan.dim]) {
  std::sort(by_target_.begin(), by_target_.end(),
            [](const Segment& a, const Segment& b) { return a.target < b.target; });
  std::sort(by_source_.begin(), by_source_.end(),
            [](const Segment& a, const Segment& b) { return LowestSource(a) < LowestSource(b); });
  for (const Segment& each : by_source_) {
    const int64_t highest = std::max(each.source, LastSource(each));
    reach_.push_back(reach_.empty() ? highest : std::max(reach_.back(), highest));
  }
}

namespace {

/*! \brief A segment without its first elements, and with no more than `most`. */
Segment Part(const Segment& segment, int64_t skipped, int64_t most) {
  return {segment.source + skipped * segment.step, segment.target + skipped, segment.step,
          std::min(segment.count - skipped, most)};
}

/*! \brief Counts the elements from a segment's first on that lie in the same block. */
int64_t CountInBlock(const Segment& segment, int64_t extent) {
  if (segment.step == 0) return segment.count;
  const int64_t within = segment.source % extent;
  const int64_t room =
      segment.step > 0 ? (extent - 1 - within) / segment.step : within / -segment.step;
  return std::min(segment.count, room + 1);
}

/*! \brief The elements of a segment that lie in [begin, end) of the source; their count may be 0.
 */
Segment WithSourceIn(const Segment& segment, int64_t begin, int64_t end) {
  const int64_t source = segment.source, step = segment.step;
  if (step == 0) return Part(segment, 0, begin <= source && source < end ? segment.count : 0);
  // Steps to the first element that is inside, and to the first behind.
  const auto steps_to = [](int64_t distance, int64_t step) {
    return distance <= 0 ? 0 : (distance + step - 1) / step;
  };
  const int64_t first =
      step > 0 ? steps_to(begin - source, step) : steps_to(source - (end - 1), -step);
  const int64_t behind =
      step > 0 ? steps_to(end - source, step) : steps_to(source - (begin - 1), -step);
  const int64_t skipped = std::min(first, segment.count);
  return Part(segment, skipped, std::max<int64_t>(behind - skipped, 0));
}

}  // namespace

int64_t SegmentPlanner::ChooseHolder(const Holders& holders, int64_t target, int64_t turn) const {
  const DeviceList nearest = holders.NearestTo(target);
  return nearest[turn % nearest.size];
}

void SegmentPlanner::Receive(int64_t device, int64_t position,
                             std::vector<SegmentPiece>* receives) const {
  std::vector<int64_t> block = target_.BlockAt(position);
  const int64_t turn = target_.TurnAt(position);
  const int64_t own_position = source_.PositionOf(device);
  const int64_t own = own_position < 0 ? -1 : source_.NumberAt(own_position);
  const int64_t begin = block[plan_.dim] * target_extent_, end = begin + target_extent_;
  auto segment = std::lower_bound(
      by_target_.begin(), by_target_.end(), begin,
      [](const Segment& each, int64_t place) { return each.target + each.count <= place; });
  for (; segment != by_target_.end() && segment->target < end; ++segment) {
    const int64_t skipped = std::max<int64_t>(0, begin - segment->target);
    Segment rest = Part(*segment, skipped, end - segment->target - skipped);
    while (rest.count > 0) {
      block[plan_.dim] = rest.source / source_extent_;
      const int64_t number = source_.NumberOf(block);
      const int64_t count = CountInBlock(rest, source_extent_);
      const int64_t holder =
          number == own
              ? device
              : ChooseHolder(Holders(neighbours_, source_.HoldersOf(number)), device, turn);
      receives->push_back(
          {holder, {rest.source % source_extent_, rest.target - begin, rest.step, count}});
      rest = Part(rest, count, rest.count);
    }
  }
}

void SegmentPlanner::Send(int64_t device, int64_t position,
                          std::vector<SegmentPiece>* sends) const {
  const int64_t own = source_.NumberAt(position);
  const std::vector<int64_t> own_block = source_.BlockAt(position);
  const Holders holders(neighbours_, source_.HoldersOf(own));
  std::vector<int64_t> block = own_block;
  const int64_t begin = block[plan_.dim] * source_extent_, end = begin + source_extent_;
  auto segment =
      by_source_.begin() + (std::lower_bound(reach_.begin(), reach_.end(), begin) - reach_.begin());
  for (; segment != by_source_.end() && LowestSource(*segment) < end; ++segment) {
    for (Segment rest = WithSourceIn(*segment, begin, end); rest.count > 0;) {
      block[plan_.dim] = rest.target / target_extent_;
      const int64_t place = rest.target % target_extent_;
      const int64_t count = std::min(rest.count, target_extent_ - place);
      const DeviceList targets = target_.HoldersOf(target_.NumberOf(block));
      for (int64_t turn = 0; turn < targets.size; ++turn) {
        const int64_t target = targets[turn];
        const int64_t its = source_.PositionOf(target);
        const int64_t holder =
            its >= 0 && source_.NumberAt(its) == own ? target : ChooseHolder(holders, target, turn);
        if (holder == device)
          sends->push_back({target, {rest.source - begin, place, rest.step, count}});
      }
      rest = Part(rest, count, rest.count);
    }
  }
  std::sort(sends->begin(), sends->end(), [](const SegmentPiece& a, const SegmentPiece& b) {
    return std::tie(a.peer, a.segment.target) < std::tie(b.peer, b.segment.target);
  });
}

SegmentPart SegmentPlanner::PartOf(int64_t device) const {
  SegmentPart part;
  if (const int64_t position = source_.PositionOf(device); position >= 0)
    Send(device, position, &part.sends);
  if (const int64_t position = target_.PositionOf(device); position >= 0)
    Receive(device, position, &part.receives);
  return part;
}

}  // namespace distir::abi
