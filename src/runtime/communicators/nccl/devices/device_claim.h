/*!
 * \file runtime/communicators/nccl/devices/device_claim.h
 * \brief Claims CUDA devices for a session against other sessions of this process.
 *
 * Kernels of collectives wait for each other on the device. Those of two sessions may be started
 * in different orders on different devices, and then all of them wait for ever; sessions share
 * TVM's pool of device memory, too, whose order is that of one stream. Processes have contexts of
 * their own, between which the driver switches.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_CLAIM_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_CLAIM_H_

#include <vector>

namespace distir::runtime::nccl {

class DeviceClaim {
 public:
  /*! \throws RuntimeError if another session has one of the devices, and does not end soon. */
  explicit DeviceClaim(std::vector<int> devices);
  ~DeviceClaim() { Release(); }
  DeviceClaim(const DeviceClaim&) = delete;
  DeviceClaim& operator=(const DeviceClaim&) = delete;

  /*! \brief The session has failed; its workers are about to end. */
  void Ending() noexcept;
  /*! \brief The workers have ended. Idempotent. */
  void Release() noexcept;

 private:
  const std::vector<int> devices_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_CLAIM_H_
