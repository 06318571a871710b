// Computes the boxes that one device sends and receives when a tensor moves between two layouts.
// Also reads and writes transfer plans, which state such a move, as JSON.
#include "abi/transfer_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "abi/json_writer.h"

namespace distir::abi {

std::string ToJson(const TransferPlan& plan) {
  std::vector<std::pair<std::string, std::string>> members = {
      {"channel", std::to_string(plan.channel)},
      {"shape", JsonIntegers(plan.shape)},
      {"source", ToJson(plan.source)},
      {"target", ToJson(plan.target)},
  };
  if (!plan.closeness.levels.empty()) members.emplace_back("near", ToJson(plan.closeness));
  return JsonObject(members);
}

TransferPlan ReadTransferPlan(const std::string& json) {
  const JsonReader root = JsonReader::Parse("transfer plan", json);
  TransferPlan plan;
  plan.channel = root.Key("channel").Integer();
  const JsonReader shape = root.Key("shape");
  for (int64_t d = 0, n = shape.Size(); d < n; ++d)
    plan.shape.push_back(shape.At(d).Natural(kMostElements));
  plan.source = ReadLayout(root.Key("source"));
  plan.target = ReadLayout(root.Key("target"));
  for (const char* side : {"source", "target"}) {
    const size_t ndim = root.Key(side).Key("dims").Size();
    if (ndim != plan.shape.size()) {
      root.Key(side).Fail("has " + std::to_string(ndim) + " dimensions, the tensor has " +
                          std::to_string(plan.shape.size()));
    }
  }
  if (root.Has("near")) plan.closeness = ReadCloseness(root.Key("near"));
  return plan;
}

namespace {

/*! \brief Moves `at` to the next one of a box of blocks, in row-major order; false behind the last.
 */
bool Next(const std::vector<int64_t>& begin, const std::vector<int64_t>& end,
          std::vector<int64_t>* at) {
  for (size_t d = at->size(); d-- > 0;) {
    if (++(*at)[d] < end[d]) return true;
    (*at)[d] = begin[d];
  }
  return false;
}

int64_t Volume(const std::vector<int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

/*! \brief A block of the source and the blocks of the target that overlap it. */
class TransferPlanner::Meeting {
 public:
  Meeting(const TransferPlanner& planner, int64_t number, std::vector<int64_t> block)
      : planner_(planner), holders_(planner.source_.HoldersOf(number)), block_(std::move(block)) {
    for (size_t d = 0; d < block_.size(); ++d) {
      const int64_t extent = planner.extents_of_source_[d];
      const int64_t of_target = planner.extents_of_target_[d];
      begin_.push_back(block_[d] * extent / of_target);
      end_.push_back(((block_[d] + 1) * extent - 1) / of_target + 1);
    }
  }

  DeviceList holders() const { return holders_; }

  /*! \brief The part of the source's block in one of the target's. */
  Box Overlap(const std::vector<int64_t>& wanted) const {
    Box box;
    for (size_t d = 0; d < block_.size(); ++d) {
      const auto [begin, end] = OverlapAlong(d, wanted[d]);
      box.begin.push_back(begin);
      box.end.push_back(end);
    }
    return box;
  }

  /*! \brief Volume of the block that devices want which do not hold it, in units of the grid. */
  int64_t WantedVolume() const {
    int64_t wanted =
        distir::abi::Volume(planner_.extents_of_source_) * planner_.target_.num_holders();
    if (planner_.target_of_source_.empty()) return wanted;
    for (int64_t holder : holders_) {
      const int64_t at = planner_.target_of_source_[planner_.source_.PositionOf(holder)];
      if (at >= 0) wanted -= Volume(planner_.target_.BlockAt(at));
    }
    return wanted;
  }

  /*! \brief The volume of every overlap; 0 where they are not alike. */
  int64_t VolumeOfEach() const {
    int64_t volume = 1;
    for (size_t d = 0; d < block_.size(); ++d) {
      const std::vector<int64_t> extents = ExtentsAlong(d);
      volume *= extents.size() == 1 ? extents.front() : 0;
    }
    return volume;
  }

  /*! \brief True if a device holds the source's block. */
  bool IsHolder(int64_t device) const {
    return std::binary_search(holders_.begin(), holders_.end(), device);
  }

  /*! \brief Calls visit(device, block) for all that want a part of the block and do not hold it, in
   * the order in which they are served: by block, then by id. */
  template <typename Visit>
  void VisitDemands(Visit visit) const {
    std::vector<int64_t> wanted = begin_;
    do {
      for (int64_t device : planner_.target_.HoldersOf(planner_.target_.NumberOf(wanted))) {
        if (!IsHolder(device)) visit(device, wanted);
      }
    } while (Next(begin_, end_, &wanted));
  }

  /*! \brief Volume of what those of VisitDemands want that are served before the one at a position.
   */
  int64_t VolumeBefore(int64_t position) const {
    const int64_t of_all = VolumeUntil(position);
    if (planner_.target_of_source_.empty()) return of_all;
    int64_t of_holders = 0;
    for (int64_t holder : holders_) {
      const int64_t at = planner_.target_of_source_[planner_.source_.PositionOf(holder)];
      if (at < 0 || !Overlaps(planner_.target_.BlockAt(at))) continue;
      if (Serves(at, position)) of_holders += Volume(planner_.target_.BlockAt(at));
    }
    return of_all - of_holders;
  }

  /*! \brief Volume of the part of the source's block in one of the target's. */
  int64_t Volume(const std::vector<int64_t>& wanted) const {
    int64_t volume = 1;
    for (size_t d = 0; d < block_.size(); ++d) {
      const auto [begin, end] = OverlapAlong(d, wanted[d]);
      volume *= std::max<int64_t>(end - begin, 0);
    }
    return volume;
  }

  /*! \brief All extents that overlaps have along a dimension: those between the first and the last
   * are alike. */
  std::vector<int64_t> ExtentsAlong(size_t d) const {
    std::vector<int64_t> extents;
    for (int64_t wanted : {begin_[d], std::min(begin_[d] + 1, end_[d] - 1), end_[d] - 1}) {
      const auto [begin, end] = OverlapAlong(d, wanted);
      if (std::find(extents.begin(), extents.end(), end - begin) == extents.end())
        extents.push_back(end - begin);
    }
    return extents;
  }

 private:
  bool Overlaps(const std::vector<int64_t>& wanted) const {
    for (size_t d = 0; d < wanted.size(); ++d) {
      if (wanted[d] < begin_[d] || wanted[d] >= end_[d]) return false;
    }
    return true;
  }

  /*! \brief True if the device at one position of the target comes before that at another. */
  bool Serves(int64_t first, int64_t then) const {
    const std::vector<int64_t> of_first = planner_.target_.BlockAt(first);
    const std::vector<int64_t> of_then = planner_.target_.BlockAt(then);
    if (of_first != of_then) return of_first < of_then;
    return planner_.target_.TurnAt(first) < planner_.target_.TurnAt(then);
  }

  /*! \brief As VolumeBefore, as if no device held the block. */
  int64_t VolumeUntil(int64_t position) const {
    const std::vector<int64_t> wanted = planner_.target_.BlockAt(position);
    int64_t before = 0;  // of blocks, in row-major order
    int64_t slice = distir::abi::Volume(planner_.extents_of_source_);
    for (size_t d = 0; d < wanted.size(); ++d) {
      const int64_t start = block_[d] * planner_.extents_of_source_[d];
      const auto [begin, end] = OverlapAlong(d, wanted[d]);
      slice /= planner_.extents_of_source_[d];
      before += (begin - start) * slice;
      slice *= end - begin;
    }
    return before * planner_.target_.num_holders() + planner_.target_.TurnAt(position) * slice;
  }

  std::pair<int64_t, int64_t> OverlapAlong(size_t d, int64_t wanted) const {
    const int64_t extent = planner_.extents_of_source_[d];
    const int64_t of_target = planner_.extents_of_target_[d];
    return {std::max(block_[d] * extent, wanted * of_target),
            std::min((block_[d] + 1) * extent, (wanted + 1) * of_target)};
  }

  const TransferPlanner& planner_;
  DeviceList holders_;
  std::vector<int64_t> block_;
  std::vector<int64_t> begin_, end_;  // of the target's blocks
};

namespace {

/*! \brief Factor by which the grid must be finer to cut so many units into equal slabs. */
int64_t Refinement(int64_t units, int64_t slabs) { return slabs / std::gcd(units, slabs); }

/*! \brief The dimension along which a box of these extents cuts into equal slabs with the least
 * refinement; their number when there is none. */
size_t DimensionToCut(const std::vector<int64_t>& extents, const std::vector<int64_t>& units,
                      int64_t slabs) {
  size_t best = extents.size();
  int64_t least = 0;
  for (size_t d = 0; d < extents.size(); ++d) {
    const int64_t finer = Refinement(extents[d], slabs);
    if (finer > 1 && (units[d] == 0 || units[d] % finer != 0)) continue;
    if (best == extents.size() || finer < least) {
      best = d;
      least = finer;
    }
  }
  return best;
}

/*! \brief One part of what holders send of a block, by volume in any unit. */
struct Demand {
  int64_t before, volume;  // of those that are served before it; its own
  int64_t all;             // of all of them
};

/*! \brief Equal slabs of a demand, of which the holders serve some each. */
struct Slabs {
  size_t dim = 0;
  int64_t count = 1;
};

/*! \brief Cuts a demand so that every holder serves the same volume; if no dimension divides so,
 * into as many slabs as one has. */
Slabs SlabsOf(const Demand& demand, const std::vector<int64_t>& extents,
              const std::vector<int64_t>& units, int64_t holders) {
  // Ends of parts lie at (turn * all - holders * before) / (holders * volume) of the demand.
  const int64_t whole = holders * demand.volume;
  const int64_t slabs = whole / std::gcd(whole, std::gcd(demand.all, holders * demand.before));
  if (slabs == 1) return {};
  const size_t exact = DimensionToCut(extents, units, slabs);
  if (exact < extents.size()) return {exact, slabs};
  Slabs finest;
  for (size_t d = 0; d < extents.size(); ++d) {
    const int64_t count = extents[d] * std::max<int64_t>(units[d], 1);
    if (count > finest.count) finest = {d, count};
  }
  return finest;
}

/*! \brief The first slab of a demand that the holders before one do not serve; may be none of it.
 */
int64_t FirstSlab(const Demand& demand, int64_t slabs, int64_t turn, int64_t holders) {
  __extension__ using Wide = __int128;
  const Wide end = Wide{turn} * demand.all - Wide{holders} * demand.before;
  if (end <= 0) return 0;
  const Wide whole = Wide{holders} * demand.volume;
  return static_cast<int64_t>(std::min<Wide>(slabs, (end * slabs + whole - 1) / whole));
}

std::vector<int64_t> ExtentsOf(const Box& box) {
  std::vector<int64_t> extents;
  for (size_t d = 0; d < box.begin.size(); ++d) extents.push_back(box.end[d] - box.begin[d]);
  return extents;
}

}  // namespace

/*! \brief The pieces of one device, whose grid gets finer with every cut. */
class TransferPlanner::Pieces {
 public:
  explicit Pieces(const TransferPlanner& planner)
      : planner_(planner), refinement_(planner.grid_.size(), 1) {}

  void AddSend(int64_t peer, Box box) { sends_.push_back({peer, std::move(box), 0, 0, 0, 1}); }
  void AddReceive(int64_t peer, Box box) {
    receives_.push_back({peer, std::move(box), 0, 0, 0, 1});
  }

  /*!
   * \brief Finds which of the holders give which slabs of a demand.
   * \param visit visit(holder, from, to): slabs [from, to) of `slabs`.
   */
  template <typename Visit>
  static void Serve(const Demand& demand, int64_t slabs, DeviceList holders, Visit visit) {
    __extension__ using Wide = __int128;
    auto turn = static_cast<int64_t>(Wide{demand.before} * holders.size / demand.all);
    for (int64_t slab = 0; slab < slabs; ++turn) {
      const int64_t next =
          turn + 1 < holders.size ? FirstSlab(demand, slabs, turn + 1, holders.size) : slabs;
      if (next > slab) visit(holders[turn], slab, next);
      slab = std::max(slab, next);
    }
  }

  void AddCut(bool is_send, int64_t peer, const Box& box, int64_t from, int64_t to,
              const Slabs& slabs) {
    if (from > 0 || to < slabs.count) {
      const int64_t extent = box.end[slabs.dim] - box.begin[slabs.dim];
      for (int64_t end : {from, to}) {
        const int64_t finer = slabs.count / std::gcd(slabs.count, extent * end);
        refinement_[slabs.dim] = std::lcm(refinement_[slabs.dim], finer);
      }
    }
    (is_send ? sends_ : receives_).push_back({peer, box, slabs.dim, from, to, slabs.count});
  }

  void Write(TransferPart* part) const {
    part->grid = planner_.grid_;
    for (size_t d = 0; d < refinement_.size(); ++d) part->grid[d] *= refinement_[d];
    for (std::optional<Box>* box : {&part->held, &part->wanted}) {
      if (box->has_value()) Refine(&**box);
    }
    for (const Cut& cut : sends_) part->sends.push_back(PieceOf(cut));
    for (const Cut& cut : receives_) part->receives.push_back(PieceOf(cut));
    std::sort(part->sends.begin(), part->sends.end(), [](const auto& a, const auto& b) {
      return std::tie(a.peer, a.box.begin) < std::tie(b.peer, b.box.begin);
    });
    std::sort(part->receives.begin(), part->receives.end(),
              [](const auto& a, const auto& b) { return a.box.begin < b.box.begin; });
  }

 private:
  /*! \brief Slabs [from, to) of a box that is cut into `slabs` along `dim`. */
  struct Cut {
    int64_t peer;
    Box box;
    size_t dim;
    int64_t from, to, slabs;
  };

  void Refine(Box* box) const {
    for (size_t d = 0; d < refinement_.size(); ++d) {
      box->begin[d] *= refinement_[d];
      box->end[d] *= refinement_[d];
    }
  }

  TransferPiece PieceOf(const Cut& cut) const {
    TransferPiece piece{cut.peer, cut.box};
    Refine(&piece.box);
    if (cut.slabs > 1) {
      const int64_t begin = piece.box.begin[cut.dim];
      const int64_t extent = piece.box.end[cut.dim] - begin;
      piece.box.begin[cut.dim] = begin + extent * cut.from / cut.slabs;
      piece.box.end[cut.dim] = begin + extent * cut.to / cut.slabs;
    }
    return piece;
  }

  const TransferPlanner& planner_;
  std::vector<int64_t> refinement_;
  std::vector<Cut> sends_, receives_;
};

TransferPlanner::TransferPlanner(const TransferPlan& plan)
    : plan_(plan), source_(plan.source), target_(plan.target), neighbours_(plan.closeness) {
  for (size_t d = 0; d < source_.ndim(); ++d) {
    const int64_t grid = std::lcm(source_.counts()[d], target_.counts()[d]);
    const int64_t extent = d < plan.shape.size() ? plan.shape[d] : 0;
    grid_.push_back(grid);
    units_.push_back(extent % grid == 0 ? extent / grid : 0);
    extents_of_source_.push_back(grid / source_.counts()[d]);
    extents_of_target_.push_back(grid / target_.counts()[d]);
  }
  bool any = false;
  for (int64_t device : plan.source.device_ids) {
    target_of_source_.push_back(target_.PositionOf(device));
    any = any || target_of_source_.back() >= 0;
  }
  if (!any) target_of_source_.clear();
}

Box TransferPlanner::BoxOf(const Blocks& side, int64_t position) const {
  const std::vector<int64_t>& extents = &side == &source_ ? extents_of_source_ : extents_of_target_;
  Box box;
  const std::vector<int64_t> block = side.BlockAt(position);
  for (size_t d = 0; d < block.size(); ++d) {
    box.begin.push_back(block[d] * extents[d]);
    box.end.push_back((block[d] + 1) * extents[d]);
  }
  return box;
}

void TransferPlanner::Receive(int64_t position, const Box& wanted, Pieces* pieces) const {
  const int64_t device = plan_.target.device_ids[position];
  const std::vector<int64_t> own = target_.BlockAt(position);
  std::vector<int64_t> begin, end;  // of the source's blocks
  for (size_t d = 0; d < own.size(); ++d) {
    begin.push_back(wanted.begin[d] / extents_of_source_[d]);
    end.push_back((wanted.end[d] - 1) / extents_of_source_[d] + 1);
  }
  std::vector<int64_t> block = begin;
  do {
    const Meeting meeting(*this, source_.NumberOf(block), block);
    const Box box = meeting.Overlap(own);
    if (meeting.IsHolder(device)) {
      pieces->AddReceive(device, box);
      continue;
    }
    const Holders holders(neighbours_, meeting.holders());
    const DeviceList nearest = holders.NearestTo(device);
    if (nearest.size == 1) {
      pieces->AddReceive(nearest[0], box);
      continue;
    }
    Demand demand{0, meeting.Volume(own), 0};
    if (neighbours_.AllAlike()) {
      demand.before = meeting.VolumeBefore(position);
      demand.all = meeting.WantedVolume();
    } else {
      meeting.VisitDemands([&](int64_t other, const std::vector<int64_t>& its_block) {
        const DeviceList its = holders.NearestTo(other);
        if (its[0] != nearest[0] || its.size != nearest.size) return;
        if (other == device) demand.before = demand.all;
        demand.all += meeting.Volume(its_block);
      });
    }
    const Slabs slabs = SlabsOf(demand, ExtentsOf(box), units_, nearest.size);
    Pieces::Serve(demand, slabs.count, nearest, [&](int64_t holder, int64_t from, int64_t to) {
      pieces->AddCut(false, holder, box, from, to, slabs);
    });
  } while (Next(begin, end, &block));
}

void TransferPlanner::Send(int64_t position, Pieces* pieces) const {
  const int64_t device = plan_.source.device_ids[position];
  const Meeting meeting(*this, source_.NumberAt(position), source_.BlockAt(position));
  const int64_t own = target_of_source_.empty() ? -1 : target_of_source_[position];
  if (own >= 0) {
    const Box box = meeting.Overlap(target_.BlockAt(own));
    bool is_empty = false;
    for (int64_t extent : ExtentsOf(box)) is_empty = is_empty || extent <= 0;
    if (!is_empty) pieces->AddSend(device, box);
  }
  const Holders holders(neighbours_, meeting.holders());
  struct Wish {
    int64_t target;
    std::vector<int64_t> block;
  };
  struct Class {
    DeviceList nearest;
    std::vector<Wish> wishes;
    int64_t volume = 0;
  };
  // Per set of nearest holders, which its first device and size tell.
  std::map<std::pair<int64_t, int64_t>, Class> classes;
  meeting.VisitDemands([&](int64_t target, const std::vector<int64_t>& block) {
    const DeviceList nearest = holders.NearestTo(target);
    if (!std::binary_search(nearest.begin(), nearest.end(), device)) return;
    Class& its = classes[{nearest[0], nearest.size}];
    its.nearest = nearest;
    its.wishes.push_back({target, block});
    its.volume += meeting.Volume(block);
  });
  for (const auto& [key, its] : classes) {
    const DeviceList nearest = its.nearest;
    const int64_t turn = std::lower_bound(nearest.begin(), nearest.end(), device) - nearest.begin();
    Demand demand{0, 0, its.volume};
    for (const Wish& wish : its.wishes) {
      demand.before += demand.volume;
      demand.volume = meeting.Volume(wish.block);
      // Demands are served in turn, so those of this device are neighbours.
      if ((demand.before + demand.volume) * nearest.size < turn * its.volume) continue;
      if (demand.before * nearest.size > (turn + 1) * its.volume) break;
      const Box box = meeting.Overlap(wish.block);
      const Slabs slabs = SlabsOf(demand, ExtentsOf(box), units_, nearest.size);
      Pieces::Serve(demand, slabs.count, nearest, [&](int64_t holder, int64_t from, int64_t to) {
        if (holder == device) pieces->AddCut(true, wish.target, box, from, to, slabs);
      });
    }
  }
}

TransferPart TransferPlanner::PartOf(int64_t device) const {
  TransferPart part;
  Pieces pieces(*this);
  if (const int64_t position = source_.PositionOf(device); position >= 0) {
    part.held = BoxOf(source_, position);
    Send(position, &pieces);
  }
  if (const int64_t position = target_.PositionOf(device); position >= 0) {
    part.wanted = BoxOf(target_, position);
    Receive(position, *part.wanted, &pieces);
  }
  pieces.Write(&part);
  return part;
}

std::vector<SentShare> TransferPlanner::SharesByDemands(const Meeting& meeting) const {
  const Holders holders(neighbours_, meeting.holders());
  struct Class {
    DeviceList nearest;
    std::vector<std::vector<int64_t>> blocks;  // that it serves, in order
    int64_t volume = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Class> classes;  // as in Send
  meeting.VisitDemands([&](int64_t target, const std::vector<int64_t>& block) {
    const DeviceList nearest = holders.NearestTo(target);
    Class& its = classes[{nearest[0], nearest.size}];
    its.nearest = nearest;
    its.blocks.push_back(block);
    its.volume += meeting.Volume(block);
  });
  std::vector<SentShare> shares;
  for (int64_t holder : meeting.holders())
    shares.push_back({holder, 0, Volume(extents_of_source_)});
  for (const auto& [key, its] : classes) {
    Demand demand{0, 0, its.volume};
    for (const std::vector<int64_t>& block : its.blocks) {
      demand.before += demand.volume;
      demand.volume = meeting.Volume(block);
      const std::vector<int64_t> extents = ExtentsOf(meeting.Overlap(block));
      const int64_t slabs = SlabsOf(demand, extents, units_, its.nearest.size).count;
      const auto give = [&, volume = demand.volume](int64_t holder, int64_t from, int64_t to) {
        auto share = std::lower_bound(
            shares.begin(), shares.end(), holder,
            [](const SentShare& one, int64_t device) { return one.device < device; });
        // Other demands that the holder serves may be cut otherwise.
        const int64_t cut = share->block / Volume(extents_of_source_);
        const int64_t part = slabs / std::gcd(slabs, volume * (to - from));
        const int64_t common = std::lcm(cut, part);
        share->sent =
            share->sent * (common / cut) + volume * (to - from) * part / slabs * (common / part);
        share->block *= common / cut;
      };
      Pieces::Serve(demand, slabs, its.nearest, give);
    }
  }
  return shares;
}

std::vector<SentShare> TransferPlanner::SharesOf(int64_t number) const {
  const DeviceList holders = source_.HoldersOf(number);
  const Meeting meeting(*this, number, source_.BlockAt(source_.PositionOf(holders[0])));
  const int64_t block = Volume(extents_of_source_), wanted = meeting.WantedVolume();
  if (holders.size == 1 || wanted == 0) {
    std::vector<SentShare> shares;
    for (int64_t holder : holders) shares.push_back({holder, wanted, block});
    return shares;
  }
  const int64_t each = meeting.VolumeOfEach();
  if (each == 0 || !neighbours_.AllAlike()) return SharesByDemands(meeting);
  std::vector<int64_t> extents;
  for (size_t d = 0; d < source_.ndim(); ++d) extents.push_back(meeting.ExtentsAlong(d).front());
  // Demands are alike, so they are cut as the first is.
  const Demand all{0, each, wanted};
  const int64_t slabs = SlabsOf(all, extents, units_, holders.size).count;
  const auto first = [&, cuts = wanted / each * slabs](int64_t turn) {
    return (turn * cuts + holders.size - 1) / holders.size;
  };
  std::vector<SentShare> shares;
  for (int64_t turn = 0; turn < holders.size; ++turn)
    shares.push_back({holders[turn], (first(turn + 1) - first(turn)) * each, block * slabs});
  return shares;
}

}  // namespace distir::abi
