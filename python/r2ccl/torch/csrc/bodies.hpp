// What is asked of the library for a collective, when its turn has come.
#pragma once

#include "target.hpp"
#include "tensors.hpp"

namespace r2ccl_torch {

// Counts and displacements of blocks that lie one behind the other.
struct Blocks {
  std::vector<size_t> counts;
  std::vector<size_t> displacements;

  void add(size_t count) {
    displacements.push_back(counts.empty() ? 0 : displacements.back() + counts.back());
    counts.push_back(count);
  }

  static Blocks of(const Tensors& tensors, Wire wire) {
    Blocks blocks;
    for (const auto& tensor : tensors) {
      blocks.add(wire.count(tensor.numel()));
    }
    return blocks;
  }

  // The rows of a tensor by `splits`, or in `ranks` equal parts.
  static Blocks of(const at::Tensor& tensor,
                   const std::vector<int64_t>& splits,
                   int ranks,
                   Wire wire) {
    Blocks blocks;
    const int64_t rows = tensor.size(0);
    const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
    for (int rank = 0; rank < ranks; ++rank) {
      blocks.add(wire.count(row * (splits.empty() ? rows / ranks : splits[rank])));
    }
    return blocks;
  }
};

namespace body {

// In place.
void all_reduce(const at::Tensor& tensor,
                const Reduction& reduction,
                int ranks,
                const Target& target);

// The same for the sum of sparse tensors, which may have elements in different places.
void all_reduce_sparse(const at::Tensor& tensor, int ranks, const Target& target);

// To the root, which has the result in the tensor; elsewhere it stays as it is.
void reduce(const at::Tensor& tensor,
            const Reduction& reduction,
            int root,
            int rank,
            int ranks,
            const Target& target);

// From the tensor of the root into those of the others.
void broadcast(const at::Tensor& tensor, int root, int rank, const Target& target);

void all_gather(const at::Tensor& output, const at::Tensor& input, const Target& target);

// From every rank into a tensor of its own, which may have its own size.
void all_gather(const Tensors& outputs, const at::Tensor& input, const Target& target);

// `count` elements of the reduction's type for each rank.
void reduce_scatter(const void* input,
                    void* output,
                    size_t count,
                    const Reduction& reduction,
                    int ranks,
                    const Target& target);
void reduce_scatter(const at::Tensor& output,
                    const at::Tensor& input,
                    const Reduction& reduction,
                    int ranks,
                    const Target& target);

// Blocks of different sizes: one reduction for each rank.
void reduce_scatter_uneven(const Packed& from,
                           void* output,
                           const Tensors& inputs,
                           const Reduction& reduction,
                           const Target& target);

}  // namespace body

}  // namespace r2ccl_torch
