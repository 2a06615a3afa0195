//! The state of the rails, as the records of `r2ccl.health`.

use ccl::{RailCounters, RailHealth};
use pyo3::prelude::*;
use pyo3::types::PyDict;

const NANOSECONDS: f64 = 1e9;

/// One `RailHealth` for each rail.
pub(crate) fn records<'py>(
    py: Python<'py>,
    rails: &[RailHealth],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    rails.iter().map(|rail| record(py, rail)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a time in seconds, for people")]
fn record<'py>(py: Python<'py>, rail: &RailHealth) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("r2ccl.health")?;
    let fields = PyDict::new(py);
    fields.set_item("rank", rail.rank.0)?;
    fields.set_item("rail", rail.rail.0)?;
    fields.set_item("state", module.getattr("RailState")?.call1((rail.state.name(),))?)?;
    fields.set_item("verdict", module.getattr("Verdict")?.call1((rail.verdict.name(),))?)?;
    fields.set_item("bytes_per_second", rail.bytes_per_second)?;
    let counters = counters(py, &rail.counters)?;
    fields.set_item("counters", module.getattr("RailCounters")?.call((), Some(&counters))?)?;
    fields.set_item("evidence", &rail.evidence)?;
    let last_fault = rail.last_fault.map(|moment| moment.0 as f64 / NANOSECONDS);
    fields.set_item("last_fault", last_fault)?;
    module.getattr("RailHealth")?.call((), Some(&fields))
}

fn counters<'py>(py: Python<'py>, counters: &RailCounters) -> PyResult<Bound<'py, PyDict>> {
    let RailCounters { faults, returns, tiles, bytes, resent_tiles, resent_bytes } = *counters;
    let fields = PyDict::new(py);
    for (name, value) in [
        ("faults", faults),
        ("returns", returns),
        ("tiles", tiles),
        ("bytes", bytes),
        ("resent_tiles", resent_tiles),
        ("resent_bytes", resent_bytes),
    ] {
        fields.set_item(name, value)?;
    }
    Ok(fields)
}
