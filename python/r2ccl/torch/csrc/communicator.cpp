#include "communicator.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include <c10/util/Exception.h>

namespace r2ccl_torch {

namespace {

// The longest deadline that the settings of the library allow: 11 days.
constexpr int64_t kLongestMs = 1'000'000'000;

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

int timeout_ms(Milliseconds timeout) {
  return static_cast<int>(std::clamp<int64_t>(timeout.count(), 1, kLongestMs));
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
    check(library().comm_set_timeout(get(), wanted), "set_timeout");
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

ccl_result_t Communicator::status() const {
  const ccl_comm_t comm = comm_.load(std::memory_order_acquire);
  ccl_result_t result = CCL_SUCCESS;
  if (comm != nullptr && library().comm_get_async_error(comm, &result) != CCL_SUCCESS) {
    return CCL_SUCCESS;
  }
  return result == CCL_IN_PROGRESS ? CCL_SUCCESS : result;
}

std::string Communicator::failure() const {
  const ccl_comm_t comm = comm_.load(std::memory_order_acquire);
  if (comm == nullptr) {
    return "the process group was aborted or destroyed";
  }
  const ccl_result_t result = status();
  if (result == CCL_SUCCESS) {
    return "";
  }
  std::string message = library().get_last_error(comm);
  // What asked for it says nothing.
  if (message.rfind(kQuestion, 0) == 0) {
    message.erase(0, std::strlen(kQuestion));
  }
  if (message.empty()) {
    message = library().get_error_string(result);
  }
  return result == CCL_TIMEOUT ? kTimeoutPassed + message : message;
}

std::vector<ccl_rail_health_t> Communicator::health() const {
  std::vector<ccl_rail_health_t> rails;
  size_t there = 0;
  // Rails may be added between the two questions.
  do {
    rails.resize(there);
    check(library().comm_get_health(get(), rails.data(), sizeof(ccl_rail_health_t), rails.size(),
                                    &there),
          "health");
  } while (there > rails.size());
  rails.resize(there);
  return rails;
}

void Communicator::finish() {
  const ccl_comm_t comm = comm_.exchange(nullptr);
  if (comm != nullptr && generation_ == fork_generation()) {
    check(library().comm_destroy(comm), "destruction of a communicator");
  }
}

void Communicator::abort() {
  const ccl_comm_t comm = comm_.exchange(nullptr);
  if (comm != nullptr && generation_ == fork_generation()) {
    library().comm_abort(comm);
  }
}

}  // namespace r2ccl_torch
