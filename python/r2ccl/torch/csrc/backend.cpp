// The life of a process group, and what all its calls have in common.
#include "backend.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pybind.h>

#include "store.hpp"

namespace r2ccl_torch {

namespace {

// How long the end of a group waits for calls that nobody has waited for.
constexpr auto kGrace = std::chrono::seconds(10);
// By how much the others outwait rank 0 in a monitored barrier, whose answer says who is missing.
constexpr auto kAnswerTime = std::chrono::seconds(30);

std::vector<uint8_t> as_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

// Makes the id, and lets the others know if that fails.
void share_new_id(c10d::Store& store) {
  ccl_unique_id_t id;
  try {
    check(library().get_unique_id(&id), "creation of a process group");
  } catch (const std::exception& failure) {
    store.set("failure", as_bytes(failure.what()));
    store.set("id", std::vector<uint8_t>{});
    throw;
  }
  store.set("id", as_bytes(std::string(id.internal, sizeof(id.internal))));
}

ccl_unique_id_t shared_id(c10d::Store& store, int rank, int size, Milliseconds timeout) {
  meet(store, "members", size, timeout);
  if (rank == 0) {
    share_new_id(store);
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

c10::intrusive_ptr<c10d::Backend::Options> options_for(Milliseconds timeout,
                                                       const std::string& name,
                                                       std::vector<uint64_t> global_ranks) {
  auto options = c10::make_intrusive<c10d::Backend::Options>("r2ccl", timeout);
  options->group_name = name;
  options->global_ranks_in_group = std::move(global_ranks);
  return options;
}

}  // namespace

R2cclBackend::R2cclBackend(const c10::intrusive_ptr<c10d::Store>& store,
                           int rank,
                           int size,
                           Milliseconds timeout,
                           const std::string& name,
                           std::vector<uint64_t> global_ranks)
    : R2cclBackend(std::make_shared<Communicator>(
                       shared_id(*store, rank, size, timeout), rank, size, timeout, name),
                   store,
                   rank,
                   size,
                   options_for(timeout, name, std::move(global_ranks))) {
}

R2cclBackend::R2cclBackend(std::shared_ptr<Communicator> communicator,
                           const c10::intrusive_ptr<c10d::Store>& store,
                           int rank,
                           int size,
                           c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      store_(store->clone()),
      communicator_(std::move(communicator)),
      own_timeout_(options_->timeout),
      queue_(std::make_unique<CallQueue>()),
      sentinel_(std::make_unique<Sentinel>()) {
  init();
}

R2cclBackend::~R2cclBackend() {
  if (generation_ != fork_generation()) {
    // The threads behind these are those of the parent, and so may the locks be.
    queue_.release();
    sentinel_.release();
    new std::shared_ptr<Mailbox>(std::move(mailbox_));
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
  if (ended_.exchange(true)) {
    return;
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::min<Milliseconds>(kGrace, options_->timeout);
  const bool done = queue_->close(deadline);
  if (!done) {
    TORCH_WARN("r2ccl: the process group is destroyed while a call is under way; it is aborted");
    communicator_->abort();
  }
  std::shared_ptr<Mailbox> mailbox;
  {
    std::lock_guard<std::mutex> lock(mailbox_mutex_);
    mailbox = mailbox_;
  }
  if (mailbox) {
    mailbox->flush(deadline);
    mailbox->close();
  }
  queue_->join();
  sentinel_->stop();
  try {
    communicator_->finish();
  } catch (const c10::Error&) {
    // It had failed, which every call on it has reported.
  }
}

void R2cclBackend::abort() {
  check_process();
  communicator_->abort();
  shutdown();
}

void R2cclBackend::check_process() const {
  TORCH_CHECK(
      generation_ == fork_generation(),
      "r2ccl: this process was forked from the one that made the process group, and cannot use it; "
      "start processes with the method \"spawn\", or make a group of its own");
}

c10d::ErrorType R2cclBackend::getError() {
  switch (communicator_->status()) {
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
  return communicator_->health();
}

// ---- Calls --------------------------------------------------------------------------------------

Milliseconds R2cclBackend::timeout_of(std::chrono::milliseconds wanted) const {
  return wanted == c10d::kUnsetTimeout || wanted == kNoTimeout ? options_->timeout : wanted;
}

Work R2cclBackend::launch(const Call& call, Tensors outputs, Body body) {
  check_process();
  const auto timeout = timeout_of(call.timeout);
  const Operation::Description description{call.type, call.title, ++sequence_, timeout,
                                           call.inputs};
  auto operation = c10::make_intrusive<Operation>(rank_, description, std::move(outputs));
  // Shorter deadlines than that of the group count from now, not from the turn of the call.
  const bool is_short = timeout < own_timeout_;
  if (is_short) {
    sentinel_->watch(operation, timeout, call.title,
                     [communicator = communicator_] { communicator->abort(); });
  }
  // A caller that goes on meanwhile may do what the others wait for: only those who wait run it
  // here.
  const bool here = !call.async && !coalescing_ && !is_short;
  queue_->run(
      operation,
      [communicator = communicator_, limit = std::max(timeout, own_timeout_),
       body = std::move(body)] {
        communicator->set_timeout(limit);
        body(communicator->get());
      },
      here);
  return post(std::move(operation));
}

Work R2cclBackend::post(c10::intrusive_ptr<Operation> operation) {
  if (coalescing_) {
    coalesced_.push_back(operation);
  }
  return operation;
}

void R2cclBackend::startCoalescing() {
  check_process();
  TORCH_CHECK(!coalescing_, "r2ccl: coalescing has begun already");
  coalescing_ = true;
}

// Everything was started when it was called; what is left is one handle for all of it.
Work R2cclBackend::endCoalescing() {
  check_process();
  TORCH_CHECK(coalescing_, "r2ccl: coalescing has not begun");
  coalescing_ = false;
  return Operation::of_all(rank_, std::exchange(coalesced_, {}));
}

// ---- Messages -----------------------------------------------------------------------------------

Mailbox& R2cclBackend::mailbox() {
  std::lock_guard<std::mutex> lock(mailbox_mutex_);
  TORCH_CHECK(!ended_, "r2ccl: the process group was aborted or destroyed");
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

Work R2cclBackend::send(Tensors& tensors, int peer, int tag) {
  check_process();
  auto& tensor = only(tensors, "send");
  check_peer(peer, "send");
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

Work R2cclBackend::recv(Tensors& tensors, int peer, int tag) {
  check_peer(peer, "recv");
  return start_receive(tensors, peer, tag, c10d::OpType::RECV);
}

Work R2cclBackend::recvAnysource(Tensors& tensors, int tag) {
  return start_receive(tensors, Mailbox::kAnySource, tag, c10d::OpType::RECVANYSOURCE);
}

Work R2cclBackend::start_receive(Tensors& tensors, int peer, int tag, c10d::OpType type) {
  check_process();
  const auto& tensor = only(tensors, "recv");
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

// ---- Barriers and splits ------------------------------------------------------------------------

void R2cclBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_process();
  const auto prefix = c10::str("monitored_barrier/", barriers_++, "/");
  // None at all is a timeout too, unlike elsewhere.
  const auto timeout =
      options.timeout == c10d::kUnsetTimeout ? options_->timeout : Milliseconds(options.timeout);
  const auto here = [&](int rank) { return c10::str(prefix, "rank/", rank); };
  const auto verdict = prefix + "verdict";
  store_->set(here(rank_), std::vector<uint8_t>{1});
  if (rank_ != 0) {
    const bool told = await([&] { return store_->check({verdict}); }, timeout + kAnswerTime);
    const auto text = told ? store_->get_to_str(verdict) : "r2ccl: it did not answer";
    TORCH_CHECK(text.empty(), "Rank ", rank_, " successfully reached monitoredBarrier, but ",
                "received errors while waiting for send/recv from rank 0: ", text);
    return;
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_; ++rank) {
    missing.push_back(rank);
  }
  await(
      [&] {
        const auto came = [&](int rank) { return store_->check({here(rank)}); };
        missing.erase(std::remove_if(missing.begin(), missing.end(), came), missing.end());
        return missing.empty();
      },
      timeout);
  if (!wait_all_ranks && !missing.empty()) {
    missing.resize(1);
  }
  const auto text = verdict_on(missing, timeout);
  store_->set(verdict, as_bytes(text));
  TORCH_CHECK(text.empty(), text);
}

c10::intrusive_ptr<c10d::Backend> R2cclBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::vector<int>& ranks,
                                                      const c10::intrusive_ptr<Options>& options) {
  check_process();
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  const bool is_member = place != ranks.end();
  const int key = static_cast<int>(place - ranks.begin());
  const int color = is_member ? *std::min_element(ranks.begin(), ranks.end()) : -1;
  const auto part_options = options ? options : options_->clone();
  // It outlives this function if the call does.
  const auto part = std::make_shared<std::shared_ptr<Communicator>>();
  meet(*store_, c10::str("split/", splits_++), size_, options_->timeout);
  const Call call{c10d::OpType::UNKNOWN, "r2ccl:split", false, kNoTimeout};
  launch(call, {}, [=, communicator = communicator_](ccl_comm_t) {
    *part = communicator->split(color, key, part_options->timeout, part_options->group_name);
  })->wait();
  if (!is_member) {
    return nullptr;
  }
  return c10::intrusive_ptr<c10d::Backend>(
      c10::intrusive_ptr<R2cclBackend>::reclaim(new R2cclBackend(
          std::move(*part), store, key, static_cast<int>(ranks.size()), part_options)));
}

}  // namespace r2ccl_torch
