//! Pictures.

use plotters::prelude::*;

use super::Plot;

const SIZE: (u32, u32) = (860, 460);

/// The picture as SVG.
///
/// # Errors
/// There is nothing to draw.
pub(crate) fn draw(plot: &Plot) -> Result<String, String> {
    let mut text = String::new();
    let drawn = match plot.logarithmic {
        (true, false) => onto(&mut text, plot, |x| x.log2(), |x| round(x.exp2())),
        _ => onto(&mut text, plot, |x| x, round),
    };
    drawn.map_err(|cause| format!("{}: {cause}", plot.title))?;
    Ok(text)
}

fn onto(
    text: &mut String,
    plot: &Plot,
    scale: impl Fn(f64) -> f64,
    label: impl Fn(f64) -> String,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || plot.curves.iter().flat_map(|(_, points)| points);
    let ends = |of: &dyn Fn(&(f64, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)))
    };
    let (left, right) = ends(&|point| scale(point.0));
    let (_, top) = ends(&|point| point.1);
    if left >= right {
        return Err("there is nothing to draw".into());
    }
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(left..right, 0.0..top.max(f64::MIN_POSITIVE) * 1.08)?;
    chart
        .configure_mesh()
        .x_desc(plot.axes.0)
        .y_desc(plot.axes.1)
        .x_label_formatter(&|x| label(*x))
        .draw()?;
    for (number, (name, points)) in plot.curves.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let points = points.iter().map(|(x, y)| (scale(*x), *y));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
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

/// With three digits, and a unit if it is large.
fn round(number: f64) -> String {
    match number {
        n if n >= 1e9 => format!("{:.0}G", n / 1e9),
        n if n >= 1e6 => format!("{:.0}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n if n.fract().abs() < 1e-6 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}
