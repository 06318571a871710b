/*!
 * \file runtime/session/shard.h
 * \brief Cuts a worker's shard out of a global array in host memory, and pastes it back.
 *
 * The controller describes shards (distir.runtime.shard) and passes them as arguments of a job;
 * each worker cuts its own on its own thread, straight from the caller's memory.
 *
 * Example: rows 2 and 3 of a row-major float32 array of 4 x 8 at address p:
 * \code
 *   shard = distir.runtime.shard(p, {4, 8}, byte_strides={32, 4}, begin={2, 0}, extent={2, 8},
 *                                "float32", "", 0)
 * \endcode
 *
 * A shard of an array that lies in pieces is made of shards of these (distir.runtime.joined_shard).
 */
#ifndef DISTIR_RUNTIME_SESSION_SHARD_H_
#define DISTIR_RUNTIME_SESSION_SHARD_H_

#include <sys/types.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/object.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"

namespace distir::runtime {

/*! \brief A box of a global array that has not been copied yet. It may reach beyond the array: the
 * last shards of a dimension that does not divide are padded with zeros. */
class ShardObj : public tvm::ffi::Object {
 public:
  /*! \brief Another shard that is a part of this one. */
  struct Part {
    tvm::ffi::ObjectRef owner;  // of the shard
    const ShardObj* shard;
    std::vector<int64_t> begin;  // where in this one
  };

  /*! \brief Keeps `data` alive if it is a Tensor's; otherwise the caller does. */
  tvm::ffi::Any owner;
  const char* data = nullptr;  // of the box's first element; null if there are only parts
  std::vector<int64_t> byte_strides;
  std::vector<int64_t> extent;
  std::vector<int64_t> inside;  // how much of the extent lies in the array; zeros follow
  DLDataType dtype;
  std::string file;   // that the memory is of, for messages; empty if it is not mapped
  pid_t process = 0;  // whose memory it is, if it is another one's

  /*! \brief Without overlap; what they leave is zero. */
  std::vector<Part> parts;

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.Shard", ShardObj, tvm::ffi::Object);
};

/*!
 * \brief A tensor in host memory for an argument of a step; a large one where others see it.
 * \param communicator Of the worker that will use it; nullptr where there is none.
 */
tvm::ffi::Tensor NewArgument(const tvm::ffi::Shape& shape, DLDataType dtype,
                             Communicator* communicator);

/*! \brief The elements of a shard for as long as the tensor lives, on a worker's device. */
tvm::ffi::Tensor CutShardToKeep(const ShardObj& shard, DLDevice device, Communicator* communicator);
/*!
 * \brief Copies the box into a new tensor on a device.
 * \param communicator Of the worker that will use it; nullptr where there is none.
 */
tvm::ffi::Tensor CutShard(const ShardObj& shard, DLDevice device, Communicator* communicator);

/*! \brief `value` with every shard in it, also inside arrays, replaced by its tensor. */
tvm::ffi::Any CutShards(const tvm::ffi::Any& value, DLDevice device, Communicator* communicator);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_SHARD_H_
