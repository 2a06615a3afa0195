// Waiting for each other through the store of PyTorch.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace r2ccl_torch {

// How long somebody who waits for a key sleeps between two looks, at first and at most. Looks are
// short questions: others may use the same connection.
constexpr Milliseconds kFirstPause{1};
constexpr Milliseconds kLongestPause{50};

// Whether whoever waits gives up; asked at every look.
using GivesUp = std::function<bool()>;

// What whoever has waited in vain is told, too.
using Advice = std::function<std::string()>;

// Looks again and again whether `condition` holds; false if it does not within `timeout`, or before
// `gives_up` says yes.
bool await(const std::function<bool()>& condition,
           Milliseconds timeout,
           const GivesUp& gives_up = nullptr);

// Waits until `size` ranks have called this with the same store. Throws after `timeout`, and says
// `advice` too; the rank may come again. Throws that the group has ended if it `gives_up`. What it
// returns is a store for those who have met, and for this time only: a store may outlive groups and
// be used by the next one, and what the last one has left there is not for it.
c10::intrusive_ptr<c10d::Store> meet(const c10::intrusive_ptr<c10d::Store>& store,
                                     int size,
                                     Milliseconds timeout,
                                     const Advice& advice = nullptr,
                                     const GivesUp& gives_up = nullptr);

}  // namespace r2ccl_torch
