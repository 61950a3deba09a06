//! A loss curve as SVG.

use maud::{Markup, html};

use crate::loss::LossCurve;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 110.0;
const MARGIN: f64 = 6.0;

/// Draws a job's loss over its steps, one line for each attempt; draws nothing with fewer than two points.
pub(super) fn loss(curves: &[LossCurve]) -> Markup {
    let points: Vec<(u64, f64)> = curves.iter().flat_map(|curve| &curve.points).copied().collect();
    let losses = || points.iter().map(|(_, loss)| *loss);
    let (low, high) = (losses().fold(f64::INFINITY, f64::min), losses().fold(f64::NEG_INFINITY, f64::max));
    let steps = || points.iter().map(|(step, _)| *step);
    let (Some(first), Some(last)) = (steps().min(), steps().max()) else { return html! {} };
    if points.len() < 2 {
        return html! {};
    }
    let place = |step: u64, loss: f64| {
        let x = MARGIN + fraction(real(step - first), real(last - first)) * (WIDTH - 2.0 * MARGIN);
        let y = MARGIN + (1.0 - fraction(loss - low, high - low)) * (HEIGHT - 2.0 * MARGIN);
        format!("{x:.1},{y:.1}")
    };
    let label =
        format!("loss from {:.3} at step {first} to {:.3} at step {last}", points[0].1, points[points.len() - 1].1);
    html! {
        figure {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(label) {
                title { (label) }
                @for curve in curves {
                    @let line: Vec<String> = curve.points.iter().map(|(step, loss)| place(*step, *loss)).collect();
                    polyline class={ "attempt" (curve.attempt % 4) } points=(line.join(" ")) {}
                }
            }
            figcaption class="muted" { "loss between " (format!("{low:.2}")) " and " (format!("{high:.2}")) ", steps " (first) " to " (last) ", a colour an attempt" }
        }
    }
}

fn real(steps: u64) -> f64 {
    u32::try_from(steps).map_or(f64::from(u32::MAX), f64::from)
}

fn fraction(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(attempt: u32, points: &[(u64, f64)]) -> LossCurve {
        LossCurve { attempt, points: points.to_vec() }
    }

    #[test]
    fn each_attempt_has_its_own_line() {
        let drawn = loss(&[curve(1, &[(0, 5.0), (10, 4.0)]), curve(2, &[(5, 4.5), (20, 1.0)])]);
        let svg = drawn.into_string();
        assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
        assert!(svg.contains("6.0,6.0"), "the highest loss is at the top left: {svg}");
        assert!(svg.contains("354.0,104.0"), "the lowest is at the bottom right: {svg}");
    }

    #[test]
    fn nothing_is_drawn_without_two_losses() {
        assert_eq!(loss(&[]).into_string(), "");
        assert_eq!(loss(&[curve(1, &[(1, 2.0)])]).into_string(), "");
    }
}
