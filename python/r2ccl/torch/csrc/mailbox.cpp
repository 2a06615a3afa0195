#include "mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include "store.hpp"

namespace r2ccl_torch {

namespace {

// Payloads up to this many bytes travel in the envelope.
constexpr size_t kInEnvelope = 240;
// Messages with tags that nobody waits for yet take at most so much memory.
constexpr size_t kMostKeptBytes = size_t{1} << 28;
// Deadlines are those of operations; between messages a channel is silent for as long as it likes.
constexpr Milliseconds kForever{1'000'000'000};
// How long close() waits for idle threads, and then for the others; one that is in the creation of
// a communicator cannot be ended.
constexpr auto kGoodbye = std::chrono::milliseconds(100);
constexpr auto kFarewell = std::chrono::seconds(2);

constexpr int kSender = 0;
constexpr int kReceiver = 1;

std::vector<uint8_t> bytes_of(const ccl_unique_id_t& id) {
  const auto* start = reinterpret_cast<const uint8_t*>(id.internal);
  return {start, start + sizeof(id.internal)};
}

std::exception_ptr backend_error(const std::string& message) {
  try {
    C10_THROW_ERROR(DistBackendError, message);
  } catch (...) {
    return std::current_exception();
  }
}

// The failure, with what was being done in front of it.
std::exception_ptr named(const std::string& what, const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return backend_error(c10::str(what, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return backend_error(c10::str(what, ": ", error.what()));
  }
}

}  // namespace

struct Mailbox::Envelope {
  int64_t tag;
  uint64_t bytes;
  uint8_t payload[kInEnvelope];
};

Mailbox::Mailbox(c10::intrusive_ptr<c10d::Store> store,
                 int rank,
                 int size,
                 std::string name,
                 std::function<std::string()> group_failure)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      group_failure_(std::move(group_failure)) {
}

void Mailbox::send(const c10::intrusive_ptr<Operation>& operation,
                   at::Tensor tensor,
                   int peer,
                   int tag) {
  Lock lock(mutex_);
  check_open(lock);
  channel(peer, true, lock).jobs.push_back({operation, std::move(tensor), tag});
  changed_.notify_all();
}

void Mailbox::receive(const c10::intrusive_ptr<Operation>& operation,
                      const at::Tensor& tensor,
                      int peer,
                      int tag) {
  Lock lock(mutex_);
  check_open(lock);
  Incoming incoming{operation, Staged::output(tensor), tensor.nbytes(), peer, tag};
  if (const auto kept = take_kept(peer, tag, lock)) {
    lock.unlock();
    return accept(incoming, *kept);
  }
  posted_.push_back(std::move(incoming));
  for (int source = 0; source < size_; ++source) {
    if (source != rank_ && (peer == source || peer == kAnySource)) {
      channel(source, false, lock);
    }
  }
  changed_.notify_all();
}

void Mailbox::forget(const c10::intrusive_ptr<Operation>& operation) {
  Lock lock(mutex_);
  posted_.remove_if([&](const Incoming& incoming) { return incoming.operation == operation; });
}

void Mailbox::flush(std::chrono::steady_clock::time_point deadline) {
  Lock lock(mutex_);
  const auto is_sent = [](const auto& entry) {
    return entry.second.jobs.empty() && !entry.second.busy;
  };
  changed_.wait_until(lock, deadline, [&] {
    return closed_ || std::all_of(outgoing_.begin(), outgoing_.end(), is_sent);
  });
}

void Mailbox::close() {
  Lock lock(mutex_);
  closed_ = true;
  const auto abandoned = std::exchange(posted_, {});
  const auto each = [this](const auto& act) {
    for (auto* channels : {&outgoing_, &incoming_}) {
      for (auto& entry : *channels) {
        act(entry.second);
      }
    }
  };
  const auto ended = [&each] {
    bool all = true;
    each([&all](const Channel& channel) { all = all && channel.done; });
    return all;
  };
  changed_.notify_all();
  // Idle channels say good-bye; the others are inside a call.
  changed_.wait_for(lock, kGoodbye, ended);
  each([](Channel& channel) {
    if (channel.communicator) {
      channel.communicator->abort();
    }
  });
  changed_.wait_for(lock, kFarewell, ended);
  each([](Channel& channel) {
    if (channel.thread.joinable()) {
      channel.done ? channel.thread.join() : channel.thread.detach();
    }
  });
  lock.unlock();
  for (const auto& incoming : abandoned) {
    incoming.operation->run(throw_ended);
  }
}

void Mailbox::check_open(const Lock&) const {
  if (closed_) {
    throw_ended();
  }
}

Mailbox::Channel& Mailbox::channel(int peer, bool outgoing, const Lock&) {
  auto& channels = outgoing ? outgoing_ : incoming_;
  const auto [place, is_new] = channels.try_emplace(peer);
  Channel& channel = place->second;
  if (is_new) {
    channel.peer = peer;
    channel.outgoing = outgoing;
    channel.thread = std::thread([self = shared_from_this(), &channel] { self->serve(channel); });
  }
  return channel;
}

void Mailbox::serve(Channel& channel) {
  c10::setThreadName("r2ccl-messages");
  try {
    connect(channel);
    channel.outgoing ? serve_outgoing(channel) : serve_incoming(channel);
    channel.communicator->finish();
  } catch (...) {
    mourn(channel, std::current_exception());
  }
  const Lock lock(mutex_);
  channel.done = true;
  changed_.notify_all();
}

void Mailbox::connect(Channel& channel) {
  const auto id = exchange_id(channel);
  const auto [from, to] =
      channel.outgoing ? std::pair(rank_, channel.peer) : std::pair(channel.peer, rank_);
  const auto name = c10::str(name_, ", messages from rank ", from, " to rank ", to);
  auto communicator =
      std::make_unique<Communicator>(id, channel.outgoing ? kSender : kReceiver, 2, kForever, name);
  const Lock lock(mutex_);
  check_open(lock);
  channel.communicator = std::move(communicator);
}

// Both ends say that they have come before either waits for the other inside the library, whose
// patience is shorter than that of a training script.
ccl_unique_id_t Mailbox::exchange_id(const Channel& channel) {
  const auto [from, to] =
      channel.outgoing ? std::pair(rank_, channel.peer) : std::pair(channel.peer, rank_);
  const auto sender_key = c10::str("messages/", from, "/", to, "/id");
  const auto receiver_key = c10::str("messages/", from, "/", to, "/ready");
  ccl_unique_id_t id;
  if (channel.outgoing) {
    check(library().get_unique_id(&id), "send");
    store_->set(sender_key, bytes_of(id));
  } else {
    store_->set(receiver_key, std::vector<uint8_t>{1});
  }
  const auto& awaited = channel.outgoing ? receiver_key : sender_key;
  for (auto pause = kFirstPause; !store_->check({awaited});
       pause = std::min(pause * 2, kLongestPause)) {
    const auto failure = group_failure_();
    if (!failure.empty()) {
      C10_THROW_ERROR(DistBackendError, "r2ccl: " + failure);
    }
    Lock lock(mutex_);
    if (changed_.wait_for(lock, pause, [this] { return closed_; })) {
      throw_ended();
    }
  }
  if (!channel.outgoing) {
    const auto bytes = store_->get(sender_key);
    TORCH_CHECK(bytes.size() == sizeof(id.internal), "r2ccl: the store has a broken id at ",
                sender_key);
    std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  }
  return id;
}

// ---- Sending ------------------------------------------------------------------------------------

void Mailbox::serve_outgoing(Channel& channel) {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !channel.jobs.empty(); });
    if (channel.jobs.empty()) {
      return;
    }
    Outgoing job = std::move(channel.jobs.front());
    channel.jobs.pop_front();
    channel.busy = true;
    lock.unlock();
    try {
      // Whoever gave up sends nothing, if it is not too late.
      if (!job.operation->is_settled()) {
        transmit(channel, job);
        job.operation->settle(nullptr);
      }
    } catch (...) {
      lock.lock();
      // It fails with those behind it.
      channel.jobs.push_front(std::move(job));
      throw;
    }
    lock.lock();
    channel.busy = false;
    changed_.notify_all();
  }
}

void Mailbox::transmit(Channel& channel, const Outgoing& job) {
  const size_t bytes = job.tensor.nbytes();
  const void* payload = job.tensor.const_data_ptr();
  Envelope envelope{job.tag, bytes, {}};
  if (bytes > 0 && bytes <= kInEnvelope) {
    std::memcpy(envelope.payload, payload, bytes);
  }
  channel.communicator->use([&](ccl_comm_t comm) {
    check(library().send(&envelope, sizeof(envelope), CCL_UINT8, kReceiver, comm), "send");
    if (bytes > kInEnvelope) {
      check(library().send(payload, bytes, CCL_UINT8, kReceiver, comm), "send");
    }
  });
}

// ---- Receiving ----------------------------------------------------------------------------------

void Mailbox::serve_incoming(Channel& channel) {
  while (true) {
    {
      Lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || is_awaited(channel.peer, lock); });
      if (closed_) {
        return;
      }
    }
    Envelope envelope;
    read(channel, &envelope, sizeof(envelope));
    take_delivery(channel, envelope);
  }
}

void Mailbox::read(Channel& channel, void* target, size_t bytes) {
  channel.communicator->use([&](ccl_comm_t comm) {
    check(library().recv(target, bytes, CCL_UINT8, kSender, comm), "receive");
  });
}

// The message whose envelope has come goes to whoever waits for it; if nobody does, it stays with
// the sender for as long as nobody waits for another one behind it.
void Mailbox::take_delivery(Channel& channel, const Envelope& envelope) {
  const int tag = static_cast<int>(envelope.tag);
  Lock lock(mutex_);
  while (!closed_) {
    if (auto incoming = take_posted(channel.peer, tag, lock)) {
      lock.unlock();
      return hand_over(channel, envelope, std::move(*incoming));
    }
    if (is_awaited(channel.peer, lock) && envelope.bytes <= kMostKeptBytes - kept_bytes_) {
      // Before it is read: other channels want room too.
      kept_bytes_ += envelope.bytes;
      lock.unlock();
      return keep(channel, envelope);
    }
    changed_.wait(lock);
  }
}

Mailbox::Kept Mailbox::read_payload(Channel& channel, const Envelope& envelope) {
  Kept kept{channel.peer, static_cast<int>(envelope.tag), std::vector<uint8_t>(envelope.bytes)};
  if (envelope.bytes > kInEnvelope) {
    read(channel, kept.payload.data(), envelope.bytes);
  } else if (envelope.bytes > 0) {
    std::memcpy(kept.payload.data(), envelope.payload, envelope.bytes);
  }
  return kept;
}

// Large payloads are received straight into the tensor.
void Mailbox::hand_over(Channel& channel, const Envelope& envelope, Incoming incoming) {
  try {
    if (envelope.bytes <= kInEnvelope || envelope.bytes != incoming.bytes) {
      return accept(incoming, read_payload(channel, envelope));
    }
    read(channel, incoming.staged.data(), envelope.bytes);
  } catch (...) {
    // It fails with the others that wait for this rank.
    incoming.peer = channel.peer;
    const Lock lock(mutex_);
    posted_.push_front(std::move(incoming));
    throw;
  }
  incoming.operation->set_source(channel.peer);
  incoming.operation->run([&] { incoming.staged.publish(); });
}

// Keeps a message for which there is room, unless somebody has begun to wait for it meanwhile.
void Mailbox::keep(Channel& channel, const Envelope& envelope) {
  Kept kept;
  try {
    kept = read_payload(channel, envelope);
  } catch (...) {
    give_room(envelope.bytes, Lock(mutex_));
    throw;
  }
  Lock lock(mutex_);
  if (const auto incoming = take_posted(kept.peer, kept.tag, lock)) {
    give_room(envelope.bytes, lock);
    lock.unlock();
    return accept(*incoming, kept);
  }
  kept_.push_back(std::move(kept));
}

// Others may wait for it.
void Mailbox::give_room(size_t bytes, const Lock&) {
  kept_bytes_ -= bytes;
  changed_.notify_all();
}

void Mailbox::accept(const Incoming& incoming, const Kept& kept) {
  incoming.operation->set_source(kept.peer);
  incoming.operation->run([&] {
    TORCH_CHECK_VALUE(kept.payload.size() == incoming.bytes, "r2ccl: rank ", kept.peer, " sent ",
                      kept.payload.size(), " bytes with tag ", kept.tag,
                      ", but the tensor to receive them has ", incoming.bytes);
    if (!kept.payload.empty()) {
      std::memcpy(incoming.staged.data(), kept.payload.data(), incoming.bytes);
    }
    incoming.staged.publish();
  });
}

bool Mailbox::is_awaited(int peer, const Lock&) const {
  return std::any_of(posted_.begin(), posted_.end(), [peer](const Incoming& incoming) {
    return incoming.peer == peer || incoming.peer == kAnySource;
  });
}

std::optional<Mailbox::Incoming> Mailbox::take_posted(int peer, int tag, const Lock&) {
  const auto place = std::find_if(posted_.begin(), posted_.end(), [&](const Incoming& incoming) {
    return incoming.tag == tag && (incoming.peer == peer || incoming.peer == kAnySource);
  });
  if (place == posted_.end()) {
    return std::nullopt;
  }
  std::optional<Incoming> taken(std::move(*place));
  posted_.erase(place);
  return taken;
}

std::optional<Mailbox::Kept> Mailbox::take_kept(int peer, int tag, const Lock& lock) {
  const auto place = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.tag == tag && (peer == kept.peer || peer == kAnySource);
  });
  if (place == kept_.end()) {
    return std::nullopt;
  }
  give_room(place->payload.size(), lock);
  std::optional<Kept> taken(std::move(*place));
  kept_.erase(place);
  return taken;
}

// ---- Failures -----------------------------------------------------------------------------------

void Mailbox::mourn(Channel& channel, const std::exception_ptr& failure) {
  Lock lock(mutex_);
  channel.failed = true;
  while (true) {
    const bool found_some = fail_dependents(channel, failure, lock);
    if (closed_) {
      return;
    }
    if (found_some) {
      continue;
    }
    if (is_awaited(kAnySource, lock)) {
      // Whether the group has failed is not announced.
      changed_.wait_for(lock, kLongestPause);
    } else {
      changed_.wait(lock);
    }
  }
}

// A message from any rank may still come, unless all channels or the group have failed.
bool Mailbox::fail_dependents(Channel& channel, const std::exception_ptr& failure, Lock& lock) {
  std::vector<std::pair<c10::intrusive_ptr<Operation>, int64_t>> failed;
  for (const auto& job : channel.jobs) {
    failed.emplace_back(job.operation, job.tag);
  }
  channel.jobs.clear();
  const bool hopeless = std::all_of(incoming_.begin(), incoming_.end(),
                                    [](const auto& entry) { return entry.second.failed; });
  const bool from_any_too = closed_ || hopeless || !group_failure_().empty();
  posted_.remove_if([&](const Incoming& incoming) {
    const bool depends = !channel.outgoing && (incoming.peer == channel.peer ||
                                               (incoming.peer == kAnySource && from_any_too));
    if (depends) {
      failed.emplace_back(incoming.operation, incoming.tag);
    }
    return depends;
  });
  lock.unlock();
  // All of them before anybody is told: a callback may wait for another one.
  News news;
  for (const auto& [operation, tag] : failed) {
    auto more = operation->conclude(named(about(channel, tag), failure));
    std::move(more.begin(), more.end(), std::back_inserter(news));
  }
  tell_all(news);
  lock.lock();
  if (!failed.empty()) {
    channel.busy = false;
    changed_.notify_all();
  }
  return !failed.empty();
}

std::string Mailbox::about(const Channel& channel, int64_t tag) {
  return c10::str("r2ccl ", channel.outgoing ? "send to rank " : "receive from rank ",
                  channel.peer, " with tag ", tag);
}

}  // namespace r2ccl_torch
