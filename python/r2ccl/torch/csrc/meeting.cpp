#include "meeting.hpp"

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

#include "store.hpp"

namespace r2ccl_torch {

namespace {

std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

// Makes the id, and lets the others know if that fails.
void share_new_id(c10d::Store& store) {
  ccl_unique_id_t id;
  try {
    check(library().get_unique_id(&id), "creation of a process group");
  } catch (const std::exception& failure) {
    store.set("failure", bytes_of_text(failure.what()));
    store.set("id", std::vector<uint8_t>{});
    throw;
  }
  store.set("id", bytes_of_text(std::string(id.internal, sizeof(id.internal))));
}

}  // namespace

ccl_unique_id_t shared_id(c10d::Store& store, int rank, Milliseconds timeout) {
  if (rank == 0) {
    share_new_id(store);
  }
  const auto limit = std::min(timeout, bootstrap_timeout());
  if (!await([&] { return store.check({"id"}); }, limit)) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("r2ccl: rank 0 has come, and then said nothing for ", limit.count(), " ms"));
  }
  ccl_unique_id_t id;
  const auto bytes = store.get("id");
  if (bytes.empty()) {
    C10_THROW_ERROR(DistBackendError, c10::str("r2ccl: rank 0: ", store.get_to_str("failure")));
  }
  TORCH_CHECK(bytes.size() == sizeof(id.internal), "r2ccl: the store has a broken id of the group");
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  return id;
}

}  // namespace r2ccl_torch
