#include "store.hpp"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace r2ccl_torch {

bool await(const std::function<bool()>& condition, Milliseconds timeout, const GivesUp& gives_up) {
  const auto deadline = deadline_after(timeout);
  for (auto pause = kFirstPause; !condition(); pause = std::min(pause * 2, kLongestPause)) {
    if (std::chrono::steady_clock::now() >= deadline || (gives_up && gives_up())) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

c10::intrusive_ptr<c10d::Store> meet(const c10::intrusive_ptr<c10d::Store>& store,
                                     int size,
                                     Milliseconds timeout,
                                     const Advice& advice,
                                     const GivesUp& gives_up) {
  const auto members = c10::str("members/", size);
  const int64_t place = store->add(members, 1);
  // Nobody comes again before all have come, but who has gone: every `size` of them are one
  // meeting.
  const int64_t meeting = (place - 1) / size;
  const auto name = c10::str("meeting/", size, "/", meeting);
  auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  if (place == (meeting + 1) * size) {
    own->set("all", std::vector<uint8_t>{1});
  }
  if (!await([&] { return own->check({"all"}); }, timeout, gives_up)) {
    // Whoever comes again is not counted twice.
    const auto came = store->add(members, -1) + 1 - meeting * size;
    if (came < size) {
      if (gives_up && gives_up()) {
        throw_ended();
      }
      C10_THROW_ERROR(DistBackendError,
                      c10::str("r2ccl: only ", came, " of ", size, " ranks have come within ",
                               timeout.count(), " ms", advice ? advice() : ""));
    }
    // The last one has come at the last moment, and goes on.
    store->add(members, 1);
  }
  return own;
}

}  // namespace r2ccl_torch
