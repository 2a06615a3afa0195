// A call on memory of a device, as PyTorch sees it: it is over when a stream has come past it.
//
// Nothing here waits for a device, but wait() of a barrier or with a timeout. What goes wrong after
// the call has returned is known to the communicator; results are worth nothing then, although
// streams go on.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "streams.hpp"
#include "work.hpp"

namespace r2ccl_torch {

class DeviceWork : public Expiring {
 public:
  using Event = std::shared_ptr<const c10::Event>;

  // `failure` tells why the communicator has failed, or "".
  DeviceWork(int rank,
             const Operation::Description& description,
             std::vector<at::Tensor> outputs,
             std::function<std::string()> failure);

  // All of it is on `stream` now, which is current.
  void start(const c10::Stream& stream);

  // wait() waits in the host, for this and for `other`, if there is one.
  void wait_in_host(c10::intrusive_ptr<Operation> other);

  // Happens when the stream has come past it.
  Event end() const {
    return end_;
  }

  bool is_settled() override;
  bool claim() override;
  News expire(const std::string& what) override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void blockCurrentStream() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  // Without `override`: older versions of PyTorch do not have it.
  std::chrono::milliseconds getTimeout() const;

 private:
  // Whether it has ended well or badly, as far as that is known.
  enum class State { UnderWay, Done, Failed };

  State look() const;
  void throw_failure() const;

  const char* const title_;
  const uint64_t sequence_;
  const Milliseconds timeout_;
  const std::vector<at::Tensor> outputs_;
  const std::function<std::string()> failure_;
  std::optional<c10::Stream> stream_;
  Event end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool waits_in_host_ = false;
  c10::intrusive_ptr<Operation> other_;

  // Under the mutex of the base, as what follows. What is claimed is under way until it expires, or
  // until the communicator has failed, which lets its stream go on.
  bool claimed_ = false;
  // Once it is known.
  mutable State state_ = State::UnderWay;
  mutable std::exception_ptr reason_;
};

}  // namespace r2ccl_torch
