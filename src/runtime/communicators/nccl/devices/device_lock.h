/*!
 * \file runtime/communicators/nccl/devices/device_lock.h
 * \brief Locks a worker's GPU against other sessions of this user.
 *
 * Each worker has a file in a folder of its GPU, /tmp/distir_ext-<user>/gpus/<UUID>, and a lock on
 * it: the system ends the lock with the process, however that ends. Files have the name of their
 * session, so workers of one session can have a GPU together. DISTIR_EXT_SHARE_CUDA_DEVICES=1 lets
 * a session have GPUs that others have. Those of other users, and of containers that have another
 * /tmp, are not seen.
 *
 * Example, a worker of the session with address "a..." on device 0:
 * \code
 *   const DeviceLock lock(0, address, is_process, [] { return false; });
 *   // /tmp/distir_ext-1000/gpus/3f2a.../9e107d9d372bb682.4711 is locked until lock is destroyed
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_LOCK_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_LOCK_H_

#include <functional>
#include <string>

namespace distir::runtime::nccl {

class DeviceLock {
 public:
  /*!
   * \param device The CUDA device.
   * \param session Identifier of the session.
   * \param is_process True if the worker is a process that another one has started.
   * \param aborted True if another worker of the session has failed.
   * \throws RuntimeError if a worker of another session has the GPU, and does not end soon; names
   *         its process. If the folder cannot be made or is somebody else's.
   */
  DeviceLock(int device, const std::string& session, bool is_process,
             const std::function<bool()>& aborted);
  ~DeviceLock();
  DeviceLock(const DeviceLock&) = delete;
  DeviceLock& operator=(const DeviceLock&) = delete;

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_LOCK_H_
