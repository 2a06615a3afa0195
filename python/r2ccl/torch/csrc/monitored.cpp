// A barrier through the store, so that rank 0 can name everybody who does not come.
#include <algorithm>

#include <c10/util/Exception.h>

#include "backend.hpp"
#include "store.hpp"

namespace r2ccl_torch {

namespace {

// By how much the others outwait rank 0 in a monitored barrier, whose answer says who is missing.
constexpr auto kAnswerTime = std::chrono::seconds(30);

std::vector<uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// In the words of PyTorch, which programs look for in their logs.
std::string verdict_on(const std::vector<int>& missing, Milliseconds timeout) {
  if (missing.empty()) {
    return "";
  }
  if (timeout.count() <= 0) {
    return "r2ccl: Rank 0 timed out in monitoredBarrier after 0 ms";
  }
  return c10::str("r2ccl: ", missing.size() == 1 ? "Rank " : "Ranks ", c10::Join(", ", missing),
                  " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

std::string verdict_on_gone(const std::string& rank) {
  return c10::str("r2ccl: rank ", rank, " has aborted or destroyed the process group");
}

// Those but rank 0 who have not come within `timeout`, or before rank 0 `gives_up`.
std::vector<int> awaited_in_vain(int size,
                                 const std::function<bool(int)>& came,
                                 Milliseconds timeout,
                                 const GivesUp& gives_up) {
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) {
    missing.push_back(rank);
  }
  const auto all_came = [&] {
    missing.erase(std::remove_if(missing.begin(), missing.end(), came), missing.end());
    return missing.empty();
  };
  await(all_came, timeout, gives_up);
  return missing;
}

}  // namespace

void R2cclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_process();
  if (ended_) {
    throw_ended();
  }
  const auto prefix = c10::str("monitored_barrier/", barriers_++, "/");
  // None at all is a timeout too, unlike elsewhere.
  const auto timeout =
      options.timeout == c10d::kUnsetTimeout ? options_->timeout : Milliseconds(options.timeout);
  const auto here = [&](int rank) { return c10::str(prefix, "rank/", rank); };
  const auto verdict = prefix + "verdict";
  const auto heard = prefix + "heard";
  const auto gone = prefix + "gone";
  // A job may make many: whoever is the last to hear that all have come leaves nothing in the
  // store.
  const auto leave = [&] {
    if (store_->add(heard, 1) == size_) {
      store_->deleteKey(verdict);
      store_->deleteKey(heard);
      store_->deleteKey(gone);
    }
  };
  const auto has_ended = [this] { return ended_.load(); };
  const auto is_one_gone = [&] { return store_->check({gone}); };
  const auto gives_up = [&] { return has_ended() || is_one_gone(); };
  store_->set(here(rank_), std::vector<uint8_t>{1});
  if (rank_ != 0) {
    const auto is_told = [&] { return store_->check({verdict}); };
    // Who hears at the same time that all have come and that one is gone has come through.
    const bool told = await(is_told, timeout + kAnswerTime, gives_up) || is_told();
    if (!told && has_ended()) {
      // It has come, so rank 0 would not miss it.
      store_->set(gone, as_bytes(std::to_string(rank_)));
      leave();
      throw_ended();
    }
    std::string text = "r2ccl: it did not answer";
    if (told) {
      text = store_->get_to_str(verdict);
    } else if (is_one_gone()) {
      // Rank 0 may be the last to come.
      text = verdict_on_gone(store_->get_to_str(gone));
      leave();
    }
    if (text.empty()) {
      leave();
    }
    TORCH_CHECK(text.empty(), "Rank ", rank_, " successfully reached monitoredBarrier, but ",
                "received errors while waiting for send/recv from rank 0: ", text);
    return;
  }
  auto missing = awaited_in_vain(
      size_, [&](int rank) { return store_->check({here(rank)}); }, timeout, gives_up);
  if (!missing.empty() && has_ended()) {
    store_->set(verdict, as_bytes(verdict_on_gone("0")));
    throw_ended();
  }
  if (!wait_all_ranks && !missing.empty()) {
    missing.resize(1);
  }
  const auto text = is_one_gone() ? verdict_on_gone(store_->get_to_str(gone))
                                  : verdict_on(missing, timeout);
  store_->set(verdict, as_bytes(text));
  TORCH_CHECK(text.empty(), text);
  for (int rank = 0; rank < size_; ++rank) {
    store_->deleteKey(here(rank));
  }
  leave();
}

}  // namespace r2ccl_torch
