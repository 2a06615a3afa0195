// How the ranks of a group that are left come together without the others.
#pragma once

#include <cstdint>
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
  void announce(const std::set<int>& excluded);

  // Whether the rank has announced that it goes on. It may have died since.
  bool has_announced(int rank) const;

  // Waits until all ranks that are not `excluded`, of which this is one, have announced that and called this with the
  // same ones. What it returns is a store for those who have met, and for this time only. Throws
  // after `timeout`, and says who has not come, and who excludes others; the rank may come again.
  c10::intrusive_ptr<c10d::Store> meet(const std::set<int>& excluded, Milliseconds timeout);

  // The ranks that were waited for in vain, and those that ranks which came have excluded.
  std::set<int> lost() const;

 private:
  // By rank; "" of one that has never come.
  using Words = std::map<int, std::string>;

  void renew(const std::string& excluded);
  Words words(const std::set<int>& excluded) const;
  // What is to be said about who was waited for, and is noted as lost.
  std::string verdict(const std::set<int>& excluded, const Words& before);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  uint64_t renewals_ = 0;

  mutable std::mutex lost_mutex_;
  std::set<int> lost_;
};

}  // namespace r2ccl_torch
