//! Points of a sweep that are drawn: from lists and ranges, by a seed, so that one file always has the same points.

use std::collections::BTreeSet;

use gangline_base::Grid;

use super::field::{Field, Section};
use super::problem::{Code, Problems, Refusal, shown};
use super::values;
use super::yaml::{Entry, Node, Value};

/// How often a point that was drawn before is drawn anew.
const TRIES_MAX: usize = 100;
/// The most whole numbers in a range.
const WHOLE_MAX: u64 = 1 << 32;

/// What a parameter may be.
pub(super) enum Values {
    /// One of these.
    List(Vec<String>),
    /// A number between two others.
    Range(Range),
}

/// The numbers between two others, which are in it.
pub(super) enum Range {
    /// Whole numbers, all alike likely.
    Whole {
        /// The lowest.
        min: i64,
        /// How many there are.
        count: u64,
    },
    /// Whole numbers whose logarithm is uniform.
    WholeLog {
        /// The lowest.
        min: f64,
        /// The highest.
        max: f64,
    },
    /// Numbers, uniform.
    Linear {
        /// The lowest.
        min: f64,
        /// The highest.
        max: f64,
    },
    /// Numbers whose logarithm is uniform.
    Log {
        /// The lowest.
        min: f64,
        /// The highest.
        max: f64,
    },
}

impl Range {
    /// Reports whether a value isn't a mapping with `min` and `max`.
    pub(super) fn is_none_written(node: &Node) -> bool {
        match &node.value {
            Value::Mapping(entries) => !["min", "max"].iter().all(|key| entries.iter().any(|entry| entry.key == *key)),
            _ => true,
        }
    }

    /// Reads `{min: 1e-5, max: 1e-2, scale: log}`; of whole numbers if both ends are written as such.
    pub(super) fn read(entry: &Entry, problems: &mut Problems) -> Option<Range> {
        let field = Field { node: &entry.value, outer: "sweep", key: &entry.key };
        let section: Section<'_> = field.section(problems, "range")?;
        let is_log = section.get_or("scale", false, |field| {
            field.parsed(problems, |text| values::choice(text, &["linear", "log"]).map(|word| word == "log"))
        });
        let (Some(min), Some(max)) = (section.get("min"), section.get("max")) else {
            let refusal = Refusal::new(Code::MissingKey, "is no range without \"min\" and \"max\"");
            field.refuse(problems, refusal.hint("write {min: 1e-5, max: 1e-2, scale: log}"));
            return None;
        };
        let (min, max) = (min.parsed(problems, number), max.parsed(problems, number));
        let (is_log, (min, min_whole), (max, max_whole)) = (is_log?, min?, max?);
        let range = match (min_whole.zip(max_whole), is_log) {
            _ if min >= max => Err(Refusal::new(Code::BadValue, "is empty: its \"min\" isn't below its \"max\"")),
            (_, true) if min <= 0.0 => Err(Refusal::new(Code::OutOfRange, "has a \"min\" that has no logarithm")
                .hint("write a min above 0, or scale: linear")),
            (Some(_), true) => Ok(Range::WholeLog { min, max }),
            (Some((min, max)), false) => {
                let count = max.abs_diff(min).saturating_add(1);
                let refusal = || Refusal::new(Code::OutOfRange, "has more than 2^32 numbers");
                if count <= WHOLE_MAX { Ok(Range::Whole { min, count }) } else { Err(refusal()) }
            }
            (None, true) => Ok(Range::Log { min, max }),
            (None, false) => Ok(Range::Linear { min, max }),
        };
        field.keep(problems, range)
    }

    fn draw(&self, draws: &mut Draws) -> String {
        match *self {
            Range::Whole { min, count } => {
                let place = draws.below(count);
                min.saturating_add_unsigned(place).to_string()
            }
            Range::WholeLog { min, max } => {
                let drawn = between(min.ln(), (max + 1.0).ln(), draws.unit()).exp();
                format!("{:.0}", drawn.floor().clamp(min, max))
            }
            Range::Linear { min, max } => rounded(between(min, max, draws.unit())).clamp(min, max).to_string(),
            Range::Log { min, max } => {
                rounded(between(min.ln(), max.ln(), draws.unit()).exp()).clamp(min, max).to_string()
            }
        }
    }
}

/// Parses a number, and says what it is as a whole number if it is written as one.
fn number(text: &str) -> Result<(f64, Option<i64>), Refusal> {
    let wrong = || Refusal::new(Code::WrongType, format!("expects a number, not {}", shown(text)));
    let number: f64 = text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(wrong)?;
    Ok((number, text.parse().ok()))
}

fn between(min: f64, max: f64, part: f64) -> f64 {
    min + (max - min) * part
}

/// Rounds to five digits, which is what a name shows.
fn rounded(number: f64) -> f64 {
    format!("{number:.4e}").parse().unwrap_or(number)
}

/// A sequence of draws: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u32) -> Draws {
        Draws(u64::from(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a whole number below `count`, which is at most 2^32.
    fn below(&mut self, count: u64) -> u64 {
        ((self.next() >> 32) * count) >> 32
    }

    fn place(&mut self, count: usize) -> usize {
        let below = self.below(u64::try_from(count).unwrap_or(WHOLE_MAX));
        usize::try_from(below).unwrap_or(0)
    }

    /// Draws a number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        let high = u32::try_from(self.next() >> 32).expect("32 bits are left");
        f64::from(high) / 4_294_967_296.0
    }

    /// Draws so many different points.
    ///
    /// # Errors
    /// How many were found, if there are fewer.
    pub(super) fn points(&mut self, parameters: &[(String, Values)], samples: usize) -> Result<Grid, usize> {
        let mut seen = BTreeSet::new();
        let mut drawn: Vec<(String, Vec<String>)> =
            parameters.iter().map(|(name, _)| (name.clone(), Vec::new())).collect();
        for found in 0..samples {
            let mut one = || -> Vec<String> { parameters.iter().map(|(_, values)| self.value(values)).collect() };
            let new = (0..TRIES_MAX).map(|_| one()).find(|point| !seen.contains(point)).ok_or(found)?;
            seen.insert(new.clone());
            drawn.iter_mut().zip(new).for_each(|((_, values), value)| values.push(value));
        }
        Ok(Grid::list(drawn).expect("each point has a value of each parameter"))
    }

    fn value(&mut self, values: &Values) -> String {
        match values {
            Values::List(values) => values[self.place(values.len())].clone(),
            Values::Range(range) => range.draw(self),
        }
    }

    /// Returns the points of a grid in a drawn order: Fisher and Yates's.
    pub(super) fn shuffled(&mut self, grid: &Grid) -> Grid {
        let mut order: Vec<usize> = (0..grid.points()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.place(last + 1));
        }
        let points: Vec<_> = order.into_iter().filter_map(|index| grid.point(index)).collect();
        let column = |place: usize| points.iter().map(|point| point[place].1.to_owned()).collect();
        let names = grid.parameters().iter().enumerate();
        Grid::list(names.map(|(place, (name, _))| (name.clone(), column(place))).collect()).expect("rows are whole")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(range: Range, count: usize) -> Vec<f64> {
        let mut draws = Draws::new(7);
        (0..count).map(|_| range.draw(&mut draws).parse().expect("a number")).collect()
    }

    #[test]
    fn ranges_are_kept_and_their_scale_decides_where_the_middle_is() {
        let below = |numbers: &[f64], middle: f64| numbers.iter().filter(|number| **number < middle).count();
        let log = drawn(Range::Log { min: 1e-5, max: 1e-1 }, 1_000);
        assert!(log.iter().all(|number| (1e-5..=1e-1).contains(number)));
        assert!((450..550).contains(&below(&log, 1e-3)), "half lies below the geometric mean");
        let linear = drawn(Range::Linear { min: 0.0, max: 1.0 }, 1_000);
        assert!((450..550).contains(&below(&linear, 0.5)));
        let whole = drawn(Range::Whole { min: -2, count: 4 }, 1_000);
        assert_eq!(whole.iter().map(|number| number.to_string()).collect::<BTreeSet<_>>().len(), 4);
        assert!(whole.iter().all(|number| (-2.0..=1.0).contains(number)));
        let whole_log = drawn(Range::WholeLog { min: 1.0, max: 1_000.0 }, 1_000);
        assert!(whole_log.iter().all(|number| (1.0..=1_000.0).contains(number)));
        assert!((450..600).contains(&below(&whole_log, 32.0)));
    }

    #[test]
    fn one_seed_draws_one_order_and_each_point_once() {
        let values = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
        let grid = Grid::new(vec![("A".to_owned(), values(4)), ("B".to_owned(), values(5))]);
        let shuffled = |seed| Draws::new(seed).shuffled(&grid);
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let labels = |grid: &Grid| (0..20).filter_map(|index| grid.label(index)).collect::<BTreeSet<_>>();
        assert_eq!(labels(&shuffled(1)), labels(&grid));
        let lists = [("A".to_owned(), Values::List(values(4))), ("B".to_owned(), Values::List(values(5)))];
        let points = Draws::new(3).points(&lists, 15).expect("there are 20");
        assert_eq!((points.points(), labels(&points).len()), (15, 15), "no point is drawn twice");
        assert!(Draws::new(3).points(&lists, 21).is_err_and(|found| found <= 20));
    }
}
