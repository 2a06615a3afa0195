// The calls of a group on memory of devices.
//
// They have communicators of their own, made when they are first used: calls of the host wait in
// threads, those of devices in streams, and neither should wait for the other. Calls are put on
// streams in the thread that makes them, in the order in which they are made. A call that its
// caller waits for at once goes on the caller's stream, which costs no events, and needs no word to
// the allocator. All others go on a stream of the group, which waits for the caller's first, so
// that the caller's goes on meanwhile.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"
#include "device_work.hpp"
#include "target.hpp"
#include "tensors.hpp"

namespace r2ccl_torch {

using Body = std::function<void(const Target&)>;

class DeviceGroup {
 public:
  // A message of a coalesced block.
  struct Message {
    bool is_send;
    at::Tensor tensor;
    int peer;
  };

  // Ranks meet through `store`, which is for this object alone, at the first call, for at most
  // `timeout`.
  DeviceGroup(c10::intrusive_ptr<c10d::Store> store,
              int rank,
              int size,
              Milliseconds timeout,
              std::string name);

  // The deadline that its communicators have.
  Milliseconds timeout() const {
    return timeout_;
  }

  // Makes the communicator for calls on this device. All ranks have to come. Later ones need the
  // same device.
  void connect(c10::Device device);

  // The device, once that has happened.
  std::optional<c10::Device> device() const;

  // Puts `body` on a stream, on that of the caller if `here`. `tensors` are those it works on.
  // Connects first. Throws what the library says at once; nothing is on any stream then, as a rule.
  c10::intrusive_ptr<DeviceWork> run(const Operation::Description& description,
                                     c10::Device device,
                                     bool here,
                                     const Tensors& tensors,
                                     Tensors outputs,
                                     const Body& body);

  // Sends to or receives from a peer, on communicators of the two, made at the first message in
  // either direction, for which both have to come.
  c10::intrusive_ptr<DeviceWork> run_message(const Operation::Description& description,
                                             bool here,
                                             const Message& message);

  // All that was started on the side stream, and these messages, which progress together.
  c10::intrusive_ptr<DeviceWork> run_block(const Operation::Description& description,
                                           c10::Device device,
                                           const std::vector<Message>& messages,
                                           Tensors outputs);

  // Ends all calls on all ranks, and waits for nobody. Streams go on. `why` as for communicators.
  void abort(ccl_result_t why = kAborted);

  // Waits until `deadline` for what is on streams, aborts what is not done then, and takes leave.
  // Tells whether all was done.
  bool finish(std::chrono::steady_clock::time_point deadline);

  // Why calls will not succeed any more; empty while they may. Of a group without such calls too.
  std::string failure() const;
  ccl_result_t status() const;

  // The ranks that are lost to calls and messages here, as far as is known.
  std::set<int> lost_ranks() const;

  // Of the communicator of collectives, which is null if there is none.
  std::shared_ptr<Communicator> communicator() const;

 private:
  // A communicator, where its calls go that nobody waits for at once, and when the last one is
  // over.
  struct Line {
    std::shared_ptr<Communicator> communicator;
    c10::Stream side;
    DeviceWork::Event last;
  };

  void check_device(c10::Device device);
  Line& connected(c10::Device device);
  Line& line_to(int peer, bool is_send, c10::Device device);
  bool is_aborted() const;
  Line& keep(Line line, std::optional<std::pair<int, bool>> peer);
  c10::intrusive_ptr<DeviceWork> run_on(Line& line,
                                        const Operation::Description& description,
                                        bool here,
                                        const Tensors& tensors,
                                        Tensors outputs,
                                        const Body& body);
  std::vector<Line*> lines();
  static bool is_over(const Line& line);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const Milliseconds timeout_;
  const std::string name_;

  // Held by whoever makes calls, also while ranks meet.
  std::mutex calls_mutex_;
  std::optional<c10::Device> device_;

  // For the communicators; those who want them to end do not wait for those who make calls.
  mutable std::mutex lines_mutex_;
  bool aborted_ = false;
  std::unique_ptr<Line> collectives_;
  // By peer, and by whether messages go there.
  std::map<std::pair<int, bool>, std::unique_ptr<Line>> messages_;
};

}  // namespace r2ccl_torch
