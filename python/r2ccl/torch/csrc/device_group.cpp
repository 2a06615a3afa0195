#include "device_group.hpp"

#include <algorithm>
#include <thread>

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "meeting.hpp"
#include "store.hpp"

namespace r2ccl_torch {

namespace {

constexpr auto kLookPause = std::chrono::milliseconds(1);
// What is done takes leave at once; this bounds the wait for pinned memory to be freed.
constexpr Milliseconds kFarewellTime{10'000};

// Messages of a coalesced block, between ccl_group_start and ccl_group_end.
class Together {
 public:
  Together() {
    check(library().group_start(), "coalesced calls");
  }
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;
  // What failed has said so, and so would the end.
  ~Together() {
    if (is_open_) {
      library().group_end();
    }
  }

  void end() {
    is_open_ = false;
    check(library().group_end(), "coalesced calls");
  }

 private:
  bool is_open_ = true;
};

void transmit(const Target& target, const Staged& memory, size_t bytes, int peer, bool is_send) {
  if (is_send) {
    check(target.send(memory.data(), bytes, CCL_UINT8, peer), "send");
  } else {
    check(target.recv(memory.data(), bytes, CCL_UINT8, peer), "receive");
  }
}

Staged staged(const DeviceGroup::Message& message) {
  return message.is_send ? Staged::input(message.tensor) : Staged::output(message.tensor);
}

}  // namespace

DeviceGroup::DeviceGroup(c10::intrusive_ptr<c10d::Store> store,
                         int rank,
                         int size,
                         Milliseconds timeout,
                         std::string name)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      name_(std::move(name)) {
}

// ---- Communicators ------------------------------------------------------------------------------

void DeviceGroup::connect(c10::Device device) {
  const std::lock_guard<std::mutex> calls(calls_mutex_);
  connected(device);
}

std::optional<c10::Device> DeviceGroup::device() const {
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  return collectives_ ? std::optional(collectives_->side.device()) : std::nullopt;
}

void DeviceGroup::check_device(c10::Device device) {
  TORCH_CHECK_VALUE(!device_ || *device_ == device, "r2ccl: a tensor is on ", device,
                    ", but this group makes its calls on ", *device_,
                    ": a rank has one device in a group");
  device_ = device;
}

DeviceGroup::Line& DeviceGroup::connected(c10::Device device) {
  check_device(device);
  if (collectives_) {
    return *collectives_;
  }
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("collectives", store_);
  const auto met = meet(prefixed, size_, timeout_, nullptr, [this] { return is_aborted(); });
  const auto id = shared_id(*met, rank_, timeout_);
  auto communicator =
      std::make_shared<Communicator>(id, rank_, size_, timeout_, name_ + ", on devices");
  return keep({std::move(communicator), side_stream(device), nullptr}, std::nullopt);
}

// Both directions are made at the first message in either, in the same order at both ends: two
// ranks that both send first do not wait for each other.
DeviceGroup::Line& DeviceGroup::line_to(int peer, bool is_send, c10::Device device) {
  check_device(device);
  const int low = std::min(rank_, peer);
  const int high = std::max(rank_, peer);
  const auto advice = [low, high] {
    return c10::str(" to the first message on devices between ranks ", low, " and ", high,
                    ", for which both have to come: where ranks wait for each other in a ring, "
                    "use torch.distributed.batch_isend_irecv");
  };
  for (const bool upwards : {true, false}) {
    const bool sends = upwards == (rank_ == low);
    if (messages_.count({peer, sends}) > 0) {
      continue;
    }
    const auto [from, to] = upwards ? std::pair(low, high) : std::pair(high, low);
    const auto prefixed =
        c10::make_intrusive<c10d::PrefixStore>(c10::str("messages/", from, "/", to), store_);
    const int place = rank_ == low ? 0 : 1;
    const auto met = meet(prefixed, 2, timeout_, advice, [this] { return is_aborted(); });
    const auto id = shared_id(*met, place, timeout_);
    const auto name = c10::str(name_, ", messages on devices from rank ", from, " to rank ", to);
    auto communicator = std::make_shared<Communicator>(id, place, 2, timeout_, name);
    keep({std::move(communicator), side_stream(device), nullptr}, std::pair(peer, sends));
  }
  return *messages_.at({peer, is_send});
}

bool DeviceGroup::is_aborted() const {
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  return aborted_;
}

DeviceGroup::Line& DeviceGroup::keep(Line line, std::optional<std::pair<int, bool>> peer) {
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  if (aborted_) {
    line.communicator->abort();
    throw_ended();
  }
  auto& place = peer ? messages_[*peer] : collectives_;
  place = std::make_unique<Line>(std::move(line));
  return *place;
}

std::vector<DeviceGroup::Line*> DeviceGroup::lines() {
  std::vector<Line*> all;
  if (collectives_) {
    all.push_back(collectives_.get());
  }
  for (const auto& entry : messages_) {
    all.push_back(entry.second.get());
  }
  return all;
}

// ---- Calls --------------------------------------------------------------------------------------

c10::intrusive_ptr<DeviceWork> DeviceGroup::run(const Operation::Description& description,
                                                c10::Device device,
                                                bool here,
                                                const Tensors& tensors,
                                                Tensors outputs,
                                                const Body& body) {
  check_not_capturing(device, description.title);
  const std::lock_guard<std::mutex> calls(calls_mutex_);
  return run_on(connected(device), description, here, tensors, std::move(outputs), body);
}

c10::intrusive_ptr<DeviceWork> DeviceGroup::run_message(const Operation::Description& description,
                                                        bool here,
                                                        const Message& message) {
  const auto device = message.tensor.device();
  check_not_capturing(device, description.title);
  const std::lock_guard<std::mutex> calls(calls_mutex_);
  auto& line = line_to(message.peer, message.is_send, device);
  const int other_end = rank_ < message.peer ? 1 : 0;
  return run_on(line, description, here, {message.tensor}, {message.tensor},
                [&](const Target& target) {
                  const auto memory = staged(message);
                  transmit(target, memory, message.tensor.nbytes(), other_end, message.is_send);
                  if (!message.is_send) {
                    memory.publish();
                  }
                });
}

c10::intrusive_ptr<DeviceWork> DeviceGroup::run_block(const Operation::Description& description,
                                                      c10::Device device,
                                                      const std::vector<Message>& messages,
                                                      Tensors outputs) {
  check_not_capturing(device, description.title);
  Tensors tensors;
  for (const auto& message : messages) {
    tensors.push_back(message.tensor);
  }
  const std::lock_guard<std::mutex> calls(calls_mutex_);
  const auto body = [&](const Target& target) {
    std::vector<Staged> memory;
    for (const auto& message : messages) {
      memory.push_back(staged(message));
    }
    Together together;
    for (size_t i = 0; i < messages.size(); ++i) {
      transmit(target, memory[i], messages[i].tensor.nbytes(), messages[i].peer,
               messages[i].is_send);
    }
    together.end();
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!messages[i].is_send) {
        memory[i].publish();
      }
    }
  };
  return run_on(connected(device), description, false, tensors, std::move(outputs), body);
}

c10::intrusive_ptr<DeviceWork> DeviceGroup::run_on(Line& line,
                                                   const Operation::Description& description,
                                                   bool here,
                                                   const Tensors& tensors,
                                                   Tensors outputs,
                                                   const Body& body) {
  const auto caller = current_stream(line.side.device());
  const auto stream = here ? caller : line.side;
  auto work = c10::make_intrusive<DeviceWork>(
      rank_, description, std::move(outputs),
      [communicator = line.communicator] { return communicator->failure(); });
  if (!here) {
    c10::Event come(stream.device_type());
    come.record(caller);
    come.block(stream);
    keep_until(stream, tensors);
  }
  // Copies of tensors that are not contiguous go where the call goes, and memory for them comes
  // from there.
  const c10::StreamGuard guard(stream);
  line.communicator->set_timeout(std::max(description.timeout, timeout_));
  line.communicator->use(
      [&](ccl_comm_t comm) { body(Target::device(comm, native_handle(stream))); });
  work->start(stream);
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  line.last = work->end();
  return work;
}

// ---- Ends ---------------------------------------------------------------------------------------

void DeviceGroup::abort(ccl_result_t why) {
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  aborted_ = true;
  for (auto* line : lines()) {
    line->communicator->abort(why);
  }
}

// Of a device that has failed nobody can tell: nothing is awaited there any more.
bool DeviceGroup::is_over(const Line& line) {
  if (!line.last || !line.communicator->failure().empty()) {
    return true;
  }
  try {
    return has_happened(*line.last);
  } catch (const c10::Error&) {
    return true;
  }
}

bool DeviceGroup::finish(std::chrono::steady_clock::time_point deadline) {
  const auto is_done = [this] {
    const std::lock_guard<std::mutex> lock(lines_mutex_);
    const auto all = lines();
    return std::all_of(all.begin(), all.end(), [](const Line* line) { return is_over(*line); });
  };
  while (!is_done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      abort();
      return false;
    }
    std::this_thread::sleep_for(kLookPause);
  }
  std::vector<std::shared_ptr<Communicator>> communicators;
  {
    const std::lock_guard<std::mutex> lock(lines_mutex_);
    aborted_ = true;
    for (auto* line : lines()) {
      communicators.push_back(line->communicator);
    }
  }
  for (const auto& communicator : communicators) {
    try {
      communicator->set_timeout(kFarewellTime);
      communicator->finish();
    } catch (const c10::Error&) {
      // It had failed, which every call on it has reported.
    }
  }
  return true;
}

std::string DeviceGroup::failure() const {
  const auto there = communicator();
  return there ? there->failure() : "";
}

ccl_result_t DeviceGroup::status() const {
  const auto there = communicator();
  return there ? there->status() : CCL_SUCCESS;
}

std::set<int> DeviceGroup::lost_ranks() const {
  std::set<int> lost;
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  if (collectives_) {
    const auto ranks = collectives_->communicator->lost_ranks();
    lost.insert(ranks.begin(), ranks.end());
  }
  for (const auto& [place, line] : messages_) {
    if (!line->communicator->lost_ranks().empty()) {
      lost.insert(place.first);
    }
  }
  return lost;
}

std::shared_ptr<Communicator> DeviceGroup::communicator() const {
  const std::lock_guard<std::mutex> lock(lines_mutex_);
  return collectives_ ? collectives_->communicator : nullptr;
}

}  // namespace r2ccl_torch
