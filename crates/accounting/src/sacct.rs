//! What jobs of a Slurm cluster held, from rows of `sacct --parsable2` (sacct(1), "Job Accounting Fields"): a past for which no
//! ledger was kept. Slurm knows states and not steps, so the rows tell failed runs from others, and no more.

use std::collections::BTreeMap;

use gangline_base::{Money, Timestamp};

/// Nanoseconds of an hour.
const NANOS_PER_HOUR: i128 = 3_600_000_000_000;
/// Nanoseconds of a second.
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The name of devices whose kind Slurm doesn't say, among prices.
pub const UNTYPED: &str = "gpu";

/// Prices of a device for an hour, by the kind in `AllocTRES` (`gres/gpu:KIND`), in lower case.
pub type Prices = BTreeMap<String, Money>;

/// One row: a job, or one of its runs if `sacct --duplicates` lists all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastJob {
    /// Who ran it.
    pub user: String,
    /// The account that it was charged to.
    pub account: String,
    /// Its partition.
    pub partition: String,
    /// Its name.
    pub name: String,
    /// Its state in lower case, without what follows the first word: `cancelled by 1000` is `cancelled`.
    pub state: String,
    /// When it started.
    pub start: Timestamp,
    /// The seconds that it ran; suspended time isn't among them.
    pub elapsed: u64,
    /// Devices by kind; empty if it held none.
    pub devices: BTreeMap<String, u64>,
}

/// Device time and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastAmount {
    /// Rows.
    pub jobs: u64,
    /// Device time, in nanoseconds of one device.
    pub nanos: i128,
    /// What it cost, in nano-dollars.
    pub cost: i128,
    /// The part of the time that has no price.
    pub unpriced: i128,
}

impl PastAmount {
    /// Adds another amount.
    pub fn add(&mut self, other: PastAmount) {
        self.jobs += other.jobs;
        self.nanos += other.nanos;
        self.cost += other.cost;
        self.unpriced += other.unpriced;
    }
}

impl PastJob {
    /// Returns what the job held in a period, at prices by kind.
    #[must_use]
    pub fn amount(&self, (from, to): (Timestamp, Timestamp), prices: &Prices) -> PastAmount {
        let end = self.start.unix_nanos().saturating_add(self.elapsed.saturating_mul(NANOS_PER_SECOND));
        let start = self.start.unix_nanos().max(from.unix_nanos());
        let time = i128::from(end.min(to.unix_nanos()).saturating_sub(start));
        let mut amount = PastAmount { jobs: u64::from(time > 0), ..PastAmount::default() };
        for (kind, count) in &self.devices {
            let nanos = i128::from(*count) * time;
            amount.nanos += nanos;
            match prices.get(kind) {
                Some(price) => amount.cost += nanos.saturating_mul(i128::from(price.nano_dollars())) / NANOS_PER_HOUR,
                None => amount.unpriced += nanos,
            }
        }
        amount
    }

    /// Reports whether the job, its node or its start failed. Jobs that were cancelled, preempted or out of time aren't among
    /// them: their checkpoints may be what was wanted.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.state.as_str(), "failed" | "node_fail" | "out_of_memory" | "boot_fail")
    }
}

/// Reads the first word of a state, in lower case.
#[must_use]
pub fn state(text: &str) -> String {
    text.split([' ', '+']).next().unwrap_or_default().to_lowercase()
}

/// Reads the devices of `AllocTRES`, such as `billing=8,cpu=96,gres/gpu=8,gres/gpu:h100=8,mem=2000G,node=1`: by kind where
/// Slurm says kinds, and what is left of all devices as [`UNTYPED`].
///
/// # Errors
/// A sentence that names the part that isn't a count.
pub fn devices(tres: &str) -> Result<BTreeMap<String, u64>, String> {
    let (mut devices, mut all) = (BTreeMap::new(), 0_u64);
    // Slurm also lists gres/gpumem and gres/gpuutil.
    let is_of_devices = |part: &&str| part.starts_with("gres/gpu:") || part.starts_with("gres/gpu=");
    for part in tres.split(',').filter(is_of_devices) {
        let wrong = || format!("\"{part}\" is not a number of devices");
        let (name, count) = part.split_once('=').ok_or_else(wrong)?;
        let count: u64 = count.parse().map_err(|_| wrong())?;
        match name.strip_prefix("gres/gpu:") {
            Some(kind) => {
                let known = devices.entry(kind.to_lowercase()).or_insert(0_u64);
                *known = known.saturating_add(count);
            }
            None => all = count,
        }
    }
    let untyped = all.saturating_sub(devices.values().sum());
    if untyped > 0 {
        devices.insert(UNTYPED.to_owned(), untyped);
    }
    devices.retain(|_, count| *count > 0);
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_nanos(seconds * NANOS_PER_SECOND)
    }

    fn job(start: u64, elapsed: u64, tres: &str) -> PastJob {
        let [user, account, partition, name] = ["ada", "nlp", "h100", "gpt"].map(str::to_owned);
        let devices = devices(tres).expect("a sound list");
        PastJob { user, account, partition, name, state: state("COMPLETED"), start: at(start), elapsed, devices }
    }

    #[test]
    fn devices_are_by_kind_and_the_rest_without() {
        let of = |tres: &str| devices(tres).expect("a sound list").into_iter().collect::<Vec<_>>();
        let typed = of("billing=8,cpu=96,gres/gpu=8,gres/gpu:H100=8,gres/gpumem=12G,mem=2000G,node=1");
        assert_eq!(typed, [("h100".to_owned(), 8)]);
        assert_eq!(of("cpu=4,gres/gpu=3,gres/gpu:a100=2"), [("a100".to_owned(), 2), ("gpu".to_owned(), 1)]);
        assert_eq!(of("cpu=4,mem=8G"), []);
        assert_eq!(of(""), []);
        assert!(devices("gres/gpu:h100=many").expect_err("a refusal").contains("many"));
    }

    #[test]
    fn a_job_is_divided_at_the_ends_of_periods_and_time_without_a_price_is_told() {
        let prices = Prices::from([("h100".to_owned(), "2.50".parse().expect("a price"))]);
        let job = job(1_800, 7_200, "gres/gpu=10,gres/gpu:h100=8");
        let [first, second] = [(0, 3_600), (3_600, 86_400)].map(|(from, to)| job.amount((at(from), at(to)), &prices));
        let dollars = |amount: PastAmount| amount.cost / 1_000_000_000;
        assert_eq!((dollars(first), dollars(second)), (10, 30), "4 and 12 device-hours of the H100s");
        let whole = job.amount((at(0), at(86_400)), &prices);
        assert_eq!(whole.nanos, first.nanos + second.nanos);
        assert_eq!(whole.unpriced, 2 * 2 * NANOS_PER_HOUR);
        assert_eq!(job.amount((at(86_400), at(90_000)), &prices), PastAmount::default());
    }

    #[test]
    fn states_are_their_first_word() {
        assert_eq!(
            [state("CANCELLED by 1000"), state("NODE_FAIL"), state("CANCELLED+")],
            ["cancelled", "node_fail", "cancelled"]
        );
        let failed = |text: &str| PastJob { state: state(text), ..job(0, 1, "") }.has_failed();
        assert!(failed("OUT_OF_MEMORY") && !failed("TIMEOUT") && !failed("CANCELLED by 7") && !failed("PREEMPTED"));
    }
}
