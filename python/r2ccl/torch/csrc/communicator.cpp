#include "communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

namespace r2ccl_torch {

namespace {

// The longest deadline that the settings of the library allow: 11 days.
constexpr int64_t kLongestMs = 1'000'000'000;

// The default of the setting R2CCL_BOOTSTRAP_TIMEOUT.
constexpr Milliseconds kBootstrapTimeout{120'000};

// How messages of status() begin.
constexpr char kQuestion[] = "ccl_comm_get_async_error: ";

std::atomic<uint64_t> forks{0};

ccl_config_t config(Milliseconds timeout, const std::string& name) {
  ccl_config_t config = CCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.timeout_ms = timeout_ms(timeout);
  config.comm_name = name.c_str();
  return config;
}

}  // namespace

uint64_t fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
  TORCH_CHECK(registered == 0, "pthread_atfork failed");
  return forks.load(std::memory_order_relaxed);
}

void throw_ended() {
  C10_THROW_ERROR(DistBackendError, "r2ccl: the process group was aborted or destroyed");
}

Milliseconds bootstrap_timeout() {
  const char* text = std::getenv("R2CCL_BOOTSTRAP_TIMEOUT");
  const double seconds = text == nullptr ? 0.0 : std::atof(text);
  // What is not allowed the library refuses when it makes a communicator.
  const double allowed_ms = std::min(seconds * 1e3, static_cast<double>(kLongestMs));
  return seconds > 0.0 ? Milliseconds(static_cast<int64_t>(allowed_ms)) : kBootstrapTimeout;
}

int timeout_ms(Milliseconds timeout) {
  return static_cast<int>(std::clamp<int64_t>(timeout.count(), 1, kLongestMs));
}

std::chrono::steady_clock::time_point deadline_after(Milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min(timeout, Milliseconds(kLongestMs));
}

Communicator::Communicator(
    const ccl_unique_id_t& id, int rank, int size, Milliseconds timeout, const std::string& name)
    : timeout_ms_(timeout_ms(timeout)) {
  const auto wanted = config(timeout, name);
  ccl_comm_t comm = nullptr;
  check(library().comm_init_rank_config(&comm, size, id, rank, &wanted),
        "creation of a communicator");
  comm_ = comm;
}

Communicator::~Communicator() {
  abort();
}

void Communicator::set_timeout(Milliseconds timeout) {
  const int wanted = timeout_ms(timeout);
  if (wanted != timeout_ms_) {
    use([wanted](ccl_comm_t comm) {
      check(library().comm_set_timeout(comm, wanted), "set_timeout");
    });
    timeout_ms_ = wanted;
  }
}

ccl_comm_t Communicator::get() const {
  const ccl_comm_t comm = comm_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(comm == nullptr)) {
    throw_ended();
  }
  return comm;
}

std::optional<Communicator::Failure> Communicator::asked() const {
  const ccl_comm_t comm = comm_.load(std::memory_order_acquire);
  Failure failure;
  if (comm == nullptr || library().comm_get_async_error(comm, &failure.status) != CCL_SUCCESS) {
    return std::nullopt;
  }
  if (failure.status == CCL_SUCCESS || failure.status == CCL_IN_PROGRESS) {
    return Failure();
  }
  failure.reason = library().get_last_error(comm);
  // What asked for it says nothing.
  if (failure.reason.rfind(kQuestion, 0) == 0) {
    failure.reason.erase(0, std::strlen(kQuestion));
  }
  if (failure.reason.empty()) {
    failure.reason = library().get_error_string(failure.status);
  }
  return failure;
}

Communicator::Failure Communicator::known() const {
  if (const auto told = asked()) {
    return *told;
  }
  const std::lock_guard<std::mutex> lock(noted_mutex_);
  return noted_;
}

void Communicator::note(Failure failure) {
  const std::lock_guard<std::mutex> lock(noted_mutex_);
  if (noted_.status == CCL_SUCCESS) {
    noted_ = std::move(failure);
  }
}

ccl_result_t Communicator::status() const {
  return known().status;
}

std::string Communicator::failure() const {
  const auto [status, reason] = known();
  return status == CCL_TIMEOUT ? kTimeoutPassed + reason : reason;
}

namespace {

// All of a list, which may grow between the question for its size and that for the list: `ask` writes as many as there is room
// for, and tells how many there are.
template <typename T, typename Ask>
std::vector<T> all_of(const Ask& ask) {
  std::vector<T> list;
  size_t there = 0;
  do {
    list.resize(there);
    ask(list, &there);
  } while (there > list.size());
  list.resize(there);
  return list;
}

}  // namespace

std::vector<ccl_rail_health_t> Communicator::health() const {
  return all_of<ccl_rail_health_t>([&](std::vector<ccl_rail_health_t>& rails, size_t* there) {
    use([&](ccl_comm_t comm) {
      check(library().comm_get_health(comm, rails.data(), sizeof(ccl_rail_health_t), rails.size(),
                                      there),
            "health");
    });
  });
}

std::optional<std::vector<int>> Communicator::asked_who_is_lost() const {
  const ccl_comm_t comm = comm_.load(std::memory_order_acquire);
  bool knows = comm != nullptr;
  auto lost = all_of<int>([&](std::vector<int>& ranks, size_t* there) {
    knows = knows && library().comm_get_lost_ranks(comm, ranks.data(), ranks.size(), there) ==
                         CCL_SUCCESS;
    *there = knows ? *there : 0;
  });
  return knows ? std::optional(std::move(lost)) : std::nullopt;
}

std::vector<int> Communicator::lost_ranks() const {
  if (auto lost = asked_who_is_lost()) {
    return *std::move(lost);
  }
  const std::lock_guard<std::mutex> lock(noted_mutex_);
  return noted_lost_;
}

void Communicator::note_who_is_lost() {
  if (auto lost = asked_who_is_lost()) {
    const std::lock_guard<std::mutex> lock(noted_mutex_);
    noted_lost_ = *std::move(lost);
  }
}

void Communicator::finish() {
  if (const ccl_comm_t comm = taken({})) {
    const ccl_result_t result = library().comm_destroy(comm);
    if (result != CCL_SUCCESS) {
      note({result, library().get_last_error(nullptr)});
    }
    check(result, "destruction of a communicator");
  }
}

void Communicator::abort(ccl_result_t why) {
  if (const ccl_comm_t comm = taken({why, "the process group was aborted"})) {
    library().comm_abort(comm);
  }
}

ccl_comm_t Communicator::taken(Failure failure) {
  // In a forked child the library has neither its threads nor a sound state of its locks.
  if (generation_ != fork_generation() || comm_.load(std::memory_order_acquire) == nullptr) {
    return nullptr;
  }
  // Before it goes: then nobody finds that it failed but not why.
  note_who_is_lost();
  note(asked().value_or(Failure()));
  note(std::move(failure));
  return comm_.exchange(nullptr);
}

}  // namespace r2ccl_torch
