#include "reunion.hpp"

#include <algorithm>
#include <future>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "store.hpp"

namespace r2ccl_torch {

namespace {

// How often who waits renews its word, if the timeout is long.
constexpr Milliseconds kRenewal{1000};

// How often one looks for renewed words, and how many times: whose word has stayed the same is gone.
constexpr Milliseconds kWordPause{500};
constexpr int kWordLooks = 6;

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

template <typename Words>
std::set<int> ranks_of(const Words& words) {
  std::set<int> ranks;
  for (const auto& one : words) {
    ranks.insert(one.first);
  }
  return ranks;
}

std::string named(const std::set<int>& ranks) {
  return c10::str(ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

}  // namespace

Reunion::Reunion(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {
}

std::string Reunion::announce(const std::set<int>& excluded) {
  // Before the word says that those are excluded: they would take this rank for one that is on its own.
  auto without = excluded;
  std::string objections;
  for (const auto& [rank, word] : going_on_of(excluded)) {
    without.erase(rank);
    objections += excluded_by(word).count(rank_) > 0
                      ? lost_to(rank)
                      : c10::str("; rank ", rank, ", which is excluded, goes on, too");
  }
  announced_ = c10::Join(" ", without);
  renew();
  return objections;
}

c10::intrusive_ptr<c10d::Store> Reunion::meet(const std::set<int>& excluded,
                                              Milliseconds timeout) {
  const auto pause = std::min(kRenewal, timeout / 4);
  auto next = std::chrono::steady_clock::now() + pause;
  // Looked at late: those who find each other at once need none.
  std::optional<Words> before;
  const auto stay = [&] {
    if (std::chrono::steady_clock::now() >= next) {
      if (!before) {
        before = words(others_than(excluded));
      }
      renew();
      next = std::chrono::steady_clock::now() + pause;
    }
    return false;
  };
  const auto advice = [&] {
    renew();
    return verdict(excluded, before.value_or(Words()));
  };
  const auto place = c10::make_intrusive<c10d::PrefixStore>("without/" + c10::Join(" ", excluded), store_);
  const auto met = r2ccl_torch::meet(place->clone(), size_ - static_cast<int>(excluded.size()), timeout,
                                     advice, stay);
  note({}, others_than(excluded));
  return met;
}

void Reunion::while_renewing(const std::set<int>& excluded, const std::function<void()>& work) {
  std::promise<void> end;
  auto renewing = std::async(std::launch::async, [this, ended = end.get_future()] {
    while (ended.wait_for(kRenewal) == std::future_status::timeout) {
      renew();
    }
  });
  try {
    work();
  } catch (...) {
    end.set_value();
    renewing.wait();
    try {
      renewed_of(words(others_than(excluded)));
    } catch (const c10::Error&) {
      // The store is gone, and nobody can tell.
    }
    throw;
  }
  end.set_value();
}

void Reunion::renew() {
  const auto word = c10::str(++renewals_, " ", announced_);
  store_->set(key_of(rank_), std::vector<uint8_t>(word.begin(), word.end()));
}

std::set<int> Reunion::others_than(const std::set<int>& excluded) const {
  std::set<int> others;
  for (int rank = 0; rank < size_; rank++) {
    if (rank != rank_ && excluded.count(rank) == 0) {
      others.insert(rank);
    }
  }
  return others;
}

Reunion::Words Reunion::words(const std::set<int>& ranks) const {
  Words words;
  for (const int rank : ranks) {
    words[rank] = store_->check({key_of(rank)}) ? store_->get_to_str(key_of(rank)) : "";
  }
  return words;
}

Reunion::Words Reunion::going_on_of(const std::set<int>& excluded) {
  Words going_on;
  Words unsure;
  for (const auto& [rank, word] : words(excluded)) {
    if (word.empty() || lost({}).count(rank) > 0) {
      continue;
    }
    // Whom this rank is lost to may have gone on long since, and renew nothing any more.
    (excluded_by(word).count(rank_) > 0 ? going_on : unsure)[rank] = word;
  }
  note({}, ranks_of(going_on));
  going_on.merge(renewed_of(std::move(unsure)));
  return going_on;
}

Reunion::Words Reunion::renewed_of(Words before) {
  Words renewed;
  for (int look = 0; look < kWordLooks && !before.empty(); look++) {
    if (renewals_ > 0) {
      // Others may be looking, too.
      renew();
    }
    std::this_thread::sleep_for(kWordPause);
    for (const auto& [rank, word] : words(ranks_of(before))) {
      if (word != before.at(rank)) {
        before.erase(rank);
        renewed[rank] = word;
      }
    }
  }
  note(ranks_of(before), ranks_of(renewed));
  return renewed;
}

std::string Reunion::verdict(const std::set<int>& excluded, const Words& before) {
  std::set<int> lost;
  std::set<int> absent;
  const auto came = words(others_than(excluded));
  std::string others;
  for (const auto& [rank, word] : came) {
    const auto theirs = excluded_by(word);
    if (theirs.count(rank_) > 0) {
      // To those this rank is lost: it should not go on beside them.
      others += lost_to(rank);
    } else if (word.empty() || (before.count(rank) > 0 && before.at(rank) == word)) {
      absent.insert(rank);
    } else if (theirs != excluded) {
      others += c10::str("; rank ", rank, " goes on without ", named(theirs));
      lost.insert(theirs.begin(), theirs.end());
    }
  }
  lost.insert(absent.begin(), absent.end());
  note(lost, ranks_of(came));
  return c10::str(" to go on without ", named(excluded),
                  absent.empty() ? "" : "; in vain was waited for " + named(absent), others);
}

std::string Reunion::lost_to(int rank) const {
  return c10::str("; to rank ", rank, " this rank ", rank_, " is lost");
}

void Reunion::note(const std::set<int>& lost, const std::set<int>& going_on) {
  const std::lock_guard<std::mutex> lock(noted_mutex_);
  lost_.insert(lost.begin(), lost.end());
  going_on_.insert(going_on.begin(), going_on.end());
}

std::set<int> Reunion::lost(const std::set<int>& gone) const {
  const std::lock_guard<std::mutex> lock(noted_mutex_);
  auto lost = lost_;
  std::set_difference(gone.begin(), gone.end(), going_on_.begin(), going_on_.end(),
                      std::inserter(lost, lost.end()));
  return lost;
}

}  // namespace r2ccl_torch
