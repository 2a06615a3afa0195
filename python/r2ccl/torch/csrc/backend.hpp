// The process group "r2ccl": c10d::Backend over one communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "call_queue.hpp"
#include "communicator.hpp"
#include "device_group.hpp"
#include "mailbox.hpp"
#include "reunion.hpp"
#include "sentinel.hpp"
#include "tensors.hpp"
#include "work.hpp"

namespace r2ccl_torch {

using Work = c10::intrusive_ptr<c10d::Work>;

// Names of PyTorch's older versions are overridden: newer ones forward to them.
class R2cclBackend : public c10d::Backend {
 public:
  // `store` is that in which the ranks of the group have met, and for them alone.
  R2cclBackend(const c10::intrusive_ptr<c10d::Store>& store,
               int rank,
               int size,
               Milliseconds timeout,
               const std::string& name,
               std::vector<uint64_t> global_ranks);
  ~R2cclBackend() override;

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // What PyTorch calls for sparse tensors on a device, of which there are no sums.
  Work allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return sum_sparse(tensors, options);
  }
  Work allreduce_coalesced(Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& options) override;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Work reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Work allgather(std::vector<Tensors>& outputs,
                 Tensors& inputs,
                 const c10d::AllgatherOptions& options) override;
  Work allgather_coalesced(std::vector<Tensors>& outputs,
                           Tensors& inputs,
                           const c10d::AllgatherOptions& options) override;
  Work _allgather_base(at::Tensor& output,
                       at::Tensor& input,
                       const c10d::AllgatherOptions& options) override;
  Work allgather_into_tensor_coalesced(Tensors& outputs,
                                       Tensors& inputs,
                                       const c10d::AllgatherOptions& options) override;
  Work reduce_scatter(Tensors& outputs,
                      std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& options) override;
  Work _reduce_scatter_base(at::Tensor& output,
                            at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override;
  Work reduce_scatter_tensor_coalesced(Tensors& outputs,
                                       Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override;
  Work alltoall_base(at::Tensor& output,
                     at::Tensor& input,
                     std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override;
  Work alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Work gather(std::vector<Tensors>& outputs,
              Tensors& inputs,
              const c10d::GatherOptions& options) override;
  // Without `override`: older versions of PyTorch do not have it.
  Work gather_into_tensor(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::GatherOptions& options);
  Work scatter(Tensors& outputs,
               std::vector<Tensors>& inputs,
               const c10d::ScatterOptions& options) override;
  Work barrier(const c10d::BarrierOptions& options) override;
  // Through the store, so that rank 0 can name everybody who does not come.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  Work send(Tensors& tensors, int peer, int tag) override;
  Work recv(Tensors& tensors, int peer, int tag) override;
  Work recvAnysource(Tensors& tensors, int tag) override;

  bool supportsCoalescing() const override {
    return true;
  }
  void startCoalescing() override;
  Work endCoalescing() override;

  bool supportsSplitting() const override {
    return true;
  }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;

  // Without `override`: older versions of PyTorch do not have these.
  virtual bool supportsShrinking() const {
    return true;
  }
  // The ranks that are left meet through the store, and none waits longer than the library would; this group may have
  // failed, and may have been aborted. The flags are those of ccl_comm_shrink().
  virtual c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded,
                                                   int flags = CCL_SHRINK_DEFAULT,
                                                   const c10::intrusive_ptr<Options>& options = nullptr);

  const std::string getBackendName() const override {
    return "r2ccl";
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return options_;
  }
  // For calls that are made from now on.
  void setTimeout(std::chrono::milliseconds timeout) override {
    options_->timeout = timeout;
  }
  uint64_t getSequenceNumberForGroup() override {
    return sequence_;
  }
  c10d::ErrorType getError() override;

  // Of buckets of DDP, and of what FSDP sends, if it is told so; see memory.hpp. Without `override`: older versions of
  // PyTorch do not ask.
  virtual bool supportsTensorAlloc(c10::DeviceIndex device) {
    return device < 0;
  }
  virtual at::Tensor allocateTensor(long elements, at::TensorOptions options = {});

  // Makes what calls on memory of a device need now, and not at the first of them.
  void eagerConnectSingleDevice(at::Device device) override;

  // Gives what was started some time to finish, takes leave of the others, and ends all threads.
  void shutdown() override;
  // Ends all calls on all ranks with an error.
  void abort() override;

  std::vector<ccl_rail_health_t> health();
  // To any communicator of the group, and when ranks met to go on without others; known after the end, too.
  std::set<int> lost_ranks() const;

 private:
  // How a call is made, and from what: profilers show it. `body` is run with the communicator when
  // its turn comes, or at once if the tensors are in memory of a device.
  struct Call {
    c10d::OpType type;
    // A literal, "r2ccl:" and the name of the call.
    const char* title;
    bool async;
    std::chrono::milliseconds timeout;
    Tensors inputs{};
    // Whether this rank's outputs are written at all.
    bool has_result = true;
  };
  // What is collected between startCoalescing() and endCoalescing(), and not on its way yet.
  struct Block {
    std::vector<c10::intrusive_ptr<Operation>> operations;
    // Where calls on memory of a device are made, if there are any.
    std::optional<c10::Device> device;
    std::vector<DeviceGroup::Message> messages;
    Tensors outputs;
    // Why a message was refused, the first that was.
    std::exception_ptr refusal;
  };
  // What shutdown() does, once.
  void finish();
  // That of this thread, which nobody else uses; null if it has begun none.
  Block* block();
  Block take_block();
  Work launch(const Call& call, Tensors outputs, Body body);
  Work launch_on_host(const Call& call, Tensors outputs, Body body);
  Work launch_on_device(const Call& call, c10::Device device, Tensors outputs, const Body& body);
  Work send_or_receive_on_device(Tensors& tensors, int peer, int tag, bool is_send);
  DeviceGroup& device_group();
  // Null before the first call on memory of a device.
  std::shared_ptr<DeviceGroup> existing_device_group() const;
  // What aborts the communicators, for when a deadline that is shorter than theirs has passed.
  std::function<void()> aborting() const;
  // Watches the deadline of a call that is on its stream, if the communicators do not.
  Work with_deadline(c10::intrusive_ptr<DeviceWork> work,
                     const Operation::Description& description);
  Work sum_sparse(Tensors& tensors, const c10d::AllreduceOptions& options);
  Work post(c10::intrusive_ptr<Operation> operation);
  // Begins a message; if that is refused in a block, the end of the block throws it.
  Work message(c10d::OpType type, const std::function<Work()>& begin);
  Work start_send(Tensors& tensors, int peer, int tag);
  Work start_receive(Tensors& tensors, int peer, int tag, c10d::OpType type);
  // A group of these ranks, of which this is one, and which have met in `store`.
  c10::intrusive_ptr<c10d::Backend> part(const c10::intrusive_ptr<c10d::Store>& store,
                                         const std::vector<int>& ranks,
                                         const c10::intrusive_ptr<Options>& options) const;
  Mailbox& mailbox();
  // Null before the first message on the host.
  std::shared_ptr<Mailbox> existing_mailbox();
  // Throws in a forked child.
  void check_process() const;
  void check_root(int64_t root, const char* call) const;
  void check_peer(int peer, const char* call) const;
  Milliseconds timeout_of(std::chrono::milliseconds wanted) const;

  const uint64_t generation_ = fork_generation();
  const c10::intrusive_ptr<Options> options_;
  // For the ranks of this group while it is there, and with a connection of its own: PyTorch's own
  // uses of the store do not wait for ours.
  const c10::intrusive_ptr<c10d::Store> store_;
  Reunion reunion_;
  const std::shared_ptr<Communicator> communicator_;
  // The deadline that the communicator itself has.
  const Milliseconds own_timeout_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> barriers_{0};
  // By the names of the new groups.
  std::map<std::string, int> splits_;
  std::atomic<bool> ended_{false};

  std::mutex mailbox_mutex_;
  std::shared_ptr<Mailbox> mailbox_;

  mutable std::mutex device_group_mutex_;
  std::shared_ptr<DeviceGroup> device_group_;

  // By the threads that have begun them: calls of others, as callbacks make them, are in none.
  std::mutex blocks_mutex_;
  std::map<std::weak_ptr<const void>, Block, std::owner_less<>> blocks_;

  // Threads, so they end first. In a forked child, where they do not run, they are left alone.
  std::shared_ptr<CallQueue> queue_;
  std::shared_ptr<Sentinel> sentinel_;
};

}  // namespace r2ccl_torch
