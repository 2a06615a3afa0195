// The collectives as PyTorch calls them: what is checked, and what then waits for its turn.
#include <utility>

#include "backend.hpp"
#include "bodies.hpp"

namespace r2ccl_torch {

namespace {

using c10d::OpType;

void check_multiple(const at::Tensor& larger,
                    const at::Tensor& smaller,
                    int ranks,
                    const char* call) {
  check_tensors({larger}, smaller.scalar_type(), call);
  TORCH_CHECK_VALUE(larger.numel() == smaller.numel() * ranks, "r2ccl ", call, ": a tensor of ",
                    larger.numel(), " elements for ", ranks, " blocks of ", smaller.numel());
}

void check_list(const Tensors& tensors, int ranks, at::ScalarType type, const char* call) {
  TORCH_CHECK_VALUE(tensors.size() == static_cast<size_t>(ranks), "r2ccl ", call, ": ",
                    tensors.size(), " tensors for ", ranks, " ranks");
  check_tensors(tensors, type, call);
}

const Tensors& only_list(const std::vector<Tensors>& lists, const char* call) {
  TORCH_CHECK_VALUE(lists.size() == 1, "r2ccl ", call, ": one list of tensors is expected, not ",
                    lists.size());
  return lists[0];
}

// Where only the root has a list, the others have none.
const Tensors& root_list(const std::vector<Tensors>& lists, bool is_root, const char* call) {
  static const Tensors none;
  if (is_root) {
    return only_list(lists, call);
  }
  TORCH_CHECK_VALUE(lists.empty() || lists[0].empty(), "r2ccl ", call,
                    ": a list of tensors at a rank that is not the root");
  return none;
}

// The list of an all_gather: a tensor for each rank, of which this one's is as large as its input.
void check_gathered(const Tensors& list, const at::Tensor& input, int rank, int ranks) {
  check_list(list, ranks, input.scalar_type(), "all_gather");
  TORCH_CHECK_VALUE(list[rank].numel() == input.numel(), "r2ccl all_gather: an output of ",
                    list[rank].numel(), " elements for an input of ", input.numel());
}

// The rows of a tensor of all_to_all_single: as many as its splits say, or a multiple of the ranks.
// Each split is compared with what is left, so that no sum overflows.
void check_splits(const std::vector<int64_t>& splits, const at::Tensor& tensor, int ranks) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "r2ccl all_to_all: a tensor without dimensions has no rows");
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "r2ccl all_to_all: ", rows, " rows for ", ranks,
                      " ranks cannot be split evenly");
    return;
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(ranks), "r2ccl all_to_all: ",
                    splits.size(), " splits for ", ranks, " ranks");
  int64_t left = rows;
  for (const auto split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "r2ccl all_to_all: a split of ", split, " rows");
    TORCH_CHECK_VALUE(split <= left, "r2ccl all_to_all: splits of more than the ", rows,
                      " rows of their tensor");
    left -= split;
  }
  TORCH_CHECK_VALUE(left == 0, "r2ccl all_to_all: splits of ", rows - left,
                    " rows for a tensor of ", rows);
}

}  // namespace

// ---- Reductions ---------------------------------------------------------------------------------

Work R2cclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) {
    return sum_sparse(tensors, options);
  }
  const auto tensor = only(tensors, "all_reduce");
  const auto reduction = Reduction::of(options.reduceOp, tensor, "all_reduce");
  const Call call{OpType::ALLREDUCE, "r2ccl:all_reduce", options.asyncOp, options.timeout, tensors};
  return launch(call, tensors, [=, ranks = size_](const Target& target) {
    body::all_reduce(tensor, reduction, ranks, target);
  });
}

Work R2cclBackend::sum_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto tensor = tensors[0];
  TORCH_CHECK_VALUE(tensor.device().is_cpu(),
                    "r2ccl all_reduce: sparse tensors must be in the memory of the host, not on ",
                    tensor.device());
  TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM,
                    "r2ccl all_reduce: of sparse tensors there are sums only");
  const Call call{OpType::_ALLREDUCE_SPARSE, "r2ccl:all_reduce", options.asyncOp, options.timeout};
  return launch(call, tensors, [=, ranks = size_](const Target& target) {
    body::all_reduce_sparse(tensor, ranks, target);
  });
}

Work R2cclBackend::allreduce_coalesced(Tensors& tensors,
                                       const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "r2ccl all_reduce: no tensors");
  std::vector<Reduction> reductions;
  for (const auto& tensor : tensors) {
    check_tensor(tensor, "all_reduce");
    reductions.push_back(Reduction::of(options.reduceOp, tensor, "all_reduce"));
  }
  const Call call{OpType::ALLREDUCE_COALESCED, "r2ccl:all_reduce", options.asyncOp, options.timeout,
                  tensors};
  return launch(call, tensors, [=, ranks = size_](const Target& target) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      body::all_reduce(tensors[i], reductions[i], ranks, target);
    }
  });
}

Work R2cclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const auto tensor = only(tensors, "reduce");
  check_root(options.rootRank, "reduce");
  const auto reduction = Reduction::of(options.reduceOp, tensor, "reduce");
  const int root = static_cast<int>(options.rootRank);
  const Call call{OpType::REDUCE,  "r2ccl:reduce", options.asyncOp,
                  options.timeout, tensors,        rank_ == root};
  return launch(call, tensors, [=, rank = rank_, ranks = size_](const Target& target) {
    body::reduce(tensor, reduction, root, rank, ranks, target);
  });
}

Work R2cclBackend::_reduce_scatter_base(at::Tensor& output,
                                        at::Tensor& input,
                                        const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Work R2cclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs,
                                                   Tensors& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                    "r2ccl reduce_scatter: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  std::vector<Reduction> reductions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(outputs[i], "reduce_scatter");
    check_multiple(inputs[i], outputs[i], size_, "reduce_scatter");
    reductions.push_back(Reduction::of(options.reduceOp, inputs[i], "reduce_scatter"));
  }
  const Call call{OpType::_REDUCE_SCATTER_BASE, "r2ccl:reduce_scatter", options.asyncOp,
                  options.timeout, inputs};
  return launch(call, outputs, [=, ranks = size_](const Target& target) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      body::reduce_scatter(outputs[i], inputs[i], reductions[i], ranks, target);
    }
  });
}

Work R2cclBackend::reduce_scatter(Tensors& outputs,
                                  std::vector<Tensors>& inputs,
                                  const c10d::ReduceScatterOptions& options) {
  const auto output = only(outputs, "reduce_scatter");
  const auto list = only_list(inputs, "reduce_scatter");
  check_list(list, size_, output.scalar_type(), "reduce_scatter");
  TORCH_CHECK_VALUE(list[rank_].numel() == output.numel(), "r2ccl reduce_scatter: an output of ",
                    output.numel(), " elements for a block of ", list[rank_].numel());
  const auto reduction = Reduction::of(options.reduceOp, output, "reduce_scatter");
  const bool is_even = have_same_size(list);
  TORCH_CHECK_VALUE(is_even || !reduction.bits,
                    "r2ccl reduce_scatter: bitwise reductions of blocks of different sizes");
  const Call call{OpType::REDUCE_SCATTER, "r2ccl:reduce_scatter", options.asyncOp, options.timeout,
                  list};
  return launch(call, outputs, [=, ranks = size_](const Target& target) {
    const auto from = Packed::inputs(list);
    const auto to = Staged::output(output);
    if (is_even) {
      body::reduce_scatter(from.data(), to.data(), reduction.wire.count(output.numel()), reduction,
                           ranks, target);
    } else {
      body::reduce_scatter_uneven(from, to.data(), list, reduction, target);
    }
    to.publish();
  });
}

// ---- One to all, all to one ---------------------------------------------------------------------

Work R2cclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const auto tensor = only(tensors, "broadcast");
  check_root(options.rootRank, "broadcast");
  const int root = static_cast<int>(options.rootRank);
  const Call call{OpType::BROADCAST, "r2ccl:broadcast", options.asyncOp,
                  options.timeout,   tensors,           rank_ != root};
  return launch(call, tensors, [=, rank = rank_](const Target& target) {
    body::broadcast(tensor, root, rank, target);
  });
}

Work R2cclBackend::gather(std::vector<Tensors>& outputs,
                          Tensors& inputs,
                          const c10d::GatherOptions& options) {
  const auto input = only(inputs, "gather");
  check_root(options.rootRank, "gather");
  const bool is_root = rank_ == options.rootRank;
  const auto list = root_list(outputs, is_root, "gather");
  if (is_root) {
    check_list(list, size_, input.scalar_type(), "gather");
    TORCH_CHECK_VALUE(have_same_size(list) && list[0].numel() == input.numel(),
                      "r2ccl gather: tensors of different sizes");
  }
  const Call call{OpType::GATHER, "r2ccl:gather", options.asyncOp, options.timeout, inputs};
  return launch(call, list, [=, root = static_cast<int>(options.rootRank)](const Target& target) {
    const auto wire = Wire::for_moving(input.scalar_type());
    const auto from = Staged::input(input);
    const auto to = Packed::outputs(list);
    check(target.gather(from.data(), to.data(), wire.count(input.numel()), wire.type, root),
          "gather");
    to.publish();
  });
}

Work R2cclBackend::gather_into_tensor(at::Tensor& output,
                                      at::Tensor& input,
                                      const c10d::GatherOptions& options) {
  check_tensor(input, "gather");
  check_root(options.rootRank, "gather");
  const bool is_root = rank_ == options.rootRank;
  if (is_root) {
    check_multiple(output, input, size_, "gather");
  }
  const Call call{OpType::GATHER, "r2ccl:gather", options.asyncOp, options.timeout, {input}};
  return launch(
      call, is_root ? Tensors{output} : Tensors{},
      [=, root = static_cast<int>(options.rootRank)](const Target& target) {
        const auto wire = Wire::for_moving(input.scalar_type());
        const auto from = Staged::input(input);
        const auto to = Staged::output(is_root ? output : at::empty({0}, input.options()));
        check(target.gather(from.data(), to.data(), wire.count(input.numel()), wire.type, root),
              "gather");
        to.publish();
      });
}

Work R2cclBackend::scatter(Tensors& outputs,
                           std::vector<Tensors>& inputs,
                           const c10d::ScatterOptions& options) {
  const auto output = only(outputs, "scatter");
  check_root(options.rootRank, "scatter");
  const bool is_root = rank_ == options.rootRank;
  const auto list = root_list(inputs, is_root, "scatter");
  if (is_root) {
    check_list(list, size_, output.scalar_type(), "scatter");
    TORCH_CHECK_VALUE(have_same_size(list) && list[0].numel() == output.numel(),
                      "r2ccl scatter: tensors of different sizes");
  }
  const Call call{OpType::SCATTER, "r2ccl:scatter", options.asyncOp, options.timeout, list};
  return launch(
      call, outputs, [=, root = static_cast<int>(options.rootRank)](const Target& target) {
        const auto wire = Wire::for_moving(output.scalar_type());
        const auto from = Packed::inputs(list);
        const auto to = Staged::output(output);
        check(target.scatter(from.data(), to.data(), wire.count(output.numel()), wire.type, root),
              "scatter");
        to.publish();
      });
}

// ---- All to all ---------------------------------------------------------------------------------

Work R2cclBackend::_allgather_base(at::Tensor& output,
                                   at::Tensor& input,
                                   const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Work R2cclBackend::allgather_into_tensor_coalesced(Tensors& outputs,
                                                   Tensors& inputs,
                                                   const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                    "r2ccl all_gather: ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], "all_gather");
    check_multiple(outputs[i], inputs[i], size_, "all_gather");
  }
  const Call call{OpType::_ALLGATHER_BASE, "r2ccl:all_gather", options.asyncOp, options.timeout,
                  inputs};
  return launch(call, outputs, [=](const Target& target) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      body::all_gather(outputs[i], inputs[i], target);
    }
  });
}

Work R2cclBackend::allgather(std::vector<Tensors>& outputs,
                             Tensors& inputs,
                             const c10d::AllgatherOptions& options) {
  const auto input = only(inputs, "all_gather");
  const auto list = only_list(outputs, "all_gather");
  check_gathered(list, input, rank_, size_);
  const Call call{OpType::ALLGATHER, "r2ccl:all_gather", options.asyncOp, options.timeout, inputs};
  return launch(call, list, [=](const Target& target) { body::all_gather(list, input, target); });
}

Work R2cclBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                       Tensors& inputs,
                                       const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                    "r2ccl all_gather: ", outputs.size(), " lists of outputs for ", size_,
                    " ranks");
  Tensors all;
  std::vector<Tensors> by_input(inputs.size());
  for (const auto& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                      "r2ccl all_gather: lists of different lengths");
    for (size_t i = 0; i < inputs.size(); ++i) {
      by_input[i].push_back(of_rank[i]);
    }
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], "all_gather");
    check_gathered(by_input[i], inputs[i], rank_, size_);
  }
  const Call call{OpType::ALLGATHER_COALESCED, "r2ccl:all_gather", options.asyncOp, options.timeout,
                  inputs};
  return launch(call, all, [=](const Target& target) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      body::all_gather(by_input[i], inputs[i], target);
    }
  });
}

Work R2cclBackend::alltoall_base(at::Tensor& output,
                                 at::Tensor& input,
                                 std::vector<int64_t>& output_splits,
                                 std::vector<int64_t>& input_splits,
                                 const c10d::AllToAllOptions& options) {
  check_tensor(output, "all_to_all");
  check_tensors({input}, output.scalar_type(), "all_to_all");
  check_splits(output_splits, output, size_);
  check_splits(input_splits, input, size_);
  const bool is_even = output_splits.empty() && input_splits.empty();
  // One count is for both then.
  TORCH_CHECK_VALUE(!is_even || output.numel() == input.numel(),
                    "r2ccl all_to_all: an output of ", output.numel(),
                    " elements for an input of ", input.numel());
  const Call call{
      OpType::ALLTOALL_BASE, "r2ccl:all_to_all", options.asyncOp, options.timeout, {input}};
  return launch(call, {output}, [=, ranks = size_](const Target& target) {
    const auto wire = Wire::for_moving(input.scalar_type());
    const auto from = Staged::input(input);
    const auto to = Staged::output(output);
    const auto sent = Blocks::of(input, input_splits, ranks, wire);
    const auto received = Blocks::of(output, output_splits, ranks, wire);
    const auto result =
        is_even ? target.alltoall(from.data(), to.data(), sent.counts[0], wire.type)
                : target.alltoallv(from.data(), sent.counts.data(), sent.displacements.data(),
                                   to.data(), received.counts.data(), received.displacements.data(),
                                   wire.type);
    check(result, "all_to_all");
    to.publish();
  });
}

Work R2cclBackend::alltoall(Tensors& outputs,
                            Tensors& inputs,
                            const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && inputs[0].defined(), "r2ccl all_to_all: no tensors");
  check_list(inputs, size_, inputs[0].scalar_type(), "all_to_all");
  check_list(outputs, size_, inputs[0].scalar_type(), "all_to_all");
  const Call call{OpType::ALLTOALL, "r2ccl:all_to_all", options.asyncOp, options.timeout, inputs};
  return launch(call, outputs, [=](const Target& target) {
    const auto wire = Wire::for_moving(inputs[0].scalar_type());
    const auto from = Packed::inputs(inputs);
    const auto to = Packed::outputs(outputs);
    const auto sent = Blocks::of(inputs, wire);
    const auto received = Blocks::of(outputs, wire);
    check(target.alltoallv(from.data(), sent.counts.data(), sent.displacements.data(), to.data(),
                           received.counts.data(), received.displacements.data(), wire.type),
          "all_to_all");
    to.publish();
  });
}

// Of the host, and, once there were calls on a device, of its streams too. wait() returns when all
// ranks have come to both.
Work R2cclBackend::barrier(const c10d::BarrierOptions& options) {
  check_process();
  const auto body = [](const Target& target) { check(target.barrier(), "barrier"); };
  const auto devices = existing_device_group();
  const auto device = devices ? devices->device() : std::nullopt;
  if (device) {
    // Before the half of the host is on its way.
    check_not_capturing(*device, "r2ccl:barrier");
  }
  const bool is_async = options.asyncOp || device.has_value();
  const Call call{OpType::BARRIER, "r2ccl:barrier", is_async, options.timeout};
  auto of_host = launch_on_host(call, {}, body);
  if (!device || block() != nullptr) {
    return of_host;
  }
  auto of_device = launch_on_device(call, *device, {}, body);
  static_cast<DeviceWork&>(*of_device)
      .wait_in_host(c10::static_intrusive_pointer_cast<Operation>(of_host));
  return of_device;
}

}  // namespace r2ccl_torch
