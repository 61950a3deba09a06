//! What a benchmark prints: each figure with its bar, whether it holds, and what peers do, under which conditions.

use std::time::Duration;

/// What a figure has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bar {
    /// At least so much.
    AtLeast(f64),
    /// At most so much.
    AtMost(f64),
    /// Less than this.
    Below(f64),
    /// There is none: it is shown for comparison.
    None,
}

impl Bar {
    fn holds(self, figure: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => figure >= bar,
            Bar::AtMost(bar) => figure <= bar,
            Bar::Below(bar) => figure < bar,
            Bar::None => true,
        }
    }
}

/// Figures printed so far, and how many missed their bar.
#[derive(Debug, Default)]
pub(super) struct Report {
    figures: usize,
    missed: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    /// Prints the heading of a section.
    pub(super) fn section(&self, text: &str) {
        println!("\n{text}");
    }

    /// Prints a figure.
    pub(super) fn figure(&mut self, what: &str, figure: f64, unit: &str, bar: Bar) {
        self.figures += 1;
        let (verdict, bar_text) = match bar {
            Bar::AtLeast(least) => (bar.holds(figure), format!("bar: at least {}", number(least))),
            Bar::AtMost(most) => (bar.holds(figure), format!("bar: at most {}", number(most))),
            Bar::Below(limit) => (bar.holds(figure), format!("bar: below {}", number(limit))),
            Bar::None => (true, String::new()),
        };
        let mark = match bar {
            Bar::None => "     ",
            _ if verdict => "holds",
            _ => "MISS ",
        };
        println!("  {mark}  {what:<72} {:>12} {unit:<5} {bar_text}", number(figure));
        if !verdict {
            self.missed.push(what.to_owned());
        }
    }

    /// Prints a time, in milliseconds.
    pub(super) fn time(&mut self, what: &str, time: Duration, most: Option<Duration>) {
        let ms = |time: Duration| time.as_secs_f64() * 1_000.0;
        self.figure(what, ms(time), "ms", most.map_or(Bar::None, |most| Bar::AtMost(ms(most))));
    }

    /// Prints what a peer does, its source and its conditions.
    pub(super) fn peer(&self, text: &str) {
        println!("           peer: {text}");
    }

    /// Prints a remark.
    pub(super) fn note(&self, text: &str) {
        println!("           {text}");
    }

    /// Says that something wasn't run, and why.
    pub(super) fn skip(&mut self, what: &str, why: &str) {
        println!("  not run  {what}: {why}");
        self.skipped.push(what.to_owned());
    }

    /// Prints the sum; whether every figure's bar held.
    pub(super) fn finish(&self) -> bool {
        println!(
            "\n{} figures, {} below their bar, {} parts not run",
            self.figures,
            self.missed.len(),
            self.skipped.len()
        );
        for what in &self.missed {
            println!("  below its bar: {what}");
        }
        self.missed.is_empty()
    }
}

/// Four significant digits or so, and separators.
pub(super) fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.01 {
        return format!("{value:.1e}");
    }
    let decimals = match value.abs() {
        value if value >= 100.0 || value == 0.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        let left = whole.len() - place;
        if place > 0 && left % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    fraction.map_or(grouped.clone(), |fraction| format!("{grouped}.{fraction}"))
}

/// The value that at least so many per cent of the others don't exceed.
pub(super) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() * percent).div_ceil(100).max(1) - 1]
}

/// The middle of the values.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators_and_four_digits() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(-1_234.0), "-1,234");
        assert_eq!(number(-123.0), "-123");
        assert_eq!((number(0.0123), number(0.0), number(3e-10)), ("0.012".into(), "0".into(), "3.0e-10".into()));
        assert_eq!(number(12.34), "12.3");
    }

    #[test]
    fn a_report_holds_only_if_every_bar_does() {
        let mut report = Report::default();
        report.figure("a", 5.0, "/s", Bar::AtLeast(4.0));
        report.figure("b", 5.0, "/s", Bar::None);
        assert!(report.finish());
        report.time("c", Duration::from_millis(6), Some(Duration::from_millis(5)));
        assert!(!report.finish());
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut times, 99), Duration::from_millis(198));
        assert_eq!(percentile(&mut times[..1], 50), Duration::from_millis(1));
    }
}
