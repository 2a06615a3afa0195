#include "sentinel.hpp"

#include <system_error>
#include <utility>

#include <c10/util/thread_name.h>

namespace r2ccl_torch {

namespace {

// How late a deadline may be noticed.
constexpr auto kPeriod = std::chrono::milliseconds(20);
// Thousands of messages may expire at once.
constexpr int kEnoughTelling = 16;
// After so long all callbacks that run are thought to wait for one that does not run yet.
constexpr auto kStandstill = std::chrono::seconds(1);

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
  const auto is_over = [this] { return stopped_ && untold_.empty(); };
  const auto is_needed = [this] { return stopped_ || !watched_.empty() || !untold_.empty(); };
  while (true) {
    for (const auto& late : sweep()) {
      expire(late);
    }
    help_those_who_tell();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, is_needed);
    if (is_over() || changed_.wait_for(lock, kPeriod, is_over)) {
      serving_ = false;
      changed_.notify_all();
      return;
    }
  }
}

void Sentinel::expire(const Watched& late) {
  const auto operation = late.operation.lock();
  // It may have ended well at the last moment.
  if (!operation || !operation->claim()) {
    return;
  }
  // Before anybody sees that it is late: the group knows then how it has ended.
  if (late.expired) {
    late.expired();
  }
  auto news = operation->expire(late.what);
  if (late.settled) {
    late.settled();
  }
  for (auto& notice : news) {
    start_telling(std::move(notice));
  }
}

void Sentinel::start_telling(Notice notice) {
  std::unique_lock<std::mutex> lock(mutex_);
  untold_.push_back(std::move(notice));
  if (telling_ >= kEnoughTelling || add_thread_that_tells() || telling_ > 0) {
    return;
  }
  ++telling_;
  lock.unlock();
  // Late is better than never: other deadlines wait for the callback.
  tell();
}

void Sentinel::help_those_who_tell() {
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!untold_.empty() && now - began_telling_ >= kStandstill) {
    add_thread_that_tells();
  }
}

bool Sentinel::add_thread_that_tells() {
  try {
    std::thread([self = shared_from_this()] {
      c10::setThreadName("r2ccl-expired");
      self->tell();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++telling_;
  began_telling_ = std::chrono::steady_clock::now();
  return true;
}

void Sentinel::tell() {
  const auto* const before = std::exchange(telling_here_, this);
  std::unique_lock<std::mutex> lock(mutex_);
  while (!untold_.empty()) {
    auto notice = std::move(untold_.front());
    untold_.pop_front();
    began_telling_ = std::chrono::steady_clock::now();
    lock.unlock();
    notice();
    // What it holds may be of the program too.
    notice = nullptr;
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
