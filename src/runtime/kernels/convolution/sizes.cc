// Reads convolutions: layouts and attributes as text, sizes and strides from the tensors.
#include "runtime/kernels/convolution/sizes.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "runtime/kernels/format_list.h"

namespace distir::runtime {

namespace {

using tvm::ffi::TensorView;

constexpr const char* kNames[] = {"data", "weight", "out"};

class Reader {
 public:
  Reader(const std::string& text, const std::array<TensorView, 3>& tensors)
      : text_(text), tensors_(tensors) {}

  Convolution Read() {
    std::istringstream words(text_);
    std::string word;
    if (words >> word) ReadLayouts(word);
    while (words >> word) ReadOption(word);
    if (layouts_[kOut].empty()) Fail("it has no layouts such as \"NCHW,OIHW->NCHW\"");
    for (ConvolutionTensor tensor : {kData, kWeight, kOut}) {
      if (!tensors_[tensor].IsContiguous()) Fail(kNames[tensor], " is not contiguous");
      if (static_cast<int>(layouts_[tensor].size()) != tensors_[tensor].ndim()) {
        Fail(kNames[tensor], " of shape ", FormatList(tensors_[tensor].shape()), " has not ",
             layouts_[tensor].size(), " dimensions");
      }
    }
    ReadChannels();
    ReadWindows();
    return found_;
  }

 private:
  template <typename... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    std::ostringstream text;
    text << "convolution \"" << text_ << "\": ";
    (text << ... << parts);
    TVM_FFI_THROW(ValueError) << text.str();
    TVM_FFI_UNREACHABLE();
  }

  void ReadLayouts(const std::string& word) {
    const size_t comma = word.find(','), arrow = word.find("->");
    if (comma == std::string::npos || arrow == std::string::npos || comma > arrow) return;
    layouts_ = {word.substr(0, comma), word.substr(comma + 1, arrow - comma - 1),
                word.substr(arrow + 2)};
  }

  void ReadOption(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (name == "transposed") {
      found_.is_transposed = true;
      return;
    }
    std::vector<int64_t> values;
    if (equals != std::string::npos) {
      std::istringstream numbers(word.substr(equals + 1));
      int64_t value;
      while (numbers >> value) {
        values.push_back(value);
        if (numbers.peek() == ',') numbers.get();
      }
      if (!numbers.eof()) values.clear();
    }
    if (values.empty()) Fail("\"", word, "\" is no list of integers");
    if (name == "strides") {
      strides_ = values;
    } else if (name == "padding") {
      padding_ = values;
    } else if (name == "dilation") {
      dilation_ = values;
    } else if (name == "groups") {
      found_.group.extent = values[0];
    } else {
      Fail("there is no \"", name, "\"");
    }
  }

  /*! \brief The dimension of a letter; -1 if there is none. */
  int DimOf(ConvolutionTensor tensor, char letter) const {
    const size_t found = layouts_[tensor].find(letter);
    return found == std::string::npos ? -1 : static_cast<int>(found);
  }
  int64_t SizeOf(ConvolutionTensor tensor, char letter) const {
    const int dim = DimOf(tensor, letter);
    if (dim < 0) Fail("the layout of ", kNames[tensor], " has no ", letter);
    return tensors_[tensor].size(dim);
  }
  int64_t StrideOf(ConvolutionTensor tensor, char letter) const {
    int64_t stride = 1;
    for (int d = tensors_[tensor].ndim() - 1; d > DimOf(tensor, letter); --d)
      stride *= tensors_[tensor].size(d);
    return stride;
  }

  void ReadChannels() {
    Convolution& c = found_;
    const int64_t groups = c.group.extent;
    // The channels of the weight that are those of all groups.
    const char grouped = c.is_transposed ? 'I' : 'O';
    c.batch.extent = SizeOf(kData, 'N');
    const int64_t channels_in = SizeOf(kData, 'C'), channels_out = SizeOf(kOut, 'C');
    const int64_t weight_in = SizeOf(kWeight, 'I'), weight_out = SizeOf(kWeight, 'O');
    if (groups < 1 || channels_in % groups != 0 || channels_out % groups != 0)
      Fail(channels_in, " and ", channels_out, " channels are not ", groups, " groups");
    c.in.extent = channels_in / groups;
    c.out.extent = channels_out / groups;
    if (SizeOf(kOut, 'N') != c.batch.extent ||
        weight_in != (c.is_transposed ? channels_in : c.in.extent) ||
        weight_out != (c.is_transposed ? c.out.extent : channels_out)) {
      Fail("data of shape ", FormatList(tensors_[kData].shape()), ", weight of shape ",
           FormatList(tensors_[kWeight].shape()), " and out of shape ",
           FormatList(tensors_[kOut].shape()), " do not fit together");
    }
    c.batch.strides = {StrideOf(kData, 'N'), 0, StrideOf(kOut, 'N')};
    c.in.strides = {StrideOf(kData, 'C'), StrideOf(kWeight, 'I'), 0};
    c.out.strides = {0, StrideOf(kWeight, 'O'), StrideOf(kOut, 'C')};
    const int64_t of_group = c.is_transposed ? c.in.extent : c.out.extent;
    c.group.strides = {c.in.extent * c.in.strides[kData], of_group * StrideOf(kWeight, grouped),
                       c.out.extent * c.out.strides[kOut]};
  }

  void ReadWindows() {
    std::string letters;
    for (char letter : {'D', 'H', 'W'}) {
      if (DimOf(kData, letter) >= 0) letters += letter;
    }
    const size_t num = letters.size();
    if (strides_.size() != num || dilation_.size() != num || padding_.size() != 2 * num)
      Fail("strides, dilation and padding are not those of ", num, " spatial dimensions");
    for (size_t i = 0; i < num; ++i) {
      Window& window = found_.windows[3 - num + i];
      const char letter = letters[i];
      window.data = SizeOf(kData, letter);
      window.kernel = SizeOf(kWeight, letter);
      window.out = SizeOf(kOut, letter);
      window.stride = strides_[i];
      window.dilation = dilation_[i];
      window.before = padding_[i];
      window.strides = {StrideOf(kData, letter), StrideOf(kWeight, letter), StrideOf(kOut, letter)};
      if (window.stride < 1 || window.dilation < 1) Fail("strides and dilation must be at least 1");
      CheckExtent(letter, window, padding_[num + i]);
    }
  }

  /*! \brief Refuses windows that the result does not have the place of. */
  void CheckExtent(char letter, const Window& window, int64_t after) const {
    const int64_t span = (window.kernel - 1) * window.dilation + 1;
    const int64_t inner = found_.is_transposed ? window.out : window.data;
    const int64_t windows = found_.is_transposed ? window.data : window.out;
    const int64_t room = inner + window.before + after - span;
    // A transposed one may have elements behind its last window.
    const bool fits =
        windows == 0 || (room >= 0 && (found_.is_transposed ? room / window.stride >= windows - 1
                                                            : room / window.stride + 1 == windows));
    if (!fits) {
      Fail(windows, " windows along ", letter, " do not fit in ", inner, " elements with ",
           window.before, " before and ", after, " behind them");
    }
  }

  const std::string& text_;
  const std::array<TensorView, 3>& tensors_;
  std::array<std::string, 3> layouts_;
  std::vector<int64_t> strides_, padding_, dilation_;
  Convolution found_;
};

}  // namespace

int64_t Convolution::KernelSize() const {
  return windows[0].kernel * windows[1].kernel * windows[2].kernel;
}

int64_t Convolution::NumWindows() const {
  int64_t number = 1;
  for (const Window& window : windows) number *= is_transposed ? window.data : window.out;
  return number;
}

double Convolution::Operations() const {
  return static_cast<double>(batch.extent * group.extent) *
         static_cast<double>(in.extent * out.extent) *
         static_cast<double>(KernelSize() * NumWindows());
}

Convolution ReadConvolution(const std::string& text, const std::array<TensorView, 3>& tensors) {
  return Reader(text, tensors).Read();
}

std::optional<int64_t> JoinedStride(std::initializer_list<std::array<int64_t, 2>> axes) {
  std::optional<int64_t> outer;
  int64_t stride = 1;
  for (const auto& [extent, own] : axes) {
    if (extent == 1) continue;
    if (outer.has_value() && *outer != own * extent) return std::nullopt;
    outer = stride = own;
  }
  return stride;
}

}  // namespace distir::runtime
