// How the ranks of a group that are left come together without the others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace r2ccl_torch {

// Who waits renews a word in the store, which says whom it goes on without: so those who wait in vain
// can tell who is there, and wants what, from who has died meanwhile or has never come.
class Reunion {
 public:
  // `store` is for this object alone.
  Reunion(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // Tells the others that this rank goes on without these: what it aborts from now on does not make it lost to them.
  // If some of these go on themselves, it says without the others only, and returns what is to be said about it.
  std::string announce(const std::set<int>& excluded);

  // Waits until all ranks that are not `excluded`, of which this is one, have announced that and called this with the
  // same ones. What it returns is a store for those who have met, and for this time only. Throws
  // after `timeout`, and says who has not come, and who excludes others; the rank may come again.
  c10::intrusive_ptr<c10d::Store> meet(const std::set<int>& excluded, Milliseconds timeout);

  // Does what those who have met do together, which may take long. If it throws, whoever of them goes on no more
  // is lost.
  void while_renewing(const std::set<int>& excluded, const std::function<void()>& work);

  // The ranks that were waited for in vain, those that ranks which came have excluded, and those that are `gone`
  // from the group and were not seen here: who has aborted it to go on is gone from it, too. Asks nobody.
  std::set<int> lost(const std::set<int>& gone) const;

 private:
  // By rank; "" of one that has never come.
  using Words = std::map<int, std::string>;

  void renew();
  std::set<int> others_than(const std::set<int>& excluded) const;
  Words words(const std::set<int>& ranks) const;
  // Those of the excluded that go on themselves.
  Words going_on_of(const std::set<int>& excluded);
  // Waits until the words are others; whose word stays the same is noted as lost.
  Words renewed_of(Words before);
  // What is to be said about who was waited for, and is noted as lost.
  std::string verdict(const std::set<int>& excluded, const Words& before);
  std::string lost_to(int rank) const;
  void note(const std::set<int>& lost, const std::set<int>& going_on);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  std::string announced_;
  uint64_t renewals_ = 0;

  mutable std::mutex noted_mutex_;
  std::set<int> lost_;
  std::set<int> going_on_;
};

}  // namespace r2ccl_torch
