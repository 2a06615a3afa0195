// A membership in a communicator of r2ccl, and who may still use it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "library.hpp"

namespace r2ccl_torch {

using Milliseconds = std::chrono::milliseconds;

// What communicators say of themselves that the program has aborted: no other rank is to blame.
constexpr ccl_result_t kAborted = CCL_INVALID_USAGE;

// How many times this process and its ancestors have forked since the module was loaded: threads
// and connections belong to the process that made them.
uint64_t fork_generation();

// Ends with the object. All members may be called from any thread, abort() while a call is under
// way.
class Communicator {
 public:
  // Becomes `rank` of the `size` ranks that do this with the same id. No call on it takes longer
  // than `timeout`.
  Communicator(
      const ccl_unique_id_t& id, int rank, int size, Milliseconds timeout, const std::string& name);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  // Sets the deadline of the calls that begin from now on. To be called by whoever makes them.
  void set_timeout(Milliseconds timeout);

  // Runs `act` with the communicator, for calls of the library. Throws that the group has ended if
  // it has before, or does meanwhile: the library then finds that there is no such communicator,
  // which is no impossible argument of the program.
  template <typename Act>
  void use(const Act& act) const {
    const ccl_comm_t comm = get();
    try {
      act(comm);
    } catch (const c10::ValueError&) {
      get();
      throw;
    }
  }

  // What went wrong, after the end too; empty if nothing did, as when leave was taken. Asks nobody.
  std::string failure() const;
  ccl_result_t status() const;

  // All rails of all ranks.
  std::vector<ccl_rail_health_t> health() const;
  // Those that are lost to this one, in order; after the end those that were then.
  std::vector<int> lost_ranks() const;

  // Takes leave of the other ranks. Does nothing if it has ended.
  void finish();

  // Ends all calls on all ranks, and does not wait for anybody. `why` is what status() says from
  // now on, unless something went wrong before; the others find a remote error.
  void abort(ccl_result_t why = kAborted);

 private:
  // What went wrong.
  struct Failure {
    ccl_result_t status = CCL_SUCCESS;
    std::string reason;
  };

  // Throws if it has ended.
  ccl_comm_t get() const;
  // What the library says, as long as it knows the communicator.
  std::optional<Failure> asked() const;
  std::optional<std::vector<int>> asked_who_is_lost() const;
  Failure known() const;
  // Remembers what the library will not say any more; what was first stays.
  void note(Failure failure);
  void note_who_is_lost();
  // Takes the communicator out, with what goes wrong by that; null if somebody has done so.
  ccl_comm_t taken(Failure failure);

  std::atomic<ccl_comm_t> comm_{nullptr};
  mutable std::mutex noted_mutex_;
  Failure noted_;
  std::vector<int> noted_lost_;
  int timeout_ms_;
  const uint64_t generation_ = fork_generation();
};

// What a call on a group that has ended throws.
[[noreturn]] void throw_ended();

// How long the library waits for ranks that meet: its setting, which it does not tell.
Milliseconds bootstrap_timeout();

// A deadline as the library takes it: at least a millisecond, at most 11 days.
int timeout_ms(Milliseconds timeout);

// When `timeout` is over, or 11 days, whichever comes first: clocks overflow.
std::chrono::steady_clock::time_point deadline_after(Milliseconds timeout);

}  // namespace r2ccl_torch
