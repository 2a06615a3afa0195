#include "sentinel.hpp"

#include <system_error>
#include <utility>

#include <c10/util/thread_name.h>

namespace r2ccl_torch {

namespace {

// How late a deadline may be noticed.
constexpr auto kPeriod = std::chrono::milliseconds(20);
// Thousands of messages may expire at once.
constexpr int kMostTelling = 16;

}  // namespace

thread_local const Sentinel* Sentinel::telling_here_ = nullptr;

void Sentinel::watch(const c10::intrusive_ptr<Expiring>& operation,
                     Milliseconds timeout,
                     std::string what,
                     std::function<void()> expired,
                     std::function<void()> settled) {
  const auto deadline = deadline_after(timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    return;
  }
  watched_.push_back({c10::weak_intrusive_ptr<Expiring>(operation), deadline, std::move(what),
                      std::move(expired), std::move(settled)});
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] { self->serve(); });
    serving_ = true;
  }
  changed_.notify_all();
}

void Sentinel::stop(std::chrono::steady_clock::time_point deadline) {
  // May hold tensors and communicators, which end without the lock.
  std::vector<Watched> unneeded;
  std::unique_lock<std::mutex> lock(mutex_);
  // The last that holds an operation may hold what holds the group, so this may be its thread.
  const bool serves_here = thread_.get_id() == std::this_thread::get_id();
  const int tells_here = telling_here_ == this ? 1 : 0;
  stopped_ = true;
  unneeded.swap(watched_);
  changed_.notify_all();
  changed_.wait_until(lock, deadline, [&] {
    // The thread may be about to tell.
    return (!serving_ || serves_here) && untold_.empty() && telling_ <= tells_here;
  });
  const bool serves = serving_;
  lock.unlock();
  if (serves) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

void Sentinel::serve() {
  c10::setThreadName("r2ccl-deadlines");
  while (true) {
    for (auto& late : sweep()) {
      const auto operation = late.operation.lock();
      // It may have ended well at the last moment.
      if (!operation || !operation->claim()) {
        continue;
      }
      // Before anybody sees that it is late: the group knows then how it has ended.
      if (late.expired) {
        late.expired();
      }
      auto tell = operation->expire(late.what);
      if (late.settled) {
        late.settled();
      }
      if (tell) {
        start_telling(std::move(tell));
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || !watched_.empty(); });
    if (stopped_ || changed_.wait_for(lock, kPeriod, [this] { return stopped_; })) {
      serving_ = false;
      changed_.notify_all();
      return;
    }
  }
}

void Sentinel::start_telling(News news) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    untold_.push_back(std::move(news));
    if (telling_ == kMostTelling) {
      return;
    }
    ++telling_;
  }
  try {
    std::thread([self = shared_from_this()] {
      c10::setThreadName("r2ccl-expired");
      self->tell();
    }).detach();
  } catch (const std::system_error&) {
    // Late is better than never: other deadlines wait for the callback.
    tell();
  }
}

void Sentinel::tell() {
  const auto* const before = std::exchange(telling_here_, this);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!untold_.empty()) {
    auto news = std::move(untold_.front());
    untold_.pop_front();
    lock.unlock();
    news();
    // What it holds may be of the program too.
    news = nullptr;
    lock.lock();
  }
  telling_here_ = before;
  --telling_;
  changed_.notify_all();
}

std::vector<Sentinel::Watched> Sentinel::sweep() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Watched> late;
  std::vector<Watched> waiting;
  // They go without the lock: the last that holds an operation may hold what holds the group, whose
  // end wants the lock.
  std::vector<c10::intrusive_ptr<Expiring>> held;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& watched : watched_) {
    const auto& operation = held.emplace_back(watched.operation.lock());
    if (!operation || operation->is_settled()) {
      continue;
    }
    (watched.deadline <= now ? late : waiting).push_back(std::move(watched));
  }
  watched_.swap(waiting);
  return late;
}

}  // namespace r2ccl_torch
