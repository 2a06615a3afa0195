#include "work.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <c10/util/Exception.h>

namespace r2ccl_torch {

namespace {

void mark(c10::ivalue::Future& future,
          const std::vector<at::Tensor>& outputs,
          std::exception_ptr failure) {
  if (failure) {
    future.setError(std::move(failure));
  } else {
    future.markCompleted(c10::IValue(outputs));
  }
}

}  // namespace

void tell_all(const News& news) {
  for (const auto& notice : news) {
    notice();
  }
}

std::exception_ptr timed_out(const std::string& what, Milliseconds timeout) {
  const auto message = c10::str("r2ccl ", what, " did not finish within ", timeout.count(),
                                " ms: its timeout has passed");
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

Operation::Operation(int rank, const Description& description, std::vector<at::Tensor> outputs)
    : Expiring(rank, description.type, description.title, description.inputs),
      title_(description.title),
      sequence_(description.sequence),
      timeout_(description.timeout),
      outputs_(std::move(outputs)) {
}

c10::intrusive_ptr<Operation> Operation::of_all(
    int rank, const std::vector<c10::intrusive_ptr<Operation>>& parts) {
  struct Count {
    std::atomic<size_t> left;
    std::mutex mutex;
    std::exception_ptr failure;
  };
  std::vector<at::Tensor> outputs;
  for (const auto& part : parts) {
    outputs.insert(outputs.end(), part->outputs_.begin(), part->outputs_.end());
  }
  const Description description{c10d::OpType::COALESCED, "r2ccl:coalesced"};
  auto whole = c10::make_intrusive<Operation>(rank, description, std::move(outputs));
  auto count = std::make_shared<Count>();
  // One more than there are, so that nothing ends before all are followed.
  count->left = parts.size() + 1;
  const auto one_less = [whole, count](const std::exception_ptr& failure) {
    {
      std::lock_guard<std::mutex> lock(count->mutex);
      count->failure = count->failure ? count->failure : failure;
    }
    return --count->left == 0 ? whole->conclude(count->failure) : News();
  };
  for (const auto& part : parts) {
    part->follow(one_less);
  }
  tell_all(one_less(nullptr));
  return whole;
}

void Operation::run(const std::function<void()>& body) {
  tell_all(conclude(body));
}

void Operation::settle(std::exception_ptr failure) {
  tell_all(conclude(std::move(failure)));
}

News Operation::conclude(const std::function<void()>& body) {
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  return conclude(failure);
}

News Operation::conclude(std::exception_ptr failure) {
  return claim() ? end(std::move(failure)) : News();
}

News Operation::end(std::exception_ptr failure) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<Follower> followers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Before anybody sees the end: who has waited for the last call may stop the profiler.
    if (recordFunctionEndCallback_) {
      recordFunctionEndCallback_();
      recordFunctionEndCallback_ = nullptr;
    }
    completed_ = true;
    exception_ = failure;
    future = future_;
    followers.swap(followers_);
  }
  cv_.notify_all();
  News news;
  if (future) {
    news.push_back([future = std::move(future), outputs = outputs_, failure] {
      mark(*future, outputs, failure);
    });
  }
  for (const auto& follower : followers) {
    auto more = follower(failure);
    std::move(more.begin(), more.end(), std::back_inserter(news));
  }
  return news;
}

bool Operation::is_settled() {
  return claimed_;
}

bool Operation::claim() {
  return !claimed_.exchange(true);
}

News Operation::expire(const std::string& what) {
  return end(timed_out(what, timeout_));
}

void Operation::follow(Follower follower) {
  std::exception_ptr failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!completed_) {
      followers_.push_back(std::move(follower));
      return;
    }
    failure = exception_;
  }
  tell_all(follower(failure));
}

bool Operation::wait(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    // Every operation is settled by its own deadline.
    cv_.wait(lock, done);
  } else if (!cv_.wait_until(lock, deadline_after(timeout), done)) {
    std::rethrow_exception(timed_out(title_, timeout));
  }
  if (exception_) {
    std::rethrow_exception(exception_);
  }
  return true;
}

void Operation::abort() {
  TORCH_CHECK(false, "r2ccl cannot abort a single operation: abort its process group");
}

int Operation::sourceRank() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

std::vector<at::Tensor> Operation::result() {
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> Operation::getFuture() {
  std::exception_ptr failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (future_) {
      return future_;
    }
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (!completed_) {
      return future_;
    }
    failure = exception_;
  }
  mark(*future_, outputs_, failure);
  return future_;
}

uint64_t Operation::getSequencenumber() const {
  return sequence_;
}

std::chrono::milliseconds Operation::getTimeout() const {
  return timeout_;
}

}  // namespace r2ccl_torch
