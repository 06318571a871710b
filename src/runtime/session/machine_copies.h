/*!
 * \file runtime/session/machine_copies.h
 * \brief Runs the copies of TVM's virtual machine in the order of the worker's stream.
 *
 * Conditions, shapes that are tensors, and copies between devices that a program states go through
 * TVM's own copies: on the null stream of a GPU, which waits for all others of it, with memory that
 * the driver is asked for, and without end where another worker has failed. On workers whose
 * tensors lie on a device the communicator makes them. A program calls the device of its worker
 * "cuda:0", whichever that is. Other threads, and workers of the host, keep TVM's.
 */
#ifndef DISTIR_RUNTIME_SESSION_MACHINE_COPIES_H_
#define DISTIR_RUNTIME_SESSION_MACHINE_COPIES_H_

namespace distir::runtime {

/*! \brief Replaces the functions of the virtual machine that copy; a no-op the second time. */
void PutMachineCopiesInOrder();

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_MACHINE_COPIES_H_
