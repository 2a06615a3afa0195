//! The predicted times of all candidates over the size, as curves.

use std::path::Path;

use ccl_core::collective::Collective;
use plotters::prelude::*;

use crate::explain::Row;

const SIZE: (u32, u32) = (960, 600);

/// Writes an SVG file.
///
/// # Errors
/// There are fewer than two sizes, or the file cannot be written.
pub(crate) fn write(file: &Path, collective: Collective, rows: &[Row]) -> Result<(), String> {
    if rows.len() < 2 {
        return Err("--svg needs at least two sizes, such as --bytes 64K..4G".to_owned());
    }
    let mut text = String::new();
    draw(&mut text, collective, rows).map_err(|cause| format!("the curves: {cause}"))?;
    std::fs::write(file, text).map_err(|cause| format!("--svg {}: {cause}", file.display()))
}

fn draw(
    text: &mut String,
    collective: Collective,
    rows: &[Row],
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let times = rows.iter().flat_map(|row| &row.choice.candidates);
    let times = times.map(|candidate| candidate.estimate.seconds * 1e6);
    let (least, most) = times.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), time| {
        (least.min(time), most.max(time))
    });
    let sizes = real(rows[0].bytes)..real(rows[rows.len() - 1].bytes);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}: predicted time", collective.name()), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(sizes.log_scale(), (least..most * 1.1).log_scale())?;
    chart.configure_mesh().x_desc("bytes").y_desc("µs").draw()?;
    for (number, name) in names(rows).into_iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let points = rows.iter().filter_map(|row| {
            let found = row.choice.candidates.iter().find(|candidate| candidate.name == name)?;
            Some((real(row.bytes), found.estimate.seconds * 1e6))
        });
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    let bounds = rows.iter().map(|row| (real(row.bytes), row.choice.bound_seconds * 1e6));
    let bounds: Vec<(f64, f64)> = bounds.filter(|(_, bound)| *bound >= least).collect();
    if !bounds.is_empty() {
        chart
            .draw_series(LineSeries::new(bounds, BLACK.stroke_width(1)))?
            .label("lower bound")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}

/// The candidates in order of their names, so that every one has its colour in every picture.
fn names(rows: &[Row]) -> Vec<&'static str> {
    let all = rows.iter().flat_map(|row| &row.choice.candidates);
    let mut names: Vec<&'static str> = all.map(|candidate| candidate.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
fn real(bytes: usize) -> f64 {
    bytes as f64
}
