// Sums of sparse tensors, as the gradients of embeddings are.
#include <algorithm>

#include "bodies.hpp"

namespace r2ccl_torch::body {

namespace {

// How many elements the tensors of the ranks have. All must have the same sizes otherwise.
std::vector<int64_t> counts_of(const at::Tensor& own, int ranks, const Target& target) {
  std::vector<int64_t> shape{own._nnz(), own.sparse_dim()};
  shape.insert(shape.end(), own.sizes().begin(), own.sizes().end());
  std::vector<int64_t> shapes(shape.size() * static_cast<size_t>(ranks));
  check(target.allgather(shape.data(), shapes.data(), shape.size(), CCL_INT64), "all_reduce");
  std::vector<int64_t> counts;
  for (auto other = shapes.begin(); other != shapes.end();
       other += static_cast<std::ptrdiff_t>(shape.size())) {
    TORCH_CHECK_VALUE(std::equal(shape.begin() + 1, shape.end(), other + 1),
                      "r2ccl all_reduce: sparse tensors of different sizes");
    TORCH_CHECK_VALUE(*other >= 0, "r2ccl all_reduce: a rank has ", *other, " elements");
    counts.push_back(*other);
  }
  return counts;
}

// The tensors of all ranks, which have counts of their own in the dimension `growing`.
Tensors gather_all(const at::Tensor& own,
                   const std::vector<int64_t>& counts,
                   size_t growing,
                   const Target& target) {
  Tensors all;
  auto sizes = own.sizes().vec();
  for (const int64_t count : counts) {
    sizes[growing] = count;
    all.push_back(at::empty(sizes, own.options()));
  }
  all_gather(all, own, target);
  return all;
}

}  // namespace

void all_reduce_sparse(const at::Tensor& tensor, int ranks, const Target& target) {
  const at::AutoDispatchBelowADInplaceOrView hidden;
  const auto own = tensor.coalesce();
  const auto counts = counts_of(own, ranks, target);
  const auto indices = gather_all(own.indices(), counts, 1, target);
  const auto values = gather_all(own.values(), counts, 0, target);
  at::Tensor sum = at::zeros_like(own);
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    at::_validate_sparse_coo_tensor_args(indices[rank], values[rank], own.sizes());
    sum.add_(at::_sparse_coo_tensor_unsafe(indices[rank], values[rank], own.sizes()));
  }
  tensor.copy_(sum.coalesce());
}

}  // namespace r2ccl_torch::body
