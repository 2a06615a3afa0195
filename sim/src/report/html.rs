//! One file that needs no other.

use std::fmt::Write;

use super::svg::draw;
use super::{LEFT_OUT, Report, Verdict, tally};

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.35em .5em;text-align:left;\
vertical-align:top}.MISSED{color:#b00020;font-weight:bold}.within{color:#116611}.range{color:#7a5a00}.uncounted{color:#666}\
small{color:#666}svg{max-width:100%;height:auto}";

/// The report as HTML; `how` says how it was made.
///
/// # Errors
/// A picture cannot be drawn.
pub fn page(report: &Report, how: &str) -> Result<String, String> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>R2CCL: the paper's figures, \
         simulated</title><style>{STYLE}</style></head><body>\n<h1>The figures of the R²CCL paper, simulated</h1>\n"
    );
    let _ = writeln!(
        page,
        "<p>{}</p>\n<p>Where the paper leaves parameters open, all readings are simulated: the first stands \
         before the brackets, the range of all in them. <b>within</b>: the first reading is in the band that was \
         expected before anything was simulated; <b>in range</b>: only others are; <b>MISSED</b>: none is. Not \
         counted: what was asked for only after the numbers were known (<b>not set before</b>), and what follows \
         from numbers of the paper without a simulation (<b>arithmetic</b>).</p>",
        escaped(how)
    );
    let _ = writeln!(page, "<p>{}. {LEFT_OUT}</p>", escaped(&tally(&report.rows)));
    page.push_str(
        "<table><tr><th>figure</th><th>what</th><th>paper</th><th>ours</th><th>tolerance</th><th>verdict</th></tr>\n",
    );
    for row in &report.rows {
        let verdict = row.verdict();
        let class = match verdict {
            Verdict::InRange => "range",
            Verdict::NotSet | Verdict::Arithmetic => "uncounted",
            Verdict::Within | Verdict::Missed => verdict.name(),
        };
        let cells = [row.figure, &row.what, row.paper, &row.ours(), &row.tolerance()].map(escaped);
        let [figure, what, paper, ours, tolerance] = cells;
        let _ = writeln!(
            page,
            "<tr><td>{figure}</td><td>{what}<br><small>{}</small></td><td>{paper}</td><td>{ours}</td>\
             <td>{tolerance}</td><td class=\"{class}\">{}</td></tr>",
            escaped(row.caveat),
            verdict.name()
        );
    }
    page.push_str("</table>\n");
    for plot in &report.plots {
        let _ = writeln!(page, "<h2>{}</h2>\n{}", escaped(&plot.title), draw(plot)?);
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::{Plot, Row, Unit};
    use super::*;

    #[test]
    fn a_page_is_whole_and_shows_what_is_missed() {
        let row = Row::new(("1", "a < b"), "2", &[9.0], (1.0, 2.0), Unit::Times, "");
        let plot = Plot {
            title: "p".to_owned(),
            axes: ("x", "y"),
            logarithmic: (true, false),
            curves: vec![("c".to_owned(), vec![(1.0, 2.0), (8.0, 3.0)])],
        };
        let report = Report { rows: vec![row], plots: vec![plot] };
        let page = page(&report, "by hand").unwrap();
        for part in
            ["a &lt; b", "MISSED", "<svg", "1 rows: 0 within, 0 in range, 1 missed; not", "</html>"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert!(
            !page.contains("http://")
                || page.matches("http").count() == page.matches("www.w3.org").count()
        );
    }
}
