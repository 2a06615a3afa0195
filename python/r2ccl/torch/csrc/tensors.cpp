#include "tensors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace r2ccl_torch {

namespace {

// The type of the library that is the same as one of PyTorch.
std::optional<ccl_datatype_t> same_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return CCL_INT8;
    case at::kByte:
      return CCL_UINT8;
    case at::kInt:
      return CCL_INT32;
    case at::kUInt32:
      return CCL_UINT32;
    case at::kLong:
      return CCL_INT64;
    case at::kUInt64:
      return CCL_UINT64;
    case at::kHalf:
      return CCL_FLOAT16;
    case at::kFloat:
      return CCL_FLOAT32;
    case at::kDouble:
      return CCL_FLOAT64;
    case at::kBFloat16:
      return CCL_BFLOAT16;
    case at::kFloat8_e4m3fn:
      return CCL_FLOAT8E4M3;
    case at::kFloat8_e5m2:
      return CCL_FLOAT8E5M2;
    default:
      return std::nullopt;
  }
}

const char* name_of(c10d::ReduceOp::RedOpType op) {
  constexpr std::array names = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return op < names.size() ? names[op] : "UNUSED";
}

ccl_redop_t arithmetic(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::PRODUCT:
      return CCL_PROD;
    case c10d::ReduceOp::MIN:
      return CCL_MIN;
    case c10d::ReduceOp::MAX:
      return CCL_MAX;
    case c10d::ReduceOp::AVG:
      return CCL_AVG;
    default:
      return CCL_SUM;
  }
}

std::optional<Bits> bitwise(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::BAND:
      return Bits::And;
    case c10d::ReduceOp::BOR:
      return Bits::Or;
    case c10d::ReduceOp::BXOR:
      return Bits::Xor;
    default:
      return std::nullopt;
  }
}

[[noreturn]] void refuse(const c10d::ReduceOp& op,
                         at::ScalarType type,
                         const char* call,
                         const char* where = "") {
  C10_THROW_ERROR(ValueError,
                  c10::str("r2ccl ", call, ": there is no ", name_of(op), " of ", type, where));
}

// A sum of truth values is true where any of them is, a product where all are.
ccl_redop_t logical(const c10d::ReduceOp& op, const char* call) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
      return CCL_MAX;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
      return CCL_MIN;
    default:
      refuse(op, at::kBool, call);
  }
}

double factor_of(const c10d::ReduceOp& op) {
  // By its old name, which newer versions of PyTorch have too.
  const auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "r2ccl: PREMUL_SUM without a factor");
  const auto& tensor = supplement->tensor_factor;
  return tensor.defined() ? tensor.item<double>() : supplement->double_factor;
}

template <typename Integer>
bool holds(double value) {
  using Limits = std::numeric_limits<Integer>;
  return std::trunc(value) == value && value >= static_cast<double>(Limits::min()) &&
         value < std::ldexp(1.0, Limits::digits);
}

// Whether elements of `type` have this value; those of floats have one that is near.
bool has_value(ccl_datatype_t type, double value) {
  switch (type) {
    case CCL_INT8:
      return holds<int8_t>(value);
    case CCL_UINT8:
      return holds<uint8_t>(value);
    case CCL_INT32:
      return holds<int32_t>(value);
    case CCL_UINT32:
      return holds<uint32_t>(value);
    case CCL_INT64:
      return holds<int64_t>(value);
    case CCL_UINT64:
      return holds<uint64_t>(value);
    default:
      return true;
  }
}

// The value as an element of `type`, at most eight bytes.
std::array<uint8_t, 8> element(double value, ccl_datatype_t type) {
  std::array<uint8_t, 8> bytes{};
  const auto put = [&bytes](auto converted) {
    std::memcpy(bytes.data(), &converted, sizeof(converted));
  };
  switch (type) {
    case CCL_INT8:
      put(static_cast<int8_t>(value));
      break;
    case CCL_UINT8:
      put(static_cast<uint8_t>(value));
      break;
    case CCL_INT32:
      put(static_cast<int32_t>(value));
      break;
    case CCL_UINT32:
      put(static_cast<uint32_t>(value));
      break;
    case CCL_INT64:
      put(static_cast<int64_t>(value));
      break;
    case CCL_UINT64:
      put(static_cast<uint64_t>(value));
      break;
    case CCL_FLOAT16:
      put(c10::Half(static_cast<float>(value)));
      break;
    case CCL_FLOAT64:
      put(value);
      break;
    case CCL_BFLOAT16:
      put(c10::BFloat16(static_cast<float>(value)));
      break;
    case CCL_FLOAT8E4M3:
      put(c10::Float8_e4m3fn(static_cast<float>(value)));
      break;
    case CCL_FLOAT8E5M2:
      put(c10::Float8_e5m2(static_cast<float>(value)));
      break;
    default:
      put(static_cast<float>(value));
  }
  return bytes;
}

template <typename Combine>
void combine(const uint8_t* gathered, size_t blocks, size_t bytes, uint8_t* result, Combine one) {
  std::memcpy(result, gathered, bytes);
  for (size_t block = 1; block < blocks; ++block) {
    const uint8_t* next = gathered + block * bytes;
    for (size_t i = 0; i < bytes; ++i) {
      result[i] = static_cast<uint8_t>(one(result[i], next[i]));
    }
  }
}

// Copies as the collective itself would write: autograd does not see it.
void copy_hidden(const at::Tensor& target, const at::Tensor& source) {
  const at::AutoDispatchBelowADInplaceOrView hidden;
  target.copy_(source);
}

at::Tensor like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().requires_grad(false));
}

bool one_behind_the_other(const std::vector<at::Tensor>& tensors) {
  const char* expected = nullptr;
  for (const auto& tensor : tensors) {
    if (!is_plain(tensor)) {
      return false;
    }
    const char* start = static_cast<const char*>(tensor.const_data_ptr());
    if (tensor.numel() == 0) {
      continue;
    }
    if (expected != nullptr && start != expected) {
      return false;
    }
    expected = start + tensor.nbytes();
  }
  return true;
}

void* first_byte(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (tensor.numel() > 0) {
      return tensor.data_ptr();
    }
  }
  return nullptr;
}

}  // namespace

Wire Wire::for_moving(at::ScalarType type) {
  if (const auto same = same_type(type)) {
    return {*same, 1};
  }
  return {CCL_UINT8, c10::elementSize(type)};
}

Reduction Reduction::of(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* call) {
  const auto type = tensor.scalar_type();
  const bool complex = at::isComplexType(type);
  if (const auto bits = bitwise(op)) {
    if (!at::isIntegralType(type, true)) {
      refuse(op, type, call);
    }
    if (!tensor.is_cpu()) {
      refuse(op, type, call, " on a device");
    }
    return {{CCL_UINT8, c10::elementSize(type)}, CCL_SUM, std::nullopt, bits};
  }
  if (type == at::kBool) {
    return {{CCL_UINT8, 1}, logical(op, call), std::nullopt, std::nullopt};
  }
  const bool linear =
      op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG || op == c10d::ReduceOp::PREMUL_SUM;
  const auto same = same_type(complex ? c10::toRealValueType(type) : type);
  if (!same || (complex && !linear) || op == c10d::ReduceOp::UNUSED) {
    refuse(op, type, call);
  }
  Reduction reduction{
      {*same, complex ? size_t{2} : size_t{1}}, arithmetic(op), std::nullopt, std::nullopt};
  if (op == c10d::ReduceOp::PREMUL_SUM) {
    const double factor = factor_of(op);
    TORCH_CHECK_VALUE(has_value(*same, factor), "r2ccl ", call, ": there is no PREMUL_SUM of ",
                      type, " by ", factor, ", which is no value of that type");
    reduction.factor = factor;
  }
  return reduction;
}

Operator::Operator(const Reduction& reduction, ccl_comm_t comm)
    : comm_(comm), made_(reduction.factor.has_value()), number_(reduction.op) {
  if (made_) {
    const auto scalar = element(*reduction.factor, reduction.wire.type);
    check(library().redop_create_premulsum(&number_, scalar.data(), reduction.wire.type, comm),
          "creation of a reduction");
  }
}

Operator::~Operator() {
  if (made_) {
    library().redop_destroy(number_, comm_);
  }
}

void combine_bits(
    Bits bits, const uint8_t* gathered, size_t blocks, size_t bytes, uint8_t* result) {
  switch (bits) {
    case Bits::And:
      return combine(gathered, blocks, bytes, result, [](uint8_t a, uint8_t b) { return a & b; });
    case Bits::Or:
      return combine(gathered, blocks, bytes, result, [](uint8_t a, uint8_t b) { return a | b; });
    case Bits::Xor:
      return combine(gathered, blocks, bytes, result, [](uint8_t a, uint8_t b) { return a ^ b; });
  }
}

Staged::Staged(at::Tensor target, at::Tensor memory)
    : target_(std::move(target)), memory_(std::move(memory)) {
}

Staged Staged::input(const at::Tensor& tensor) {
  Staged staged = output(tensor);
  if (!staged.memory_.is_same(tensor)) {
    copy_hidden(staged.memory_, tensor);
  }
  return staged;
}

Staged Staged::output(const at::Tensor& tensor) {
  return is_plain(tensor) ? Staged(tensor, tensor) : Staged(tensor, like(tensor));
}

Staged Staged::both(const at::Tensor& tensor) {
  return input(tensor);
}

void Staged::publish() const {
  if (!memory_.is_same(target_)) {
    copy_hidden(target_, memory_);
  }
}

Packed::Packed(std::vector<at::Tensor> tensors, bool filled) : tensors_(std::move(tensors)) {
  if (tensors_.empty() || one_behind_the_other(tensors_)) {
    data_ = first_byte(tensors_);
    return;
  }
  int64_t elements = 0;
  for (const auto& tensor : tensors_) {
    elements += tensor.numel();
  }
  copy_ = at::empty({elements}, tensors_.front().options().requires_grad(false));
  data_ = copy_.data_ptr();
  if (filled) {
    copy(true);
  }
}

Packed Packed::inputs(const std::vector<at::Tensor>& tensors) {
  return Packed(tensors, true);
}

Packed Packed::outputs(const std::vector<at::Tensor>& tensors) {
  return Packed(tensors, false);
}

void Packed::publish() const {
  if (copy_.defined()) {
    copy(false);
  }
}

void Packed::copy(bool in) const {
  int64_t offset = 0;
  for (const auto& tensor : tensors_) {
    const auto piece = copy_.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    copy_hidden(in ? piece : tensor, in ? tensor : piece);
    offset += tensor.numel();
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void check_kind(c10::Device device, const char* call) {
  TORCH_CHECK_VALUE(device.is_cpu() || device.is_cuda(), "r2ccl ", call,
                    ": tensors must be in the memory of the host or of a CUDA device, not on ",
                    device);
}

c10::Device common_device(const std::vector<const Tensors*>& lists, const char* call) {
  std::optional<c10::Device> found;
  for (const auto* tensors : lists) {
    for (const auto& tensor : *tensors) {
      const auto device = tensor.device();
      found = found.value_or(device);
      TORCH_CHECK_VALUE(*found == device, call, ": tensors on ", *found, " and on ", device,
                        " in one call");
    }
  }
  return found.value_or(at::kCPU);
}

void check_tensor(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK_VALUE(tensor.defined(), "r2ccl ", call, ": a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "r2ccl ", call,
                    ": tensors must be dense, not ", tensor.layout());
  check_kind(tensor.device(), call);
}

void check_tensors(const std::vector<at::Tensor>& tensors, at::ScalarType type, const char* call) {
  for (const auto& tensor : tensors) {
    check_tensor(tensor, call);
    TORCH_CHECK_VALUE(tensor.scalar_type() == type, "r2ccl ", call,
                      ": tensors of different types, ", type, " and ", tensor.scalar_type());
  }
}

void check_apart(const Tensors& outputs, const char* call) {
  for (const auto& output : outputs) {
    const bool is_strided = output.layout() == at::kStrided;
    TORCH_CHECK_VALUE(!is_strided || at::has_internal_overlap(output) != at::MemOverlap::Yes, call,
                      ": elements of an output share memory: make it contiguous first");
  }
}

bool have_same_size(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.numel() == tensors.front().numel();
  });
}

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* call) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "r2ccl ", call, ": one tensor is expected, not ",
                    tensors.size());
  check_tensor(tensors[0], call);
  return tensors[0];
}

}  // namespace r2ccl_torch
