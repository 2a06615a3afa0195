// The whole module as one translation unit: most of the time goes into PyTorch's headers.
#include "bindings.cpp"

#include "backend.cpp"
#include "bodies.cpp"
#include "call_queue.cpp"
#include "collectives.cpp"
#include "communicator.cpp"
#include "library.cpp"
#include "mailbox.cpp"
#include "sentinel.cpp"
#include "store.cpp"
#include "tensors.cpp"
#include "work.cpp"
