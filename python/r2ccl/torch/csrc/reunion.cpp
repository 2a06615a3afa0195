#include "reunion.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "store.hpp"

namespace r2ccl_torch {

namespace {

// How often who waits renews its word, if the timeout is long.
constexpr Milliseconds kRenewal{1000};

std::string key_of(int rank) {
  return c10::str("rank/", rank);
}

// "2 0 3" is the second word of a rank that goes on without 0 and 3.
std::set<int> excluded_by(const std::string& word) {
  std::istringstream numbers(word);
  uint64_t renewals = 0;
  numbers >> renewals;
  std::set<int> excluded;
  for (int rank = 0; numbers >> rank;) {
    excluded.insert(rank);
  }
  return excluded;
}

std::string named(const std::set<int>& ranks) {
  return c10::str(ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

}  // namespace

Reunion::Reunion(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {
}

void Reunion::announce(const std::set<int>& excluded) {
  renew(c10::Join(" ", excluded));
}

bool Reunion::has_announced(int rank) const {
  try {
    return store_->check({key_of(rank)});
  } catch (const c10::Error&) {
    // The store is gone.
    return false;
  }
}

c10::intrusive_ptr<c10d::Store> Reunion::meet(const std::set<int>& excluded,
                                              Milliseconds timeout) {
  const auto list = c10::Join(" ", excluded);
  const auto pause = std::min(kRenewal, timeout / 4);
  auto next = std::chrono::steady_clock::now() + pause;
  // Looked at late: those who find each other at once need none.
  std::optional<Words> before;
  const auto stay = [&] {
    if (std::chrono::steady_clock::now() >= next) {
      if (!before) {
        before = words(excluded);
      }
      renew(list);
      next = std::chrono::steady_clock::now() + pause;
    }
    return false;
  };
  const auto advice = [&] {
    renew(list);
    return verdict(excluded, before.value_or(Words()));
  };
  const auto place = c10::make_intrusive<c10d::PrefixStore>("without/" + list, store_);
  return r2ccl_torch::meet(place->clone(), size_ - static_cast<int>(excluded.size()), timeout,
                           advice, stay);
}

void Reunion::renew(const std::string& excluded) {
  const auto word = c10::str(++renewals_, " ", excluded);
  store_->set(key_of(rank_), std::vector<uint8_t>(word.begin(), word.end()));
}

Reunion::Words Reunion::words(const std::set<int>& excluded) const {
  Words words;
  for (int rank = 0; rank < size_; rank++) {
    if (rank != rank_ && excluded.count(rank) == 0) {
      words[rank] = has_announced(rank) ? store_->get_to_str(key_of(rank)) : "";
    }
  }
  return words;
}

std::string Reunion::verdict(const std::set<int>& excluded, const Words& before) {
  std::set<int> lost;
  std::set<int> absent;
  std::string others;
  for (const auto& [rank, word] : words(excluded)) {
    const auto theirs = excluded_by(word);
    if (theirs.count(rank_) > 0) {
      // To those this rank is lost: it should not go on beside them.
      others += c10::str("; to rank ", rank, " this rank ", rank_, " is lost");
    } else if (word.empty() || (before.count(rank) > 0 && before.at(rank) == word)) {
      absent.insert(rank);
    } else if (theirs != excluded) {
      others += c10::str("; rank ", rank, " goes on without ", named(theirs));
      lost.insert(theirs.begin(), theirs.end());
    }
  }
  lost.insert(absent.begin(), absent.end());
  const std::lock_guard<std::mutex> lock(lost_mutex_);
  lost_.insert(lost.begin(), lost.end());
  return c10::str(" to go on without ", named(excluded),
                  absent.empty() ? "" : "; in vain was waited for " + named(absent), others);
}

std::set<int> Reunion::lost() const {
  const std::lock_guard<std::mutex> lock(lost_mutex_);
  return lost_;
}

}  // namespace r2ccl_torch
