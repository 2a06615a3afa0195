// The collectives of a group run one after the other, in the order in which they were made.
//
// When a call has ended, callbacks of the program hear of it in the thread that has run it. They
// may make calls and wait for them, so the turn is over before, and another thread goes on with the
// queue. It does so when it has to: as long as no callback makes a call or takes long, callbacks
// run one after the other too.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "work.hpp"

namespace r2ccl_torch {

// Its threads share it with the group: the group may end in a callback.
class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  using Body = std::function<void()>;

  ~CallQueue();

  // Runs `body` when its turn comes and settles `operation` with the outcome. If `here` and nothing
  // is before it, its turn is now, in this thread: a hop to another one costs microseconds. Else a
  // thread of the queue runs it. Throws once the queue is closed.
  void run(const c10::intrusive_ptr<Operation>& operation, Body body, bool here);

  // Takes no more calls, and waits for those it has until `deadline`. Tells whether they are done.
  bool close(std::chrono::steady_clock::time_point deadline);

  // Ends the threads, after close(), but for the one that calls this. What is still queued runs
  // first, so let it fail.
  void join();

 private:
  struct Job {
    c10::intrusive_ptr<Operation> operation;
    Body body;
  };
  // What a thread is in while it tells of the end of a call.
  struct Telling {
    const CallQueue* queue;
    // The next call need not wait for it.
    bool lets_others_by = false;
  };

  void serve();
  // Takes the turn for the next job; false when there will be none.
  bool next(Job& job);
  void end_turn(bool tells);
  void tell(const News& news);

  // These want mutex_ to be held.
  void start_thread_if_none_serves();
  void let_others_by(Telling& telling);

  static thread_local Telling* telling_here_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  // Somebody, here or in a thread, runs a call.
  bool busy_ = false;
  bool closed_ = false;
  // Threads of the queue that run a call or wait for one.
  int serving_ = 0;
  // Those that tell of the end of one, and let nobody by.
  int telling_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace r2ccl_torch
