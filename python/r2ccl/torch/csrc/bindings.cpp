// The module as Python sees it.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "backend.hpp"
#include "store.hpp"

namespace py = pybind11;

namespace r2ccl_torch {

namespace {

py::tuple as_tuple(const ccl_rail_health_t& rail) {
  const py::object last_fault_ns = rail.last_fault_ns == CCL_NO_FAULT
                                       ? py::object(py::none())
                                       : py::object(py::int_(rail.last_fault_ns));
  return py::make_tuple(rail.rank, rail.rail, rail.state, rail.verdict, rail.bytes_per_second,
                        rail.faults, rail.returns, rail.tiles, rail.bytes, rail.resent_tiles,
                        rail.resent_bytes, last_fault_ns, rail.evidence);
}

py::list health(R2cclBackend& backend) {
  std::vector<ccl_rail_health_t> rails;
  {
    const py::gil_scoped_release released;
    rails = backend.health();
  }
  py::list records;
  for (const auto& rail : rails) {
    records.append(as_tuple(rail));
  }
  return records;
}

int version() {
  int version = 0;
  check(library().get_version(&version), "version");
  return version;
}

c10::intrusive_ptr<R2cclBackend> create(const c10::intrusive_ptr<c10d::Store>& store,
                                        int rank,
                                        int size,
                                        std::chrono::milliseconds timeout,
                                        const std::string& name,
                                        std::vector<uint64_t> global_ranks) {
  return c10::make_intrusive<R2cclBackend>(meet(store->clone(), size, timeout), rank, size, timeout,
                                           name, std::move(global_ranks));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  // Forks are counted from here on.
  fork_generation();
  module.def("open_library", &open_library, py::arg("path"), "Loads the library of r2ccl.");
  module.def("version", &version,
             "The version of the library: 10000 * major + 100 * minor + patch.");
  py::class_<R2cclBackend, c10d::Backend, c10::intrusive_ptr<R2cclBackend>>(module, "Backend")
      .def(py::init(&create), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("name"), py::arg("global_ranks"),
           py::call_guard<py::gil_scoped_release>())
      .def("lost_ranks", &R2cclBackend::lost_ranks, py::call_guard<py::gil_scoped_release>(),
           "The ranks that are lost to this one, in order.")
      .def("health", &health, "All rails of all ranks, as tuples in the order of RailHealth.")
      .def(
          "perform_nocolor_split", [](R2cclBackend&, const py::object&) {}, py::arg("device"),
          "Does nothing: new groups meet through the store, without the ranks that are not in "
          "them.");
}

}  // namespace r2ccl_torch
