// Settles operations whose deadline has passed although whoever runs them is still busy.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "work.hpp"

namespace r2ccl_torch {

// Its thread shares it with the group: the group may end in a callback.
class Sentinel : public std::enable_shared_from_this<Sentinel> {
 public:
  // When `timeout` is over and the operation is not settled, `expired` is called, if there is one;
  // then it is settled with a message that says `what` did not finish; then `settled` is called, if
  // there is one, and callbacks run.
  void watch(const c10::intrusive_ptr<Expiring>& operation,
             Milliseconds timeout,
             std::string what,
             std::function<void()> expired = nullptr,
             std::function<void()> settled = nullptr);

  // Nothing expires any more. Waits until `deadline` for callbacks, but for the one that calls
  // this; what takes longer goes on alone.
  void stop(std::chrono::steady_clock::time_point deadline);

 private:
  struct Watched {
    c10::weak_intrusive_ptr<Expiring> operation;
    std::chrono::steady_clock::time_point deadline;
    std::string what;
    std::function<void()> expired;
    std::function<void()> settled;
  };

  void serve();
  // Settles what is late.
  void expire(const Watched& late);
  // In another thread: a callback may wait for other calls, which end now, or at their own
  // deadlines.
  void start_telling(Notice notice);
  // Another thread tells if no notice has come to its end for long.
  void help_those_who_tell();
  // False if no thread can be had. Wants mutex_ to be held.
  bool add_thread_that_tells();
  // Tells until nothing is left.
  void tell();
  // Takes what has expired out of the list, and forgets what is settled.
  std::vector<Watched> sweep();

  static thread_local const Sentinel* telling_here_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool stopped_ = false;
  std::deque<Notice> untold_;
  // Threads that tell.
  int telling_ = 0;
  // When one of them has begun, with the first notice or the next one.
  std::chrono::steady_clock::time_point began_telling_;
  // The thread that watches has not ended.
  bool serving_ = false;
  std::thread thread_;
};

}  // namespace r2ccl_torch
