// The life of a process group, and what all its calls have in common.
#include "backend.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "meeting.hpp"
#include "memory.hpp"
#include "store.hpp"

namespace r2ccl_torch {

namespace {

// How long the end of a group waits for calls that nobody has waited for, and for callbacks on
// calls that were late.
constexpr auto kGrace = std::chrono::seconds(10);

c10::intrusive_ptr<c10d::Backend::Options> options_for(Milliseconds timeout,
                                                       const std::string& name,
                                                       std::vector<uint64_t> global_ranks) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("r2ccl", timeout);
  options->group_name = name;
  options->global_ranks_in_group = std::move(global_ranks);
  return options;
}

// Of this thread, and never of another one, unlike the ids of the system, which gives those of
// threads that have ended to new ones. It ends with the thread.
const std::shared_ptr<const void>& token_of_thread() {
  static thread_local const std::shared_ptr<const void> token = std::make_shared<const char>();
  return token;
}

}  // namespace

R2cclBackend::R2cclBackend(const c10::intrusive_ptr<c10d::Store>& store,
                           int rank,
                           int size,
                           Milliseconds timeout,
                           const std::string& name,
                           std::vector<uint64_t> global_ranks)
    : Backend(rank, size),
      options_(options_for(timeout, name, std::move(global_ranks))),
      store_(store),
      reunion_(c10::make_intrusive<c10d::PrefixStore>("shrink", store_), rank, size),
      communicator_(std::make_shared<Communicator>(
          shared_id(*store_, rank, timeout), rank, size, timeout, name)),
      own_timeout_(timeout),
      queue_(std::make_shared<CallQueue>()),
      sentinel_(std::make_shared<Sentinel>()) {
  init();
}

R2cclBackend::~R2cclBackend() {
  if (generation_ != fork_generation()) {
    // The threads behind these are those of the parent, and so may the locks be.
    new std::shared_ptr<CallQueue>(std::move(queue_));
    new std::shared_ptr<Sentinel>(std::move(sentinel_));
    new std::shared_ptr<Mailbox>(std::move(mailbox_));
    new std::shared_ptr<DeviceGroup>(std::move(device_group_));
    return;
  }
  try {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      // Callbacks of what is still under way want it.
      const pybind11::gil_scoped_release released;
      shutdown();
    } else {
      shutdown();
    }
  } catch (const std::exception& failure) {
    TORCH_WARN("r2ccl: the end of a process group: ", failure.what());
  }
}

void R2cclBackend::shutdown() {
  check_process();
  if (!ended_.exchange(true)) {
    finish();
  }
}

void R2cclBackend::abort() {
  check_process();
  // First: who waits in the store looks for it, and nothing more is made that is not ended here.
  const bool had_ended = ended_.exchange(true);
  communicator_->abort();
  if (const auto devices = existing_device_group()) {
    devices->abort();
  }
  // Else the end of the group would wait for what is being sent.
  if (const auto mailbox = existing_mailbox()) {
    mailbox->close();
  }
  if (!had_ended) {
    finish();
  }
}

void R2cclBackend::finish() {
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<Milliseconds>(kGrace, options_->timeout);
  const auto devices = existing_device_group();
  bool done = queue_->close(deadline);
  if (!done) {
    communicator_->abort();
  }
  done = (!devices || devices->finish(deadline)) && done;
  if (const auto mailbox = existing_mailbox()) {
    mailbox->flush(deadline);
    mailbox->close();
  }
  queue_->join();
  sentinel_->stop(std::chrono::steady_clock::now() + kGrace);
  try {
    communicator_->finish();
  } catch (const c10::Error&) {
    // It had failed, which every call on it has reported.
  }
  // Last: where warnings are errors, it throws.
  if (!done) {
    TORCH_WARN("r2ccl: the process group is destroyed while a call is under way; it is aborted");
  }
}

void R2cclBackend::check_process() const {
  TORCH_CHECK(
      generation_ == fork_generation(),
      "r2ccl: this process was forked from the one that made the process group, and cannot use it; "
      "start processes with the method \"spawn\", or make a group of its own");
}

at::Tensor R2cclBackend::allocateTensor(long elements, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), "r2ccl: no memory of ", options.device(),
                    " is allocated here, only that of the host");
  TORCH_CHECK_VALUE(elements >= 0, "r2ccl: a tensor of ", elements, " elements");
  return SharedMemory::tensor(elements, options);
}

c10d::ErrorType R2cclBackend::getError() {
  const auto devices = existing_device_group();
  const auto status = communicator_->status();
  switch (status == CCL_SUCCESS && devices ? devices->status() : status) {
    case CCL_SUCCESS:
      return c10d::ErrorType::SUCCESS;
    case CCL_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case CCL_REMOTE_ERROR:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

std::vector<ccl_rail_health_t> R2cclBackend::health() {
  check_process();
  const auto devices = existing_device_group();
  const auto of_devices = devices ? devices->communicator() : nullptr;
  return of_devices ? of_devices->health() : communicator_->health();
}

std::set<int> R2cclBackend::lost_ranks() const {
  check_process();
  const auto of_host = communicator_->lost_ranks();
  std::set<int> gone(of_host.begin(), of_host.end());
  if (const auto devices = existing_device_group()) {
    gone.merge(devices->lost_ranks());
  }
  return reunion_.lost(gone);
}

// ---- Calls --------------------------------------------------------------------------------------

Milliseconds R2cclBackend::timeout_of(std::chrono::milliseconds wanted) const {
  return wanted == c10d::kUnsetTimeout || wanted == kNoTimeout ? options_->timeout : wanted;
}

std::function<void()> R2cclBackend::aborting() const {
  return [communicator = communicator_, devices = existing_device_group()] {
    communicator->abort(CCL_TIMEOUT);
    if (devices) {
      devices->abort(CCL_TIMEOUT);
    }
  };
}

Work R2cclBackend::launch(const Call& call, Tensors outputs, Body body) {
  check_process();
  const auto device = common_device({&call.inputs, &outputs}, call.title);
  if (call.has_result) {
    check_apart(outputs, call.title);
  }
  return device.is_cpu() ? launch_on_host(call, std::move(outputs), std::move(body))
                         : launch_on_device(call, device, std::move(outputs), body);
}

Work R2cclBackend::launch_on_host(const Call& call, Tensors outputs, Body body) {
  const auto timeout = timeout_of(call.timeout);
  const Operation::Description description{call.type, call.title, ++sequence_, timeout,
                                           call.inputs};
  auto operation = c10::make_intrusive<Operation>(rank_, description, std::move(outputs));
  // Shorter deadlines than that of the group count from now, not from the turn of the call.
  const bool is_short = timeout < own_timeout_;
  if (is_short) {
    sentinel_->watch(operation, timeout, call.title, aborting());
  }
  // A caller that goes on meanwhile may do what the others wait for: only those who wait run it
  // here.
  const bool here = !call.async && block() == nullptr && !is_short;
  queue_->run(
      operation,
      [communicator = communicator_, limit = std::max(timeout, own_timeout_),
       body = std::move(body)] {
        communicator->set_timeout(limit);
        communicator->use([&body](ccl_comm_t comm) { body(Target::host(comm)); });
      },
      here);
  return post(std::move(operation));
}

Work R2cclBackend::post(c10::intrusive_ptr<Operation> operation) {
  if (auto* collecting = block()) {
    collecting->operations.push_back(operation);
  }
  return operation;
}

R2cclBackend::Block* R2cclBackend::block() {
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  const auto place = blocks_.find(token_of_thread());
  return place == blocks_.end() ? nullptr : &place->second;
}

// PyTorch does not end a block that an exception leaves: the next one of the thread takes its place,
// or, if the thread has ended, the next one of any thread ends it.
void R2cclBackend::startCoalescing() {
  check_process();
  // Tensors end without the lock.
  std::vector<Block> left;
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  for (auto place = blocks_.begin(); place != blocks_.end();) {
    const auto here = place++;
    if (here->first.expired()) {
      left.push_back(std::move(blocks_.extract(here).mapped()));
    }
  }
  left.push_back(std::exchange(blocks_[token_of_thread()], Block()));
}

R2cclBackend::Block R2cclBackend::take_block() {
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  auto taken = blocks_.extract(token_of_thread());
  TORCH_CHECK(!taken.empty(), "r2ccl: coalescing has not begun in this thread");
  return std::move(taken.mapped());
}

// All but messages on devices was started when it was called; what is left is one handle for all of
// it.
Work R2cclBackend::endCoalescing() {
  check_process();
  auto block = take_block();
  if (block.refusal) {
    std::rethrow_exception(block.refusal);
  }
  if (!block.device) {
    return Operation::of_all(rank_, block.operations);
  }
  TORCH_CHECK_VALUE(block.operations.empty(),
                    "r2ccl: tensors of the host and of a device in one coalesced block");
  const Operation::Description description{c10d::OpType::COALESCED, "r2ccl:coalesced", ++sequence_,
                                           options_->timeout};
  return with_deadline(device_group().run_block(description, *block.device, block.messages,
                                                std::move(block.outputs)),
                       description);
}

// ---- Devices ------------------------------------------------------------------------------------

std::shared_ptr<DeviceGroup> R2cclBackend::existing_device_group() const {
  std::lock_guard<std::mutex> lock(device_group_mutex_);
  return device_group_;
}

DeviceGroup& R2cclBackend::device_group() {
  std::lock_guard<std::mutex> lock(device_group_mutex_);
  if (ended_) {
    throw_ended();
  }
  if (!device_group_) {
    device_group_ = std::make_shared<DeviceGroup>(
        c10::make_intrusive<c10d::PrefixStore>("devices", store_->clone()), rank_, size_,
        options_->timeout, options_->group_name);
  }
  return *device_group_;
}

void R2cclBackend::eagerConnectSingleDevice(at::Device device) {
  check_process();
  if (!device.is_cpu()) {
    check_kind(device, "init_process_group");
    device_group().connect(device);
  }
}

Work R2cclBackend::with_deadline(c10::intrusive_ptr<DeviceWork> work,
                                 const Operation::Description& description) {
  const auto timeout = description.timeout;
  if (timeout < existing_device_group()->timeout()) {
    // Streams wait for it even if nobody else has it any more, who could be told. They go on when
    // the communicator of the device is aborted: nobody may take it for done then.
    sentinel_->watch(
        work, timeout, description.title,
        [communicator = communicator_] { communicator->abort(CCL_TIMEOUT); },
        [work, timeout, title = description.title, devices = existing_device_group()] {
          devices->abort(CCL_TIMEOUT);
          TORCH_WARN(title, " did not finish within ", timeout.count(),
                     " ms: the process group is aborted");
        });
  }
  return work;
}

Work R2cclBackend::launch_on_device(const Call& call,
                                    c10::Device device,
                                    Tensors outputs,
                                    const Body& body) {
  const Operation::Description description{call.type, call.title, ++sequence_,
                                           timeout_of(call.timeout), call.inputs};
  Tensors tensors(call.inputs);
  tensors.insert(tensors.end(), outputs.begin(), outputs.end());
  auto* const collecting = block();
  if (collecting != nullptr) {
    collecting->device = device;
    collecting->outputs.insert(collecting->outputs.end(), outputs.begin(), outputs.end());
  }
  const bool here = !call.async && collecting == nullptr;
  return with_deadline(
      device_group().run(description, device, here, tensors, std::move(outputs), body),
      description);
}

// ---- Messages -----------------------------------------------------------------------------------

std::shared_ptr<Mailbox> R2cclBackend::existing_mailbox() {
  std::lock_guard<std::mutex> lock(mailbox_mutex_);
  return mailbox_;
}

Mailbox& R2cclBackend::mailbox() {
  std::lock_guard<std::mutex> lock(mailbox_mutex_);
  if (ended_) {
    throw_ended();
  }
  if (!mailbox_) {
    mailbox_ = std::make_shared<Mailbox>(
        store_->clone(), rank_, size_, options_->group_name,
        [communicator = communicator_] { return communicator->failure(); });
  }
  return *mailbox_;
}

void R2cclBackend::check_peer(int peer, const char* call) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_ && peer != rank_, "r2ccl ", call, ": ", peer,
                    " is not another rank of a group of ", size_);
}

void R2cclBackend::check_root(int64_t root, const char* call) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "r2ccl ", call, ": root ", root,
                    " is not a rank of a group of ", size_);
}

// In the order of calls: there are no tags, and nobody looks who sends first.
Work R2cclBackend::send_or_receive_on_device(Tensors& tensors, int peer, int tag, bool is_send) {
  const char* call = is_send ? "send" : "recv";
  TORCH_CHECK_VALUE(
      tag == 0, "r2ccl ", call, ": tag ", tag,
      ": messages on devices have no tags, they come in the order in which they are sent");
  const DeviceGroup::Message message{is_send, tensors[0], peer};
  const Operation::Description description{is_send ? c10d::OpType::SEND : c10d::OpType::RECV,
                                           is_send ? "r2ccl:send" : "r2ccl:recv", 0,
                                           options_->timeout, tensors};
  auto* const collecting = block();
  if (collecting == nullptr) {
    return with_deadline(device_group().run_message(description, false, message), description);
  }
  collecting->device = tensors[0].device();
  collecting->messages.push_back(message);
  if (!is_send) {
    collecting->outputs.push_back(tensors[0]);
  }
  return c10::make_intrusive<DeviceWork>(rank_, description, tensors, [] { return ""; });
}

// Thrown in a block, it would leave the block open: PyTorch would begin no collectives of the group
// any more, and say nothing. What follows in the block is not begun.
Work R2cclBackend::message(c10d::OpType type, const std::function<Work()>& begin) {
  check_process();
  auto* const collecting = block();
  if (collecting == nullptr) {
    return begin();
  }
  if (!collecting->refusal) {
    try {
      return begin();
    } catch (...) {
      collecting->refusal = std::current_exception();
    }
  }
  const Operation::Description description{type, "r2ccl:refused"};
  auto refused = c10::make_intrusive<Operation>(rank_, description, Tensors{});
  refused->settle(collecting->refusal);
  return refused;
}

Work R2cclBackend::send(Tensors& tensors, int peer, int tag) {
  return message(c10d::OpType::SEND, [&] { return start_send(tensors, peer, tag); });
}

Work R2cclBackend::recv(Tensors& tensors, int peer, int tag) {
  constexpr auto type = c10d::OpType::RECV;
  return message(type, [&] {
    check_peer(peer, "recv");
    return start_receive(tensors, peer, tag, type);
  });
}

Work R2cclBackend::recvAnysource(Tensors& tensors, int tag) {
  constexpr auto type = c10d::OpType::RECVANYSOURCE;
  return message(type, [&] { return start_receive(tensors, Mailbox::kAnySource, tag, type); });
}

Work R2cclBackend::start_send(Tensors& tensors, int peer, int tag) {
  auto& tensor = only(tensors, "send");
  check_peer(peer, "send");
  if (!tensor.is_cpu()) {
    return send_or_receive_on_device(tensors, peer, tag, true);
  }
  const Operation::Description description{c10d::OpType::SEND, "r2ccl:send", 0, options_->timeout,
                                           tensors};
  auto operation = c10::make_intrusive<Operation>(rank_, description, tensors);
  sentinel_->watch(operation, options_->timeout,
                   c10::str("send to rank ", peer, " with tag ", tag));
  mailbox().send(operation,
                 is_plain(tensor) ? tensor : tensor.contiguous().resolve_conj().resolve_neg(), peer,
                 tag);
  return post(std::move(operation));
}

Work R2cclBackend::start_receive(Tensors& tensors, int peer, int tag, c10d::OpType type) {
  const auto& tensor = only(tensors, "recv");
  check_apart(tensors, "r2ccl:recv");
  if (!tensor.is_cpu()) {
    TORCH_CHECK_VALUE(peer != Mailbox::kAnySource,
                      "r2ccl recv: messages on devices come from a rank that is named");
    return send_or_receive_on_device(tensors, peer, tag, false);
  }
  const char* title = peer == Mailbox::kAnySource ? "r2ccl:recvAnySource" : "r2ccl:recv";
  const Operation::Description description{type, title, 0, options_->timeout, tensors};
  auto operation = c10::make_intrusive<Operation>(rank_, description, tensors);
  auto& box = mailbox();
  const auto from = peer == Mailbox::kAnySource ? std::string("any rank") : c10::str("rank ", peer);
  sentinel_->watch(operation, options_->timeout, c10::str("receive from ", from, " with tag ", tag),
                   [box = std::weak_ptr<Mailbox>(box.shared_from_this()),
                    waiting = c10::weak_intrusive_ptr<Operation>(operation)] {
                     const auto mailbox = box.lock();
                     const auto given_up = waiting.lock();
                     if (mailbox && given_up) {
                       mailbox->forget(given_up);
                     }
                   });
  box.receive(operation, tensor, peer, tag);
  return post(std::move(operation));
}

// ---- Splits -------------------------------------------------------------------------------------

// The members meet through the store; others need not come. PyTorch may ask once for each kind of
// device.
c10::intrusive_ptr<c10d::Backend> R2cclBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  check_process();
  if (ended_) {
    throw_ended();
  }
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
    return nullptr;
  }
  const auto& wish = options ? *options : *options_;
  const auto turn = c10::str("split/", splits_[wish.group_name]++);
  const auto place = c10::make_intrusive<c10d::PrefixStore>(turn, store->clone());
  return part(meet(place, static_cast<int>(ranks.size()), wish.timeout), ranks, options);
}

// PyTorch destroys this group afterwards: what is going on is waited for, or aborted, there.
c10::intrusive_ptr<c10d::Backend> R2cclBackend::shrink(const std::vector<int64_t>& excluded,
                                                       int flags,
                                                       const c10::intrusive_ptr<Options>& options) {
  check_process();
  TORCH_CHECK_VALUE(flags == CCL_SHRINK_DEFAULT || flags == CCL_SHRINK_ABORT,
                    "r2ccl shrink: flags are ", flags);
  const std::set<int> absent(excluded.begin(), excluded.end());
  TORCH_CHECK_VALUE(absent.count(rank_) == 0, "r2ccl shrink: rank ", rank_,
                    " cannot exclude itself: only ranks that go on take part");
  TORCH_CHECK_VALUE(absent.empty() || (*absent.begin() >= 0 && *absent.rbegin() < size_),
                    "r2ccl shrink: ", c10::ArrayRef<int64_t>(excluded),
                    " are not all ranks of a group of ", size_);
  const auto objections = reunion_.announce(absent);
  if (flags == CCL_SHRINK_ABORT) {
    abort();
  }
  if (!objections.empty()) {
    C10_THROW_ERROR(DistBackendError, "r2ccl shrink" + objections);
  }
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; rank++) {
    if (absent.count(rank) == 0) {
      ranks.push_back(rank);
    }
  }
  const auto met = reunion_.meet(absent, std::min(options_->timeout, bootstrap_timeout()));
  try {
    c10::intrusive_ptr<c10d::Backend> shrunk;
    reunion_.while_renewing(absent, [&] { shrunk = part(met, ranks, options); });
    return shrunk;
  } catch (const c10::DistBackendError& failure) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("r2ccl shrink: of the new group, whose ranks have been ",
                             c10::Join(", ", ranks), ": ", failure.what_without_backtrace()));
  }
}

c10::intrusive_ptr<c10d::Backend> R2cclBackend::part(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& options) const {
  const auto& wish = options ? *options : *options_;
  const auto& name = wish.group_name.empty() ? options_->group_name : wish.group_name;
  std::vector<uint64_t> global_ranks;
  for (const int rank : ranks) {
    global_ranks.push_back(options_->global_ranks_in_group.at(rank));
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  return c10::make_intrusive<R2cclBackend>(store, static_cast<int>(place),
                                           static_cast<int>(ranks.size()), wish.timeout,
                                           name, std::move(global_ranks));
}

}  // namespace r2ccl_torch
