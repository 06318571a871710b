// Reads and writes layouts, and finds for a block the nearest device that holds it.
#include "abi/layout.h"

#include <algorithm>

#include "abi/json_writer.h"

namespace distir::abi {

int64_t ReadDigits(const Digits& digits, int64_t position) {
  int64_t number = 0;
  for (const Digit& digit : digits)
    number = number * digit.size + position / digit.stride % digit.size;
  return number;
}

int64_t CountOf(const Digits& digits) {
  int64_t count = 1;
  for (const Digit& digit : digits) count *= digit.size;
  return count;
}

namespace {

/*! \brief Ids as runs [first, count, step]. */
std::string DevicesJson(const std::vector<int64_t>& ids) {
  std::vector<std::string> runs;
  for (size_t begin = 0, end; begin < ids.size(); begin = end) {
    int64_t step = begin + 1 < ids.size() ? ids[begin + 1] - ids[begin] : 1;
    end = begin + 1;
    while (end < ids.size() && ids[end] - ids[end - 1] == step) ++end;
    if (end - begin == 2 && step != 1) {  // the second may begin a longer run
      --end;
      step = 1;
    }
    runs.push_back(
        JsonIntegers(std::vector<int64_t>{ids[begin], static_cast<int64_t>(end - begin), step}));
  }
  return JsonArray(runs);
}

std::string DigitsJson(const std::vector<Digits>& all) {
  std::vector<std::string> lists;
  for (const Digits& digits : all) {
    std::vector<std::string> items;
    for (const Digit& digit : digits)
      items.push_back(JsonIntegers(std::vector<int64_t>{digit.stride, digit.size}));
    lists.push_back(JsonArray(items));
  }
  return JsonArray(lists);
}

std::vector<int64_t> ReadDevices(const JsonReader& runs) {
  std::vector<int64_t> ids;
  for (int64_t r = 0, n = runs.Size(); r < n; ++r) {
    const JsonReader run = runs.At(r);
    const std::vector<int64_t> numbers = run.Integers();
    const bool is_run = numbers.size() == 3 && numbers[1] >= 1 &&
                        numbers[1] <= kMostDevices - static_cast<int64_t>(ids.size()) &&
                        numbers[0] >= 0 && numbers[0] <= kMostDeviceId &&
                        numbers[2] >= -kMostDeviceId && numbers[2] <= kMostDeviceId;
    const int64_t last = is_run ? numbers[0] + (numbers[1] - 1) * numbers[2] : -1;
    if (!is_run || last < 0 || last > kMostDeviceId)
      run.Fail("is not a run of devices: first id, count, step");
    for (int64_t i = 0; i < numbers[1]; ++i) ids.push_back(numbers[0] + i * numbers[2]);
  }
  std::vector<int64_t> sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) runs.Fail("device " + std::to_string(*twice) + " occurs twice");
  return ids;
}

std::vector<Digits> ReadDigitLists(const JsonReader& lists, int64_t num_devices) {
  if (lists.Size() > kMostDims)
    lists.Fail("has " + std::to_string(lists.Size()) + " lists, more than there can be");
  std::vector<Digits> all;
  for (int64_t l = 0, n = lists.Size(); l < n; ++l) {
    const JsonReader list = lists.At(l);
    Digits digits;
    for (int64_t i = 0, m = list.Size(); i < m; ++i) {
      const std::vector<int64_t> numbers = list.At(i).Integers();
      const bool is_digit = numbers.size() == 2 && numbers[0] >= 1 && numbers[1] >= 1 &&
                            numbers[0] <= num_devices && numbers[1] <= num_devices &&
                            num_devices % (numbers[0] * numbers[1]) == 0;
      if (!is_digit) {
        list.At(i).Fail("is not a digit of the position among " + std::to_string(num_devices) +
                        " devices: stride, size");
      }
      if (numbers[1] != 1) digits.push_back({numbers[0], numbers[1]});
    }
    all.push_back(std::move(digits));
  }
  return all;
}

}  // namespace

std::string ToJson(const Layout& layout) {
  return JsonObject(
      {{"devices", DevicesJson(layout.device_ids)}, {"dims", DigitsJson(layout.dims)}});
}

Layout ReadLayout(const JsonReader& json) {
  Layout layout;
  layout.device_ids = ReadDevices(json.Key("devices"));
  const int64_t num_devices = static_cast<int64_t>(layout.device_ids.size());
  if (num_devices == 0) json.Key("devices").Fail("has no device");
  layout.dims = ReadDigitLists(json.Key("dims"), num_devices);
  int64_t num_blocks = 1;
  for (const Digits& digits : layout.dims) {
    for (const Digit& digit : digits) {
      num_blocks *= digit.size;
      if (num_devices % num_blocks != 0) json.Key("dims").Fail("has more blocks than devices");
    }
  }
  std::vector<int64_t> holders(num_blocks, 0);
  for (int64_t position = 0; position < num_devices; ++position) {
    int64_t number = 0;
    for (const Digits& digits : layout.dims)
      number = number * CountOf(digits) + ReadDigits(digits, position);
    ++holders[number];
  }
  for (int64_t count : holders) {
    if (count * num_blocks != num_devices)
      json.Key("dims").Fail("gives blocks to different numbers of devices");
  }
  return layout;
}

// ---- blocks

Blocks::Blocks(const Layout& layout) : block_at_(layout.device_ids.size()) {
  int64_t num_blocks = 1;
  for (const Digits& digits : layout.dims) {
    counts_.push_back(CountOf(digits));
    num_blocks *= counts_.back();
  }
  const int64_t num_devices = static_cast<int64_t>(layout.device_ids.size());
  num_holders_ = num_devices / num_blocks;
  for (int64_t position = 0; position < num_devices; ++position) {
    int64_t number = 0;
    for (size_t d = 0; d < counts_.size(); ++d)
      number = number * counts_[d] + ReadDigits(layout.dims[d], position);
    block_at_[position] = number;
    by_id_.emplace_back(layout.device_ids[position], position);
  }
  if (!std::is_sorted(by_id_.begin(), by_id_.end())) std::sort(by_id_.begin(), by_id_.end());
  holders_.resize(num_devices);
  turn_at_.resize(num_devices);
  std::vector<int64_t> found(num_blocks, 0);
  for (const auto& [id, position] : by_id_) {
    const int64_t block = block_at_[position];
    turn_at_[position] = found[block]++;
    holders_[block * num_holders_ + turn_at_[position]] = id;
  }
}

int64_t Blocks::PositionOf(int64_t device) const {
  if (by_id_.empty()) return -1;
  // Ids are mostly consecutive, so look where the id then is before searching.
  const int64_t guess = device - by_id_.front().first;
  if (guess >= 0 && guess < static_cast<int64_t>(by_id_.size()) && by_id_[guess].first == device)
    return by_id_[guess].second;
  auto found = std::lower_bound(by_id_.begin(), by_id_.end(), std::make_pair(device, int64_t{-1}));
  return found == by_id_.end() || found->first != device ? -1 : found->second;
}

int64_t Blocks::NumberOf(const std::vector<int64_t>& block) const {
  int64_t number = 0;
  for (size_t d = 0; d < counts_.size(); ++d) number = number * counts_[d] + block[d];
  return number;
}

std::vector<int64_t> Blocks::Unravel(int64_t number) const {
  std::vector<int64_t> block(counts_.size());
  for (size_t d = counts_.size(); d-- > 0; number /= counts_[d]) block[d] = number % counts_[d];
  return block;
}

// ---- closeness

std::string ToJson(const Closeness& closeness) {
  return JsonObject(
      {{"devices", DevicesJson(closeness.device_ids)}, {"levels", DigitsJson(closeness.levels)}});
}

Closeness ReadCloseness(const JsonReader& json) {
  Closeness closeness;
  closeness.device_ids = ReadDevices(json.Key("devices"));
  closeness.levels =
      ReadDigitLists(json.Key("levels"), static_cast<int64_t>(closeness.device_ids.size()));
  return closeness;
}

Neighbours::Neighbours(const Closeness& closeness) : closeness_(closeness) {
  for (size_t position = 0; position < closeness.device_ids.size(); ++position)
    position_of_.emplace(closeness.device_ids[position], static_cast<int64_t>(position));
}

int64_t Neighbours::BallOf(int64_t device, size_t level) const {
  auto found = position_of_.find(device);
  // A number of its own: no ball has a negative one.
  if (found == position_of_.end()) return -1 - device;
  return ReadDigits(closeness_.levels[level], found->second);
}

Holders::Holders(const Neighbours& neighbours, DeviceList all)
    : neighbours_(neighbours), all_(all) {
  if (all.size == 1) return;
  for (size_t level = 0; level < neighbours.num_levels(); ++level) {
    Balls& balls = levels_.emplace_back();
    for (int64_t device : all) balls[neighbours.BallOf(device, level)].push_back(device);
  }
}

DeviceList Holders::NearestTo(int64_t device) const {
  for (size_t level = 0; level < levels_.size(); ++level) {
    auto found = levels_[level].find(neighbours_.BallOf(device, level));
    if (found != levels_[level].end())
      return {found->second.data(), static_cast<int64_t>(found->second.size())};
  }
  return all_;
}

}  // namespace distir::abi
