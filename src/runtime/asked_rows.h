/*!
 * \file runtime/asked_rows.h
 * \brief Exchange of flagged rows, which lie in equal parts on the members of a group: each member
 * fetches the rows that it has flagged, or adds to them.
 *
 * Members tell each other which rows they flag, by one byte for each row. Then the rows between two
 * members move in one piece. Example: 4 rows on 2 devices; device 0 flags rows 1 and 2. Row 1 is
 * its own. It fetches row 2 from device 1, or sends device 1 what is added to row 2.
 */
#ifndef DISTIR_RUNTIME_ASKED_ROWS_H_
#define DISTIR_RUNTIME_ASKED_ROWS_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/session/worker_context.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::runtime {

class AskedRows {
 public:
  /*! \param rows Of all members. \param is_asked True if this worker flags one of them. */
  AskedRows(int64_t rows, const std::function<bool(int64_t)>& is_asked, Group* group);

  /*! \brief The rows that this worker has flagged. */
  const std::vector<int64_t>& mine() const { return mine_; }

  /*! \brief Gives the rows that this worker has flagged. \param own Its part of all rows. */
  tvm::ffi::Tensor Fetch(abi::Collective kind, const tvm::ffi::String& groups,
                         const tvm::ffi::TensorView& own) const;
  /*! \brief Adds rows up where they lie. \param rows Those that this worker has flagged. \param own
   * Its part of the sums; rows that nobody has flagged become zeros. */
  void Deliver(abi::Collective kind, const tvm::ffi::String& groups, const tvm::ffi::Tensor& rows,
               const tvm::ffi::TensorView& own) const;

 private:
  std::vector<int64_t> ByMember(const std::vector<int64_t>& rows) const;
  int64_t bytes_told() const { return own_rows_ * (group_.size() - 1); }

  const Group& group_;
  int64_t own_rows_;
  /*! \brief Flags of others on this member's rows, member by member. */
  std::vector<int64_t> mine_, others_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_ASKED_ROWS_H_
