// One started call, as PyTorch sees it: c10d::Work.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "communicator.hpp"

namespace r2ccl_torch {

// Tells somebody who follows a call that it has ended, which may take as long as they like:
// callbacks of the program run in it. To be called once, and without locks.
using Notice = std::function<void()>;

// All notices of the end of a call; empty if nobody follows it.
using News = std::vector<Notice>;

// One after the other, in this thread.
void tell_all(const News& news);

// A call with a deadline that somebody else watches.
class Expiring : public c10d::Work {
 public:
  using Work::Work;

  virtual bool is_settled() = 0;

  // Nobody else settles it from now on. False if it is settled.
  virtual bool claim() = 0;

  // Settles what was claimed with a timeout that says `what` did not happen.
  virtual News expire(const std::string& what) = 0;
};

// What is thrown when `what` did not happen in time.
std::exception_ptr timed_out(const std::string& what, Milliseconds timeout);

// It is settled once, by whoever comes first: the call that ends, or a deadline.
class Operation : public Expiring {
 public:
  // What is known when the call is made. `title` is a literal such as "r2ccl:all_reduce"; `timeout`
  // is for messages and getTimeout(); profilers show the shapes of `inputs`.
  struct Description {
    c10d::OpType type;
    const char* title;
    uint64_t sequence = 0;
    Milliseconds timeout{0};
    std::vector<at::Tensor> inputs{};
  };

  Operation(int rank, const Description& description, std::vector<at::Tensor> outputs);

  // An operation that is done when all `parts` are, with the first failure among them.
  static c10::intrusive_ptr<Operation> of_all(
      int rank, const std::vector<c10::intrusive_ptr<Operation>>& parts);

  // Runs `body` in this thread and settles the operation with what it throws.
  void run(const std::function<void()>& body);

  // Settles the operation and tells of it. Does nothing if that has happened.
  void settle(std::exception_ptr failure);

  // The first halves of both: whoever waits for it goes on, and others are to be told.
  News conclude(const std::function<void()>& body);
  News conclude(std::exception_ptr failure);

  // Or claimed.
  bool is_settled() override;
  bool claim() override;
  News expire(const std::string& what) override;

  // The rank whose message it received; set before it is settled.
  void set_source(int rank) {
    source_ = rank;
  }

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  // Without `override`: older versions of PyTorch do not have it.
  std::chrono::milliseconds getTimeout() const;

 private:
  // Settles what ends with this call, and runs nothing of the program: that is in the news.
  using Follower = std::function<News(const std::exception_ptr&)>;

  // Settles what was claimed.
  News end(std::exception_ptr failure);

  // Calls `follower` when the operation is settled, before anybody is told, or at once if it is.
  void follow(Follower follower);

  const char* const title_;
  const uint64_t sequence_;
  const Milliseconds timeout_;
  const std::vector<at::Tensor> outputs_;
  std::atomic<bool> claimed_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::vector<Follower> followers_;
  int source_ = -1;
};

}  // namespace r2ccl_torch
