// Point-to-point messages of a group, with tags.
//
// Collectives and messages do not wait for each other, nor do messages of different pairs: every
// direction between two ranks has a communicator of its own, made when it is first used, and a
// thread at each end. A message is an envelope with its tag and size, in which small payloads
// travel along, and then the payload. A receiver takes messages from the communicator only while it
// waits for one from that rank. If it waits for another tag, it keeps what arrives, up to a limit;
// beyond that the sender waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tensors.hpp"
#include "work.hpp"

namespace r2ccl_torch {

// Threads share it with the group, since a thread may be in a call that cannot be ended.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  static constexpr int kAnySource = -1;

  // `store` is for this mailbox alone. `group_failure` tells why the group has failed, or "".
  Mailbox(c10::intrusive_ptr<c10d::Store> store,
          int rank,
          int size,
          std::string name,
          std::function<std::string()> group_failure);

  // Starts to send a plain tensor; `operation` is settled when it may be used again.
  void send(const c10::intrusive_ptr<Operation>& operation, at::Tensor tensor, int peer, int tag);

  // Starts to receive into a tensor from `peer`, or from any rank. Messages of one rank with one
  // tag are received in the order in which they were sent.
  void receive(const c10::intrusive_ptr<Operation>& operation,
               const at::Tensor& tensor,
               int peer,
               int tag);

  // Whoever waits with `operation` has given up.
  void forget(const c10::intrusive_ptr<Operation>& operation);

  // Waits until `deadline` for what is being sent, unless it is closed.
  void flush(std::chrono::steady_clock::time_point deadline);

  // Fails what is under way and ends the threads.
  void close();

 private:
  struct Envelope;
  struct Outgoing {
    c10::intrusive_ptr<Operation> operation;
    at::Tensor tensor;
    int tag;
  };
  struct Incoming {
    c10::intrusive_ptr<Operation> operation;
    Staged staged;
    size_t bytes;
    int peer;
    int tag;
  };
  struct Kept {
    int peer;
    int tag;
    std::vector<uint8_t> payload;
  };
  // One direction to or from a peer.
  struct Channel {
    int peer;
    bool outgoing;
    std::unique_ptr<Communicator> communicator;
    std::deque<Outgoing> jobs;
    // Something is being sent, or failed and not all have been told.
    bool busy = false;
    bool failed = false;
    bool done = false;
    std::thread thread;
  };

  // All that follow with a lock want mutex_ to be held.
  using Lock = std::unique_lock<std::mutex>;

  void check_open(const Lock& lock) const;
  Channel& channel(int peer, bool outgoing, const Lock& lock);
  void serve(Channel& channel);
  void connect(Channel& channel);
  ccl_unique_id_t exchange_id(const Channel& channel);

  void serve_outgoing(Channel& channel);
  void transmit(Channel& channel, const Outgoing& job);

  void serve_incoming(Channel& channel);
  void read(Channel& channel, void* target, size_t bytes);
  void take_delivery(Channel& channel, const Envelope& envelope);
  Kept read_payload(Channel& channel, const Envelope& envelope);
  void hand_over(Channel& channel, const Envelope& envelope, Incoming incoming);
  void keep(Channel& channel, const Envelope& envelope);
  void give_room(size_t bytes, const Lock& lock);
  static void accept(const Incoming& incoming, const Kept& kept);
  bool is_awaited(int peer, const Lock& lock) const;
  std::optional<Incoming> take_posted(int peer, int tag, const Lock& lock);
  std::optional<Kept> take_kept(int peer, int tag, const Lock& lock);

  // Fails all that depends on the channel, now and until the mailbox is closed.
  void mourn(Channel& channel, const std::exception_ptr& failure);
  // Tells whether there was something. Lets go of the lock meanwhile.
  bool fail_dependents(Channel& channel, const std::exception_ptr& failure, Lock& lock);
  static std::string about(const Channel& channel, int64_t tag);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string name_;
  const std::function<std::string()> group_failure_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::map<int, Channel> outgoing_;
  std::map<int, Channel> incoming_;
  std::list<Incoming> posted_;
  std::list<Kept> kept_;
  // With those that are being read.
  size_t kept_bytes_ = 0;
};

}  // namespace r2ccl_torch
