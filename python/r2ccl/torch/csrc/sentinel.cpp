#include "sentinel.hpp"

#include <memory>
#include <system_error>
#include <utility>

#include <c10/util/thread_name.h>

namespace r2ccl_torch {

namespace {

// How late a deadline may be noticed.
constexpr auto kPeriod = std::chrono::milliseconds(20);

}  // namespace

thread_local const Sentinel* Sentinel::telling_here_ = nullptr;

void Sentinel::watch(const c10::intrusive_ptr<Expiring>& operation,
                     Milliseconds timeout,
                     std::string what,
                     std::function<void()> expired) {
  const auto deadline = deadline_after(timeout);
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    return;
  }
  watched_.push_back({c10::weak_intrusive_ptr<Expiring>(operation), deadline, std::move(what),
                      std::move(expired)});
  if (!thread_.joinable()) {
    thread_ = std::thread([self = shared_from_this()] { self->serve(); });
  }
  changed_.notify_all();
}

void Sentinel::stop() {
  // May hold tensors and communicators, which end without the lock.
  std::vector<Watched> unneeded;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    unneeded.swap(watched_);
  }
  changed_.notify_all();
  // It ends first: it may be about to tell. The last that holds an operation may hold what holds the
  // group, so this may be its thread.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const int own = telling_here_ == this ? 1 : 0;
  changed_.wait(lock, [this, own] { return telling_ <= own; });
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
      if (auto tell = operation->expire(late.what)) {
        start_telling(std::move(tell));
      }
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || !watched_.empty(); });
    if (stopped_ || changed_.wait_for(lock, kPeriod, [this] { return stopped_; })) {
      return;
    }
  }
}

void Sentinel::start_telling(News news) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++telling_;
  }
  const auto shared = std::make_shared<News>(std::move(news));
  const auto tell = [self = shared_from_this(), shared] {
    const auto* const before = std::exchange(telling_here_, self.get());
    (*shared)();
    // What it holds may be of the program too.
    *shared = nullptr;
    telling_here_ = before;
    std::lock_guard<std::mutex> lock(self->mutex_);
    --self->telling_;
    self->changed_.notify_all();
  };
  try {
    std::thread([tell] {
      c10::setThreadName("r2ccl-expired");
      tell();
    }).detach();
  } catch (const std::system_error&) {
    // Late is better than never: other deadlines wait for the callback.
    tell();
  }
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
