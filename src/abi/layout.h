/*!
 * \file abi/layout.h
 * \brief Block of a tensor that each of some devices holds, as plain numbers.
 *
 * A layout says for every tensor dimension which digits of a device's position are the index of its
 * block: a digit is position / stride % size, and digits are listed major to minor. So it is as
 * long as the list of device ids, which JSON writes as runs, whatever is sharded how.
 *
 * Worked example: a matrix on a mesh (2, 4) of devices 0..7, rows sharded along the second axis:
 * \code{.json}
 *   {"devices": [[0, 8, 1]], "dims": [[[1, 4]], []]}      runs: first id, count, step
 * \endcode
 * Device 6, at position 6, holds block 6 / 1 % 4 = 2 of the rows, and all columns. So does device
 * 2.
 */
#ifndef DISTIR_ABI_LAYOUT_H_
#define DISTIR_ABI_LAYOUT_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/json_reader.h"

namespace distir::abi {

// Limits of plans: a short plan must neither take long to read nor overflow.
constexpr int64_t kMostDevices = int64_t{1} << 20;
constexpr int64_t kMostDeviceId = int64_t{1} << 31;
constexpr int64_t kMostElements = int64_t{1} << 48;  // along a dimension
constexpr int64_t kMostDims = 64;

/*! \brief position / stride % size. */
struct Digit {
  int64_t stride;
  int64_t size;
};
using Digits = std::vector<Digit>;  // major to minor

/*! \brief The number that the digits of a position are. */
int64_t ReadDigits(const Digits& digits, int64_t position);
/*! \brief The count of numbers that the digits can be. */
int64_t CountOf(const Digits& digits);

struct Layout {
  std::vector<int64_t> device_ids;  // by position
  std::vector<Digits> dims;         // per tensor dimension
};

std::string ToJson(const Layout& layout);
/*! \throws ValueError for other text, repeated devices, and digits by which blocks have different
 * numbers of holders. */
Layout ReadLayout(const JsonReader& json);

/*! \brief Devices, by id. */
struct DeviceList {
  const int64_t* first = nullptr;
  int64_t size = 0;

  const int64_t* begin() const { return first; }
  const int64_t* end() const { return first + size; }
  int64_t operator[](int64_t i) const { return first[i]; }
};

/*! \brief The blocks of a layout and who holds each. Made in time linear in the devices. */
class Blocks {
 public:
  explicit Blocks(const Layout& layout);

  size_t ndim() const { return counts_.size(); }
  const std::vector<int64_t>& counts() const { return counts_; }  // blocks per dimension
  int64_t num_blocks() const { return static_cast<int64_t>(block_at_.size()) / num_holders_; }
  int64_t num_holders() const { return num_holders_; }  // of each block
  /*! \brief The position of a device in the layout, or -1. */
  int64_t PositionOf(int64_t device) const;
  /*! \brief The index of the block in each dimension that the device at a position holds. */
  std::vector<int64_t> BlockAt(int64_t position) const { return Unravel(block_at_[position]); }
  /*! \brief Block as one row-major number. */
  int64_t NumberAt(int64_t position) const { return block_at_[position]; }
  int64_t NumberOf(const std::vector<int64_t>& block) const;
  /*! \brief Sorted by id. */
  DeviceList HoldersOf(int64_t number) const {
    return {&holders_[number * num_holders_], num_holders_};
  }
  /*! \brief Index of the device at a position among the holders of its block. */
  int64_t TurnAt(int64_t position) const { return turn_at_[position]; }

 private:
  std::vector<int64_t> Unravel(int64_t number) const;

  std::vector<int64_t> counts_;
  int64_t num_holders_ = 1;
  std::vector<std::pair<int64_t, int64_t>> by_id_;  // (device id, position), sorted
  std::vector<int64_t> block_at_, turn_at_;         // by position
  std::vector<int64_t> holders_;                    // of one block after the other
};

/*!
 * \brief Closeness of devices to each other. A level cuts all devices into balls, which are larger
 * with every level; of two holders, the nearer one shares the ball of a lower level. Devices that
 * are not listed are alone in their balls. With no level all are equally near.
 */
struct Closeness {
  std::vector<int64_t> device_ids;  // by position
  std::vector<Digits> levels;       // the ball of a position
};

std::string ToJson(const Closeness& closeness);
Closeness ReadCloseness(const JsonReader& json);

/*! \brief Answers which of some holders are nearest. */
class Neighbours {
 public:
  explicit Neighbours(const Closeness& closeness);
  bool AllAlike() const { return closeness_.levels.empty(); }
  int64_t BallOf(int64_t device, size_t level) const;
  size_t num_levels() const { return closeness_.levels.size(); }

 private:
  const Closeness& closeness_;
  std::unordered_map<int64_t, int64_t> position_of_;
};

/*! \brief The holders of one block by their balls. */
class Holders {
 public:
  Holders(const Neighbours& neighbours, DeviceList all);
  /*! \brief The holders nearest to a device, sorted by id. Of two such lists, either both are
   * the same or they have different first devices or sizes. */
  DeviceList NearestTo(int64_t device) const;

 private:
  using Balls = std::unordered_map<int64_t, std::vector<int64_t>>;
  const Neighbours& neighbours_;
  DeviceList all_;
  std::vector<Balls> levels_;
};

}  // namespace distir::abi
#endif  // DISTIR_ABI_LAYOUT_H_
