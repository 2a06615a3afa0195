#include "store.hpp"

#include <algorithm>
#include <thread>

#include <c10/util/Exception.h>

namespace r2ccl_torch {

bool await(const std::function<bool()>& condition, Milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (auto pause = kFirstPause; !condition(); pause = std::min(pause * 2, kLongestPause)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void meet(c10d::Store& store, const std::string& key, int size, Milliseconds timeout) {
  const auto everybody = key + "/all";
  if (store.add(key, 1) == size) {
    store.set(everybody, std::vector<uint8_t>{1});
  }
  if (!await([&] { return store.check({everybody}); }, timeout)) {
    const auto came = store.add(key, 0);
    C10_THROW_ERROR(DistBackendError, c10::str("r2ccl: only ", came, " of ", size,
                                               " ranks have come within ", timeout.count(), " ms"));
  }
}

}  // namespace r2ccl_torch
