// Ids of communicators, from one rank to the others.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "communicator.hpp"

namespace r2ccl_torch {

// The id that rank 0 makes. All ranks call this with the same store, which is for this alone, and
// wait for each other; throws after `timeout`.
ccl_unique_id_t shared_id(c10d::Store& store, int rank, int size, Milliseconds timeout);

}  // namespace r2ccl_torch
