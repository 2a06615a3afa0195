#include "device_work.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

namespace r2ccl_torch {

namespace {

// Between two looks at an event, at first and at most.
constexpr auto kLeastPause = std::chrono::microseconds(20);
constexpr auto kMostPause = std::chrono::microseconds(1000);

std::exception_ptr failed(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

DeviceWork::DeviceWork(int rank,
                       const Operation::Description& description,
                       std::vector<at::Tensor> outputs,
                       std::function<std::string()> failure)
    : Expiring(rank, description.type, description.title, description.inputs),
      title_(description.title),
      sequence_(description.sequence),
      timeout_(description.timeout),
      outputs_(std::move(outputs)),
      failure_(std::move(failure)) {
}

void DeviceWork::start(const c10::Stream& stream) {
  stream_ = stream;
  auto end = std::make_shared<c10::Event>(stream.device_type());
  end->record(stream);
  end_ = std::move(end);
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{stream.device()});
  // It is about streams, which wait for each other by themselves.
  future_->markCompleted(c10::IValue(outputs_));
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
}

void DeviceWork::wait_in_host(c10::intrusive_ptr<Operation> other) {
  waits_in_host_ = true;
  other_ = std::move(other);
}

DeviceWork::State DeviceWork::look() const {
  std::lock_guard<std::mutex> lock(const_cast<std::mutex&>(mutex_));
  if (state_ != State::UnderWay) {
    return state_;
  }
  // The event first: who fails lets streams go on only after that is known.
  const bool is_over = !claimed_ && end_ && has_happened(*end_);
  const auto failure = failure_();
  if (!failure.empty()) {
    reason_ = failed(c10::str(title_, ": ", failure));
    state_ = State::Failed;
  } else if (is_over) {
    state_ = State::Done;
  }
  return state_;
}

void DeviceWork::throw_failure() const {
  if (look() == State::Failed) {
    std::rethrow_exception(exception());
  }
}

// Of a device that has failed nobody can tell, so the deadline comes.
bool DeviceWork::is_settled() {
  try {
    return look() != State::UnderWay;
  } catch (const std::exception&) {
    return false;
  }
}

bool DeviceWork::claim() {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_free = state_ == State::UnderWay && !claimed_;
  claimed_ = true;
  return is_free;
}

News DeviceWork::expire(const std::string& what) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::UnderWay) {
    state_ = State::Failed;
    reason_ = timed_out(what, timeout_);
  }
  // Futures of devices have ended when the call was made.
  return {};
}

bool DeviceWork::isCompleted() {
  return look() != State::UnderWay && (!other_ || other_->isCompleted());
}

bool DeviceWork::isSuccess() const {
  return look() == State::Done && (!other_ || other_->isSuccess());
}

std::exception_ptr DeviceWork::exception() const {
  std::lock_guard<std::mutex> lock(const_cast<std::mutex&>(mutex_));
  return reason_;
}

void DeviceWork::synchronize() {
  TORCH_CHECK(end_ != nullptr, title_,
              ": it is part of a coalesced block: wait for the work of the block");
  const auto current = current_stream(stream_->device());
  if (current != *stream_) {
    end_->block(current);
  }
}

void DeviceWork::blockCurrentStream() {
  synchronize();
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  throw_failure();
  synchronize();
  if (!waits_in_host_ && timeout == kNoTimeout) {
    return true;
  }
  const auto deadline = deadline_after(timeout);
  if (other_) {
    other_->wait(timeout);
  }
  auto pause = kLeastPause;
  while (look() == State::UnderWay) {
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() > deadline) {
      std::rethrow_exception(timed_out(title_, timeout));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kMostPause);
  }
  throw_failure();
  return true;
}

void DeviceWork::abort() {
  TORCH_CHECK(false, "r2ccl cannot abort a single operation: abort its process group");
}

std::vector<at::Tensor> DeviceWork::result() {
  return outputs_;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  TORCH_CHECK(future_ != nullptr, title_,
              ": it is part of a coalesced block: ask the work of the block");
  if (look() != State::Failed) {
    return future_;
  }
  auto failed_one =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  failed_one->setError(exception());
  return failed_one;
}

uint64_t DeviceWork::getSequencenumber() const {
  return sequence_;
}

std::chrono::milliseconds DeviceWork::getTimeout() const {
  return timeout_;
}

}  // namespace r2ccl_torch
