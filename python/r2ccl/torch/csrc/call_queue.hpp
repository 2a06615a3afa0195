// The collectives of a group run one after the other, in the order in which they were made.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "work.hpp"

namespace r2ccl_torch {

class CallQueue {
 public:
  using Body = std::function<void()>;

  ~CallQueue();

  // Runs `body` when its turn comes and settles `operation` with the outcome. If `here` and nothing
  // is before it, its turn is now, in this thread: a hop to another one costs microseconds. Else a
  // thread of the queue runs it. Throws once the queue is closed.
  void run(const c10::intrusive_ptr<Operation>& operation, Body body, bool here);

  // Takes no more calls, and waits for those it has until `deadline`. Tells whether they are done.
  bool close(std::chrono::steady_clock::time_point deadline);

  // Ends the thread, after close(). What is still queued runs first, so let it fail.
  void join();

 private:
  struct Job {
    c10::intrusive_ptr<Operation> operation;
    Body body;
  };

  void serve();
  // Takes the turn for the next job; false when there will be none.
  bool next(Job& job);
  void end_turn();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  // Somebody, here or in the thread, runs a call.
  bool busy_ = false;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace r2ccl_torch
