/*!
 * \file runtime/communicators/mpi/library.h
 * \brief MPI library of this process: loaded, initialized and finalized once, used by one thread at
 * a time.
 *
 * Python finds the library (distir_ext/launch/mpi.py) and opens it here. Who has initialized MPI
 * finalizes it: this library if nobody had before it, when the process exits; otherwise the program
 * (mpi4py, as a rule), which then has to have asked for MPI_THREAD_MULTIPLE, since it may call MPI
 * at any time.
 *
 * Errors are returned (MPI_ERRORS_RETURN), and thrown here.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_LIBRARY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_LIBRARY_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "runtime/communicators/mpi/abi.h"

namespace distir::runtime::mpi {

class Library {
 public:
  /*! \brief Loads a file and finds what is needed. \throws RuntimeError if it is no MPI. */
  explicit Library(const std::string& file);

  /*! \brief Initializes MPI if nobody has. \throws RuntimeError if it has been finalized. */
  void Begin();
  /*! \brief Finalizes MPI, if Begin has initialized it. */
  void End();
  /*!
   * \brief Leaves MPI initialized until this process exits, and then finalizes it, if Begin has
   *        initialized it, for a few seconds at most: a copy that is lost never comes to it.
   * \throws RuntimeError if threads may not call this MPI.
   */
  void KeepUntilExit();
  bool kept() const { return kept_; }
  /*! \brief True if End has finalized it; some MPIs end a process that calls them after that. */
  bool ended() const { return ended_; }
  /*! \brief True if MPI is finalized, also by another part of the process. */
  bool IsFinalized() const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& file() const { return file_; }

  /*! \brief True if MPI reports that it takes CUDA memory; requires that it is initialized. */
  bool is_cuda_aware() const;

  /*! \brief \throws RuntimeError, with what MPI says, unless `result` is success. */
  void Check(int result, const char* function) const;

  Handle handle(uintptr_t value) const { return reinterpret_cast<Handle>(value); }
  Handle byte() const { return handle(abi.byte); }
  int source(const Status& status) const { return status.words[abi.source_in_status]; }
  int tag(const Status& status) const { return status.words[abi.tag_in_status]; }

  Functions call;
  Abi abi;
  /*! \brief Held by whoever calls MPI. */
  std::mutex mutex;

 private:
  const std::string file_;
  bool begun_here_ = false;
  bool kept_ = false;
  bool ended_ = false;
  int rank_ = -1, size_ = 0;
};

/*! \brief A number of elements or bytes as MPI takes it; callers send pieces, far below the most.
 */
int Count(int64_t number);

/*! \brief Library of this process. \throws RuntimeError if none is kept for sessions. */
Library& KeptLibrary();

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_LIBRARY_H_
