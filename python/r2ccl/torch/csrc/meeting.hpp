// Ids of communicators, from one rank to the others.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace r2ccl_torch {

// The id that rank 0 makes. All ranks call this with the store in which they have met, once. None waits
// longer than `timeout`, or than the library would.
ccl_unique_id_t shared_id(c10d::Store& store, int rank, Milliseconds timeout);

}  // namespace r2ccl_torch
