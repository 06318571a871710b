/*!
 * \file runtime/communicators/nccl/devices/cuda_devices.h
 * \brief Assignment of CUDA devices to the workers of a host.
 *
 * The i-th worker has device i, or entry i of the list in DISTIR_EXT_CUDA_DEVICES. An entry may
 * occur several times if the workers are processes.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_DEVICES_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_DEVICES_H_

#include <vector>

#include "runtime/communicators/communicator.h"

namespace distir::runtime::nccl {

/*!
 * \brief Counts the CUDA devices of this machine.
 * \throws RuntimeError if the driver is too old for CUDA's runtime; says both versions. If CUDA
 *         cannot use its driver, with its reason.
 */
int CountCudaDevices();

/*!
 * \brief The CUDA device of each worker of this host, in order.
 *
 * NCCL takes two ranks of one device for a mistake unless they say that they are on different
 * hosts; where workers share a device, this lets the worker of this process say so.
 *
 * \throws ValueError if the variable is malformed, too short, or lets threads share a device.
 * \throws RuntimeError if this machine lacks a device, or TVM's runtime for it.
 */
std::vector<int> ChooseCudaDevices(const WorkerSet& workers);

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_DEVICES_H_
