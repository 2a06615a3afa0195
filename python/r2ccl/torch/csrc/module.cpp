// The whole module as one translation unit: reading PyTorch's headers takes longer than all the rest.
#include "bindings.cpp"

#include "backend.cpp"
#include "call_queue.cpp"
#include "collectives.cpp"
#include "communicator.cpp"
#include "library.cpp"
#include "mailbox.cpp"
#include "sentinel.cpp"
#include "store.cpp"
#include "tensors.cpp"
#include "work.cpp"
