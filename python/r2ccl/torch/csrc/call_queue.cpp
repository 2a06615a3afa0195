#include "call_queue.hpp"

#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

namespace r2ccl_torch {

CallQueue::~CallQueue() {
  close(std::chrono::steady_clock::time_point::min());
  join();
}

void CallQueue::run(const c10::intrusive_ptr<Operation>& operation, Body body, bool here) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!closed_, "r2ccl: the process group was aborted or destroyed");
    if (!here || busy_ || !jobs_.empty()) {
      jobs_.push_back({operation, std::move(body)});
      if (!thread_.joinable()) {
        thread_ = std::thread([this] { serve(); });
      }
      changed_.notify_all();
      return;
    }
    busy_ = true;
  }
  operation->run(body);
  end_turn();
}

bool CallQueue::close(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  return changed_.wait_until(lock, deadline, [this] { return !busy_ && jobs_.empty(); });
}

void CallQueue::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void CallQueue::serve() {
  c10::setThreadName("r2ccl-calls");
  Job job;
  while (next(job)) {
    job.operation->run(job.body);
    // Tensors go before the turn does: whoever waits for the end of all calls may count on it.
    job = Job{};
    end_turn();
  }
}

bool CallQueue::next(Job& job) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_ && (closed_ || !jobs_.empty()); });
  if (jobs_.empty()) {
    return false;
  }
  job = std::move(jobs_.front());
  jobs_.pop_front();
  busy_ = true;
  return true;
}

void CallQueue::end_turn() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
  }
  changed_.notify_all();
}

}  // namespace r2ccl_torch
