// Tensors as the library wants them: one plain stretch of memory each, with a type it knows.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "library.hpp"

namespace r2ccl_torch {

using Tensors = std::vector<at::Tensor>;

// How the elements of a tensor travel.
struct Wire {
  ccl_datatype_t type;
  // Elements of `type` for each element of the tensor.
  size_t per_element;

  size_t count(int64_t elements) const {
    return static_cast<size_t>(elements) * per_element;
  }

  // For calls that only move data. All types can be moved: those that the library does not know go
  // as bytes.
  static Wire for_moving(at::ScalarType type);
};

// Operations on bits: the library has none, so contributions are gathered and combined here.
enum class Bits { And, Or, Xor };

// A reduction of PyTorch in terms of the library.
struct Reduction {
  Wire wire;
  ccl_redop_t op = CCL_SUM;
  // Each rank's contribution is multiplied by its factor, then they are summed.
  std::optional<double> factor;
  std::optional<Bits> bits;

  // Throws a ValueError that says so if there is no such reduction of this type, or on this device.
  static Reduction of(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* call);
};

// The number of a reduction, for as long as a call needs it.
class Operator {
 public:
  Operator(const Reduction& reduction, ccl_comm_t comm);
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  ~Operator();

  ccl_redop_t number() const {
    return number_;
  }

 private:
  const ccl_comm_t comm_;
  const bool made_;
  ccl_redop_t number_;
};

// Combines `blocks` blocks of `bytes` bytes each, one after the other at `gathered`, into `result`.
void combine_bits(Bits bits, const uint8_t* gathered, size_t blocks, size_t bytes, uint8_t* result);

// The memory of a tensor, or a copy where the tensor is not contiguous.
class Staged {
 public:
  // To be read only.
  static Staged input(const at::Tensor& tensor);
  // To be written; publish() makes it visible in the tensor.
  static Staged output(const at::Tensor& tensor);
  // To be read and written.
  static Staged both(const at::Tensor& tensor);

  void* data() const {
    return memory_.data_ptr();
  }
  void publish() const;

 private:
  Staged(at::Tensor target, at::Tensor memory);

  at::Tensor target_;
  at::Tensor memory_;
};

// Tensors of one type as one stretch of memory, one behind the other: where they lie so, it is
// their own, else a copy.
class Packed {
 public:
  static Packed inputs(const Tensors& tensors);
  static Packed outputs(const Tensors& tensors);

  void* data() const {
    return data_;
  }
  void publish() const;

 private:
  Packed(Tensors tensors, bool filled);
  void copy(bool in) const;

  Tensors tensors_;
  // Undefined where the tensors lie one behind the other.
  at::Tensor copy_;
  void* data_;
};

// Whether the tensor's elements lie in order and without gaps, and mean what they are.
bool is_plain(const at::Tensor& tensor);

// Throws a ValueError unless calls can be made on memory of such a device.
void check_kind(c10::Device device, const char* call);

// The device that all these tensors are on, the host if there are none. Throws a ValueError if
// there are several.
c10::Device common_device(const std::vector<const Tensors*>& lists, const char* call);

// Throws unless the tensor is dense and in the memory of the host or of a device.
void check_tensor(const at::Tensor& tensor, const char* call);

// check_tensor() for all, and that they have the same type.
void check_tensors(const Tensors& tensors, at::ScalarType type, const char* call);

// Throws a ValueError if elements of one of them share memory, as after expand(): a result has no
// place there.
void check_apart(const Tensors& outputs, const char* call);

// Whether all have as many elements as the first.
bool have_same_size(const Tensors& tensors);

// The only tensor of a list.
at::Tensor& only(Tensors& tensors, const char* call);

}  // namespace r2ccl_torch
