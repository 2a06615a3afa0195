#include "call_queue.hpp"

#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

namespace r2ccl_torch {

namespace {

// After so long a callback is thought to wait for a call behind its own. It is more than threads
// of Python wait for their turn, so that callbacks run in order on busy machines too.
constexpr auto kPatience = std::chrono::milliseconds(100);

}  // namespace

thread_local CallQueue::Telling* CallQueue::telling_here_ = nullptr;

CallQueue::~CallQueue() {
  close(std::chrono::steady_clock::time_point::min());
  join();
}

void CallQueue::run(const c10::intrusive_ptr<Operation>& operation, Body body, bool here) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      throw_ended();
    }
    if (telling_here_ != nullptr && telling_here_->queue == this) {
      let_others_by(*telling_here_);
    }
    if (!here || busy_ || !jobs_.empty()) {
      jobs_.push_back({operation, std::move(body)});
      start_thread_if_none_serves();
      changed_.notify_all();
      return;
    }
    busy_ = true;
  }
  // Nobody follows it yet: it is the caller's when this returns.
  operation->run(body);
  end_turn(false);
}

bool CallQueue::close(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
  return changed_.wait_until(lock, deadline, [this] { return !busy_ && jobs_.empty(); });
}

void CallQueue::join() {
  std::unique_lock<std::mutex> lock(mutex_);
  // One that ends may have started another one.
  while (!threads_.empty()) {
    auto thread = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
    lock.lock();
  }
}

// ---- Threads ------------------------------------------------------------------------------------

void CallQueue::start_thread_if_none_serves() {
  if (serving_ == 0) {
    threads_.emplace_back([self = shared_from_this()] { self->serve(); });
    ++serving_;
  }
}

void CallQueue::serve() {
  c10::setThreadName("r2ccl-calls");
  Job job;
  while (next(job)) {
    const News news = job.operation->conclude(job.body);
    // Tensors go before the turn does: whoever waits for the end of all calls may count on it.
    job = Job{};
    const bool tells = !news.empty();
    end_turn(tells);
    if (tells) {
      tell(news);
    }
  }
}

bool CallQueue::next(Job& job) {
  const auto is_free = [this] { return !busy_ && (closed_ || !jobs_.empty()); };
  const auto nobody_tells = [this] { return telling_ == 0 || jobs_.empty(); };
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    changed_.wait(lock, is_free);
    changed_.wait_for(lock, kPatience, nobody_tells);
  } while (!is_free());
  if (jobs_.empty()) {
    return false;
  }
  job = std::move(jobs_.front());
  jobs_.pop_front();
  busy_ = true;
  return true;
}

void CallQueue::end_turn(bool tells) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    if (tells) {
      ++telling_;
      --serving_;
      if (!jobs_.empty()) {
        start_thread_if_none_serves();
      }
    }
  }
  changed_.notify_all();
}

// ---- Callbacks ----------------------------------------------------------------------------------

void CallQueue::tell(const News& news) {
  Telling telling{this};
  telling_here_ = &telling;
  tell_all(news);
  telling_here_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  let_others_by(telling);
  ++serving_;
}

void CallQueue::let_others_by(Telling& telling) {
  if (!telling.lets_others_by) {
    telling.lets_others_by = true;
    --telling_;
    changed_.notify_all();
  }
}

}  // namespace r2ccl_torch
