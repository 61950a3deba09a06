//! Predicted against measured step times as a picture: SVG, both axes logarithmic, a point for each run, a colour for each source.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::statistics::{Judgement, Pair};

/// Side of the square that points lie in, and what is around it, in pixels.
const SIDE: f64 = 560.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const LEGEND: f64 = 190.0;
const BELOW: f64 = 60.0;
/// Decades that are drawn: 0.1 s to 1,000 s.
const FROM: f64 = -1.0;
const TO: f64 = 3.0;
/// Colours that people with colour blindness tell apart (Okabe and Ito 2008), then lighter ones.
const COLOURS: [&str; 14] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a8a00", "#000000", "#7f3c8d", "#11a579",
    "#3969ac", "#f2b701", "#e73f74", "#80ba5a",
];
/// Errors that lines are drawn for, as ratios.
const LINES: [(f64, &str); 3] = [(1.0, "#444"), (1.15, "#bbb"), (1.0 / 1.15, "#bbb")];

/// The picture of what was judged.
pub(super) fn scatter(judgements: &[Judgement]) -> String {
    let points: Vec<(&str, Pair)> = judgements
        .iter()
        .filter_map(|judgement| Some((judgement.source.as_str(), *judgement.outcome.as_ref().ok()?)))
        .collect();
    let sources: BTreeSet<&str> = points.iter().map(|(source, _)| *source).collect();
    let (width, height) = (LEFT + SIDE + LEGEND, TOP + SIDE + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    axes(&mut svg);
    for (index, source) in sources.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let of_source = points.iter().filter(|(other, _)| other == source);
        let _ = writeln!(svg, "<g fill=\"{colour}\" fill-opacity=\"0.55\">");
        for (_, pair) in of_source {
            let (x, y) = place(pair.measured, pair.predicted);
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
        let y = TOP + 14.0 + 18.0 * f64::from(u32::try_from(index).unwrap_or(u32::MAX));
        let x = LEFT + SIDE + 20.0;
        let _ = writeln!(svg, "</g>\n<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>", y - 4.0);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{y}\">{source}</text>", x + 10.0);
    }
    svg + "</svg>\n"
}

/// Where a measured and a predicted time lie; what is outside the decades lies on the border.
fn place(measured: f64, predicted: f64) -> (f64, f64) {
    let along = |seconds: f64| (seconds.log10().clamp(FROM, TO) - FROM) / (TO - FROM) * SIDE;
    (LEFT + along(measured), TOP + SIDE - along(predicted))
}

/// Frame, decades, names, and the lines of equality and of 15 % error.
fn axes(svg: &mut String) {
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#444\"/>"
    );
    for decade in [0.1, 1.0, 10.0, 100.0, 1000.0] {
        let (x, y) = place(decade, decade);
        let (bottom, right) = (TOP + SIDE, LEFT + SIDE);
        let _ = writeln!(svg, "<path d=\"M{x} {TOP}V{bottom}M{LEFT} {y}H{right}\" stroke=\"#eee\"/>");
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{decade} s</text>", bottom + 18.0);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{decade} s</text>", LEFT - 8.0, y + 4.0);
    }
    for (ratio, colour) in LINES {
        let (low, high) = (10f64.powf(FROM), 10f64.powf(TO));
        let ((x, y), (x2, y2)) =
            (place(low.max(low / ratio), low.max(low * ratio)), place(high.min(high / ratio), high.min(high * ratio)));
        let _ = writeln!(svg, "<path d=\"M{x:.1} {y:.1}L{x2:.1} {y2:.1}\" stroke=\"{colour}\"/>");
    }
    let (middle, bottom) = (LEFT + SIDE / 2.0, TOP + SIDE + 42.0);
    let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">measured time of a step</text>");
    let _ = writeln!(
        svg,
        "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">predicted</text>",
        TOP + SIDE / 2.0
    );
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"24\" font-size=\"14\">Predicted against measured step times; lines: equal, and 15 % apart</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_lie_on_the_diagonal_and_others_off_it() {
        let (x, y) = place(10.0, 10.0);
        assert_eq!((x - LEFT, TOP + SIDE - y), (SIDE / 2.0, SIDE / 2.0));
        assert!(place(10.0, 20.0).1 < y, "a longer prediction lies higher");
        assert_eq!(place(1e9, 1e-9), (LEFT + SIDE, TOP + SIDE));
    }

    #[test]
    fn every_judged_run_is_a_point_and_every_source_a_name() {
        let judged =
            |source: &str, outcome| Judgement { row: "r".into(), source: source.into(), group: "dense", outcome };
        let pair = Pair { predicted: 1.0, measured: 2.0 };
        let svg = scatter(&[
            judged("a", Ok(pair)),
            judged("a", Ok(pair)),
            judged("b", Ok(pair)),
            judged("c", Err("no".into())),
        ]);
        assert_eq!(svg.matches("r=\"3\"").count(), 3);
        assert!(svg.contains(">a</text>") && svg.contains(">b</text>") && !svg.contains(">c</text>"));
    }
}
