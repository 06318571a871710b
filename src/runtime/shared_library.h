/*!
 * \file runtime/shared_library.h
 * \brief Loads optional libraries at first use, so that one build works with and without them.
 *
 * A library is, in this order: the file that an environment variable names (nothing else is tried
 * then); one that the process has loaded already; a file of those that Python has found; what the
 * dynamic loader finds by name.
 */
#ifndef DISTIR_RUNTIME_SHARED_LIBRARY_H_
#define DISTIR_RUNTIME_SHARED_LIBRARY_H_

#include <string>
#include <utility>
#include <vector>

namespace distir::runtime {

class SharedLibrary {
 public:
  /*!
   * \param what Name of the library in messages: "NCCL".
   * \param variable The environment variable.
   * \param names File names, the first one preferred.
   * \param remedy Advice for users who lack it: "install it with: ...".
   */
  SharedLibrary(const char* what, const char* variable, std::vector<std::string> names,
                const char* remedy)
      : what_(what), variable_(variable), names_(std::move(names)), remedy_(remedy) {}

  void SetPaths(std::vector<std::string> paths) { paths_ = std::move(paths); }

  /*! \brief The loaded library. \throws RuntimeError if it is not found; says what was tried. */
  void* Open() const;

  /*! \brief A function of it. \throws RuntimeError if it has none of this name. */
  void* Find(void* handle, const char* function) const;
  /*! \brief Finds a function that not every version of the library has; null if it is missing. */
  static void* FindOrNull(void* handle, const char* function);

  /*! \brief The file that a function comes from. */
  static std::string FileOf(const void* function);

 private:
  const char* what_;
  const char* variable_;
  std::vector<std::string> names_;
  const char* remedy_;
  std::vector<std::string> paths_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SHARED_LIBRARY_H_
