/*!
 * \file abi/segment_plan.h
 * \brief Plan of a movement along one dimension of a tensor: the elements of the result are
 * segments of the source's, in any order, with steps, repeated or left out.
 *
 * A plan states the segments of the global tensors and the two layouts; each device computes from
 * them what it sends and receives. Positions are elements, and all other dimensions stay as they
 * are, so a plan serves any size of them:
 * \code{.json}
 *   {"channel": 3, "dim": 1, "source_size": 8, "target_size": 12, "fill": "0",
 *    "segments": [[0, 1, 1, 5], [3, 6, 1, 5]],       source, target, step, count
 *    "source": {"devices": [[0, 2, 1]], "dims": [[], [[1, 2]]]},
 *    "target": {"devices": [[0, 2, 1]], "dims": [[], [[1, 2]]]}}
 * \endcode
 * Two shards of four columns become two of six: each gets one column of the other one, and places 0
 * and 11, which no segment gives, are filled with "fill".
 *
 * A device takes from itself what it has. All else it gets from the nearest device that has it; if
 * several are equally near, the sending is spread over them.
 */
#ifndef DISTIR_ABI_SEGMENT_PLAN_H_
#define DISTIR_ABI_SEGMENT_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "abi/layout.h"

namespace distir::abi {

/*! \brief Places `target`, `target` + 1, .. of the result: elements `source`, `source` + `step`, ..
 */
struct Segment {
  int64_t source;
  int64_t target;
  int64_t step;  // any sign; 0 repeats one element
  int64_t count;
};

struct SegmentPlan {
  int64_t channel = 0;
  int64_t dim = 0;
  int64_t source_size = 0, target_size = 0;  // of the global tensors along dim
  std::string fill;                          // a number
  std::vector<Segment> segments;             // in any order
  Layout source, target;                     // alike in all dimensions but dim
  Closeness closeness;
};

std::string ToJson(const SegmentPlan& plan);
/*!
 * \throws ValueError for text that is not a plan, segments that lie outside of the tensors or give
 * a place twice, and sizes that do not divide into their blocks.
 */
SegmentPlan ReadSegmentPlan(const std::string& json);

/*! \brief Part of a segment that goes to or comes from a device, which may be the same one. */
struct SegmentPiece {
  int64_t peer;
  Segment segment;  // positions within both blocks
};

/*! \brief Sends and receives of one device; both devices of a pair list its pieces in one order. */
struct SegmentPart {
  std::vector<SegmentPiece> sends;     // by target, then place there
  std::vector<SegmentPiece> receives;  // by place
};

class SegmentPlanner {
 public:
  explicit SegmentPlanner(const SegmentPlan& plan);
  SegmentPart PartOf(int64_t device) const;

  const Blocks& source() const { return source_; }
  const Blocks& target() const { return target_; }
  /*! \brief Elements along the dimension in one block. */
  int64_t source_extent() const { return source_extent_; }
  int64_t target_extent() const { return target_extent_; }

 private:
  int64_t ChooseHolder(const Holders& holders, int64_t target, int64_t turn) const;
  void Receive(int64_t device, int64_t position, std::vector<SegmentPiece>* receives) const;
  void Send(int64_t device, int64_t position, std::vector<SegmentPiece>* sends) const;

  const SegmentPlan& plan_;
  Blocks source_, target_;
  Neighbours neighbours_;
  std::vector<Segment> by_target_;
  std::vector<Segment> by_source_;  // by the lowest element that they take
  std::vector<int64_t> reach_;      // the highest that one of by_source_, or one before it, takes
  int64_t source_extent_, target_extent_;
};

}  // namespace distir::abi
#endif  // DISTIR_ABI_SEGMENT_PLAN_H_
