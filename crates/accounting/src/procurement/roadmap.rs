//! What is expected of the months to come, from a file: how demand and stored data grow, how long jobs may wait, and what
//! could be bought when.

use serde::Deserialize;

use super::offer::HOURS_PER_MONTH;

/// The most months that are looked ahead.
const MONTHS_MAX: u32 = 60;
/// The most options, teams, and purchases of an option.
const ENTRIES_MAX: usize = 50;
/// The most nodes of a purchase.
const NODES_MAX: u32 = 100_000;
/// Bounds of a growth a month: halving and doubling.
const RATE_MIN: f64 = -0.5;
const RATE_MAX: f64 = 1.0;
/// Weeks of a month, on average: a year has 365.25 days.
const WEEKS_PER_MONTH: f64 = 365.25 / 12.0 / 7.0;
/// The 90th percentile of the standard normal distribution.
const Z90: f64 = 1.281_551_565_544_6;
/// The fewest weeks from which a growth is fitted.
pub const FIT_WEEKS_MIN: usize = 6;

/// How demand may turn out. All that grows is taken to be high together and low together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outlook {
    /// The 10th percentile.
    Low,
    /// The median.
    Likely,
    /// The 90th percentile.
    High,
}

impl Outlook {
    /// All of them.
    pub const ALL: [Outlook; 3] = [Outlook::Low, Outlook::Likely, Outlook::High];
}

/// A growth a month, as a share: 0.04 is 4 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Written")]
pub struct Growth {
    /// The 10th percentile.
    pub low: f64,
    /// The median.
    pub likely: f64,
    /// The 90th percentile.
    pub high: f64,
}

/// A growth as it is written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Certain(f64),
    Range([f64; 3]),
}

impl From<Written> for Growth {
    fn from(written: Written) -> Growth {
        let [low, likely, high] = match written {
            Written::Certain(rate) => [rate; 3],
            Written::Range(rates) => rates,
        };
        Growth { low, likely, high }
    }
}

impl Growth {
    /// Returns the multiple of today's value after so many months.
    #[must_use]
    pub fn factor(&self, months: u32, outlook: Outlook) -> f64 {
        let rate = match outlook {
            Outlook::Low => self.low,
            Outlook::Likely => self.likely,
            Outlook::High => self.high,
        };
        (1.0 + rate).powf(f64::from(months))
    }

    /// Fits a growth to what was used in each week: a line through the logarithms by least squares, and its slope's standard
    /// error for the range. None of fewer than [`FIT_WEEKS_MIN`] weeks, or if nothing was used in one.
    #[must_use]
    pub fn fitted(weeks: &[f64]) -> Option<Growth> {
        let count = weeks.len() as f64;
        if weeks.len() < FIT_WEEKS_MIN || weeks.iter().any(|used| *used <= 0.0) {
            return None;
        }
        let mean_week = (count - 1.0) / 2.0;
        let mean = weeks.iter().map(|used| used.ln()).sum::<f64>() / count;
        let points = || (0_u32..).zip(weeks).map(|(week, used)| (f64::from(week) - mean_week, used.ln() - mean));
        let spread: f64 = points().map(|(week, _)| week * week).sum();
        let slope = points().map(|(week, used)| week * used).sum::<f64>() / spread;
        let residual: f64 = points().map(|(week, used)| (used - slope * week).powi(2)).sum();
        let error = (residual / (count - 2.0) / spread).sqrt();
        let rate = |slope: f64| ((slope * WEEKS_PER_MONTH).exp() - 1.0).clamp(RATE_MIN, RATE_MAX);
        Some(Growth { low: rate(slope - Z90 * error), likely: rate(slope), high: rate(slope + Z90 * error) })
    }
}

/// Growths of demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growths {
    /// The number of jobs; none: fitted to the past.
    pub jobs: Option<Growth>,
    /// Devices of a job, as models grow.
    pub sizes: Growth,
    /// Duration of a job, as data grow.
    pub durations: Growth,
}

/// A queue that grows otherwise than all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// The queue.
    pub queue: String,
    /// The growth of its jobs, in addition to that of all jobs.
    #[serde(default)]
    pub growth: Growth,
    /// From which month on the following multiple counts.
    #[serde(default)]
    pub from: u32,
    /// Its jobs from then on, as a multiple.
    #[serde(default = "one")]
    pub times: f64,
}

const fn one() -> f64 {
    1.0
}

/// Stored data, in TiB.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredData {
    /// What is stored now.
    pub now_tib: f64,
    /// Its growth.
    pub growth: Growth,
    /// What there is room for.
    pub capacity_tib: f64,
    /// What a TiB costs a month, in dollars.
    #[serde(default)]
    pub usd_per_tib_month: f64,
}

impl StoredData {
    /// Returns what is stored after so many months, in TiB.
    #[must_use]
    pub fn at(&self, month: u32, outlook: Outlook) -> f64 {
        self.now_tib * self.growth.factor(month, outlook)
    }

    /// Returns the first of so many months in which there is no room for it.
    #[must_use]
    pub fn full_in(&self, months: u32, outlook: Outlook) -> Option<u32> {
        (0..=months).find(|month| self.at(*month, outlook) > self.capacity_tib)
    }
}

/// Nodes that are bought or rented.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purchase {
    /// How many, each like those that are there.
    pub nodes: u32,
    /// The month in which they are ordered; 0 is now.
    pub order: u32,
    /// Months until they are there.
    pub lead: u32,
    /// What a device costs an hour from then on, in dollars.
    pub usd_per_device_hour: f64,
}

/// A set of purchases that could be made.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurchaseOption {
    /// Its name.
    pub name: String,
    /// What is bought.
    #[serde(default)]
    pub buy: Vec<Purchase>,
}

impl PurchaseOption {
    /// Returns the nodes that were bought and are there in a month.
    #[must_use]
    pub fn nodes(&self, month: u32) -> u32 {
        self.there(month).map(|purchase| purchase.nodes).sum()
    }

    /// Returns what the nodes that were bought cost in a month, in dollars.
    #[must_use]
    pub fn cost(&self, month: u32, devices_per_node: u32) -> f64 {
        let price = |purchase: &Purchase| f64::from(purchase.nodes) * purchase.usd_per_device_hour;
        self.there(month).map(price).sum::<f64>() * f64::from(devices_per_node) * HOURS_PER_MONTH
    }

    fn there(&self, month: u32) -> impl Iterator<Item = &Purchase> {
        self.buy.iter().filter(move |purchase| purchase.order + purchase.lead <= month)
    }
}

/// What is expected of the months to come.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Roadmap {
    /// How many months.
    pub months: u32,
    /// How long 95 % of the jobs may wait at most, in hours.
    pub wait_p95_hours: f64,
    /// What a device that is there already costs an hour, in dollars.
    pub usd_per_device_hour: f64,
    /// Months from an order until nodes are there, for what is advised.
    pub lead: u32,
    /// Growths of demand.
    pub growth: Growths,
    /// Queues that grow otherwise.
    #[serde(rename = "team")]
    pub teams: Vec<Team>,
    /// Stored data.
    pub storage: Option<StoredData>,
    /// What could be done. There is always the option of buying nothing.
    #[serde(rename = "option")]
    pub options: Vec<PurchaseOption>,
}

impl Default for Roadmap {
    fn default() -> Self {
        Roadmap {
            months: 24,
            wait_p95_hours: 4.0,
            usd_per_device_hour: 0.0,
            lead: 3,
            growth: Growths::default(),
            teams: Vec::new(),
            storage: None,
            options: Vec::new(),
        }
    }
}

/// The reason why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RoadmapError {
    /// The file isn't TOML of the expected form.
    #[error("it is no roadmap: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A figure can't be meant.
    #[error("`{key}` is {found}: write {expected}")]
    Unfit {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// What is expected.
        expected: String,
    },
}

fn check(key: impl Into<String>, found: f64, is_fit: bool, expected: &str) -> Result<(), RoadmapError> {
    if is_fit {
        return Ok(());
    }
    Err(RoadmapError::Unfit { key: key.into(), found: found.to_string(), expected: expected.to_owned() })
}

fn check_growth(key: &str, growth: &Growth) -> Result<(), RoadmapError> {
    let Growth { low, likely, high } = *growth;
    for rate in [low, likely, high] {
        check(key, rate, (RATE_MIN..=RATE_MAX).contains(&rate), "a share a month from -0.5 to 1.0, as 0.04 for 4 %")?;
    }
    check(key, likely, low <= likely && likely <= high, "the 10th percentile, the median and the 90th, in this order")
}

impl Roadmap {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RoadmapError`] names the line or the key.
    pub fn read(text: &str) -> Result<Roadmap, RoadmapError> {
        let roadmap: Roadmap = toml::from_str(text)?;
        let Roadmap { months, wait_p95_hours: wait, usd_per_device_hour: price, lead, .. } = roadmap;
        check("months", months.into(), (1..=MONTHS_MAX).contains(&months), "1 to 60")?;
        check("wait_p95_hours", wait, wait > 0.0 && wait.is_finite(), "hours above 0")?;
        check("lead", lead.into(), lead <= MONTHS_MAX, "0 to 60 months")?;
        check_price("usd_per_device_hour", price)?;
        if let Some(jobs) = &roadmap.growth.jobs {
            check_growth("growth.jobs", jobs)?;
        }
        check_growth("growth.sizes", &roadmap.growth.sizes)?;
        check_growth("growth.durations", &roadmap.growth.durations)?;
        roadmap.check_entries()?;
        if let Some(StoredData { now_tib, growth, capacity_tib, usd_per_tib_month }) = &roadmap.storage {
            check_growth("storage.growth", growth)?;
            for (key, tib) in [("storage.now_tib", *now_tib), ("storage.capacity_tib", *capacity_tib)] {
                check(key, tib, tib > 0.0 && tib.is_finite(), "TiB above 0")?;
            }
            check_price("storage.usd_per_tib_month", *usd_per_tib_month)?;
        }
        Ok(roadmap)
    }

    fn check_entries(&self) -> Result<(), RoadmapError> {
        for (key, count) in [("team", self.teams.len()), ("option", self.options.len())] {
            check(key, count as f64, count <= ENTRIES_MAX, "at most 50 of them")?;
        }
        for team in &self.teams {
            let key = format!("team \"{}\"", team.queue);
            check_growth(&key, &team.growth)?;
            check(key, team.times, (0.0..=1_000.0).contains(&team.times), "a multiple from 0 to 1000")?;
        }
        for option in &self.options {
            let key = format!("option \"{}\"", option.name);
            check(&key, option.buy.len() as f64, option.buy.len() <= ENTRIES_MAX, "at most 50 purchases")?;
            for Purchase { nodes, order, lead, usd_per_device_hour } in &option.buy {
                check(&key, (*nodes).into(), (1..=NODES_MAX).contains(nodes), "1 to 100000 nodes")?;
                for months in [order, lead] {
                    check(&key, (*months).into(), *months <= MONTHS_MAX, "order and lead as 0 to 60 months")?;
                }
                check_price(&key, *usd_per_device_hour)?;
            }
        }
        Ok(())
    }

    /// Returns what an option costs over all months, in dollars: the devices that are `there`, those that are bought, on nodes of so
    /// many, and stored data as far as there is room.
    #[must_use]
    pub fn cost(&self, option: &PurchaseOption, outlook: Outlook, there: u32, devices_per_node: u32) -> f64 {
        let devices = f64::from(there) * self.usd_per_device_hour * HOURS_PER_MONTH;
        let stored = |month: u32| {
            let stored = self.storage.as_ref();
            stored.map_or(0.0, |data| data.at(month, outlook).min(data.capacity_tib) * data.usd_per_tib_month)
        };
        (0..self.months).map(|month| devices + option.cost(month, devices_per_node) + stored(month)).sum()
    }

    /// Returns how many times the jobs of a queue there are in a month, beside the growth of all jobs.
    #[must_use]
    pub fn team_factor(&self, queue: &str, month: u32, outlook: Outlook) -> f64 {
        let of_team = |team: &Team| {
            let times = if month >= team.from { team.times } else { 1.0 };
            team.growth.factor(month, outlook) * times
        };
        self.teams.iter().filter(|team| team.queue == queue).map(of_team).product()
    }
}

fn check_price(key: &str, price: f64) -> Result<(), RoadmapError> {
    check(key, price, (0.0..=1e6).contains(&price), "dollars, 0 or more")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
months = 12
wait_p95_hours = 2
[growth]
jobs = [0.0, 0.04, 0.08]
sizes = 0.01
[[team]]
queue = 'research'
from = 6
times = 1.5
[storage]
now_tib = 100
growth = 0.1
capacity_tib = 200
[[option]]
name = 'four nodes'
buy = [{nodes = 4, order = 2, lead = 3, usd_per_device_hour = 2.0}]
";

    #[test]
    fn a_file_says_how_much_there_is_in_which_month() {
        let roadmap = Roadmap::read(FILE).expect("sound");
        let jobs = roadmap.growth.jobs.expect("named");
        assert_eq!(Outlook::ALL.map(|outlook| jobs.factor(2, outlook)), [1.0, 1.04_f64.powi(2), 1.08_f64.powi(2)]);
        assert_eq!(roadmap.team_factor("research", 5, Outlook::Likely), 1.0);
        assert_eq!(roadmap.team_factor("research", 6, Outlook::Likely), 1.5);
        assert_eq!(roadmap.team_factor("others", 6, Outlook::Likely), 1.0);
        let option = &roadmap.options[0];
        assert_eq!((option.nodes(4), option.nodes(5)), (0, 4));
        assert_eq!((option.cost(4, 8), option.cost(5, 8)), (0.0, 4.0 * 8.0 * 2.0 * 730.0));
        let stored = roadmap.storage.expect("named");
        assert_eq!(
            (stored.full_in(7, Outlook::High), stored.full_in(12, Outlook::High)),
            (None, Some(8)),
            "1.1^7.27 = 2"
        );
        let priced = Roadmap { months: 6, usd_per_device_hour: 1.0, ..roadmap.clone() };
        let expected = 6.0 * 16.0 * 730.0 + 4.0 * 8.0 * 2.0 * 730.0;
        assert_eq!(
            priced.cost(&priced.options[0], Outlook::Likely, 16, 8),
            expected,
            "the purchase is there for a month"
        );
        assert_eq!(Roadmap::read("").expect("sound"), Roadmap::default());
    }

    #[test]
    fn a_growth_is_fitted_to_weeks_with_its_range() {
        let exact: Vec<f64> = (0..20).map(|week| 100.0 * 1.01_f64.powi(week)).collect();
        let fitted = Growth::fitted(&exact).expect("enough weeks");
        let expected = 1.01_f64.powf(365.25 / 84.0) - 1.0;
        for rate in [fitted.low, fitted.likely, fitted.high] {
            assert!((rate - expected).abs() < 1e-9, "{fitted:?}");
        }
        let noisy = [1.0, 1.5, 1.0, 1.5, 1.2, 1.7];
        let fitted = Growth::fitted(&noisy).expect("enough weeks");
        // The slope of the logarithms and its standard error by scipy.stats.linregress.
        let (slope, error) = (0.068_262_163_127_896_76, 0.050_004_455_950_704_07);
        let rate = |slope: f64| (slope * 365.25 / 84.0).exp() - 1.0;
        assert!((fitted.likely - rate(slope)).abs() < 1e-9, "{fitted:?}");
        assert!((fitted.low - rate(slope - 1.281_551_565_544_6 * error)).abs() < 1e-9, "{fitted:?}");
        assert!((fitted.high - rate(slope + 1.281_551_565_544_6 * error)).abs() < 1e-9, "{fitted:?}");
        assert_eq!(Growth::fitted(&noisy[..5]), None);
        assert_eq!(Growth::fitted(&[1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), None);
    }

    #[test]
    fn what_cannot_be_meant_names_its_key() {
        let check = |text: &str, part: &str| {
            let message = Roadmap::read(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("months = 0", "`months` is 0: write 1 to 60");
        check("[growth]\njobs = 4", "`growth.jobs` is 4: write a share a month");
        check("[growth]\njobs = [0.1, 0.0, 0.2]", "in this order");
        check("[growth]\njob = 0.1", "job");
        check("wait_p95_hours = 0", "hours above 0");
        check("[storage]\nnow_tib = 0\ngrowth = 0\ncapacity_tib = 1", "`storage.now_tib` is 0");
        check("[[team]]\nqueue = 'a'\ntimes = -1", "team \"a\"");
        let purchase = "[[option]]\nname = 'x'\nbuy = [{nodes = 0, order = 0, lead = 0, usd_per_device_hour = 1.0}]";
        check(purchase, "`option \"x\"` is 0: write 1 to 100000 nodes");
    }
}
