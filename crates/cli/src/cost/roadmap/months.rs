//! The months to come, simulated: those of each option and outlook side by side on all cores.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gangline_accounting::procurement::{Growth, Outlook, PurchaseOption, Roadmap};
use gangline_base::NodeName;
use gangline_orchestration::NodeSpec;
use gangline_simulator::{
    BadRows, Charges, FaultSpec, LimitModel, MuriQuirk, Options, PolicyName, Sample, Scale, Workload, simulate_warm,
};

use super::{DAY_SECONDS, Outcome};
use crate::failure::Failure;
use crate::simulate::input::{Cluster, failed};

/// The days of a month that are simulated: a week, and before it days in which the cluster fills up.
const WINDOW_DAYS: u32 = 7 + 2;
const WARM_UP: Duration = Duration::from_hours(2 * 24);
/// The draws of days of which one is taken.
const SEEDS: u64 = 16;
/// The jobs that are simulated in all, about; where months have more, not each month is simulated.
const JOBS_IN_ALL: f64 = 800_000.0;
/// The most nodes that are advised, as a multiple of those that there are.
const ADVISED_MAX: u32 = 64;

/// What the months to come are made of.
pub(super) struct Future {
    /// Where the past comes from.
    pub(super) name: String,
    pub(super) cluster: Cluster,
    pub(super) sample: Sample,
    pub(super) roadmap: Roadmap,
    /// The months that are simulated.
    pub(super) months: Vec<u32>,
    /// The most devices of a node.
    pub(super) node_devices: u32,
    jobs: Growth,
    seed: u64,
}

/// A month of an option, simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Month {
    pub(super) number: u32,
    pub(super) devices: u32,
    /// The devices that jobs would hold on average if none had to wait.
    pub(super) wanted: f64,
    /// The share of the devices' time that jobs held.
    pub(super) busy: f64,
    /// Seconds that half of the jobs waited at most, and 95 %; infinite where more is wanted than there is, so that the line
    /// only grows.
    pub(super) wait_p50: f64,
    pub(super) wait_p95: f64,
    /// The share of the jobs that the cluster couldn't hold at all.
    pub(super) too_large: f64,
}

/// What keeps waits short until the last month.
#[derive(Clone, Copy, Debug)]
pub(super) struct Advice {
    /// Nodes in addition to those that there are.
    pub(super) nodes: u32,
    /// The month from which they are needed.
    pub(super) month: u32,
}

impl Month {
    /// Reports whether more than 5 % of the jobs wait longer than they may: a job that has no place waits for ever.
    pub(super) fn is_short(&self, roadmap: &Roadmap) -> bool {
        self.wait_p95 > roadmap.wait_p95_hours * 3_600.0 || self.too_large > 0.05
    }
}

impl Future {
    pub(super) fn new(
        (name, cluster): (String, Cluster),
        sample: Sample,
        (roadmap, jobs): (Roadmap, Growth),
        seed: u64,
    ) -> Result<Future, Failure> {
        let node_devices = cluster.nodes.iter().map(|node| node.capacity.accelerators).max().unwrap_or(0);
        if node_devices == 0 {
            return Err(Failure::local("the cluster has no devices", "name another with --cluster NODESxGPUS"));
        }
        // What the past wanted on average is the best guess of what days to come want, so days are drawn that want about that.
        let mean: f64 = sample.wanted_by_queue().values().sum();
        let unlike = |seed: &u64| {
            let drawn = sample.draw(&Scale::SAME, WINDOW_DAYS, node_devices, *seed);
            (wanted(&drawn) - mean).abs()
        };
        let seeds = (0..SEEDS).map(|number| seed.wrapping_mul(SEEDS).wrapping_add(number));
        let seed = seeds.min_by(|one, other| unlike(one).total_cmp(&unlike(other))).unwrap_or(seed);
        let mut future = Future { name, cluster, sample, roadmap, months: Vec::new(), node_devices, jobs, seed };
        future.months = future.chosen_months();
        Ok(future)
    }

    /// Returns the devices that there are.
    pub(super) fn devices(&self) -> u32 {
        self.cluster.nodes.iter().map(|node| node.capacity.accelerators).sum()
    }

    /// Returns the months that are simulated: all, or every second, third, sixth or twelfth, and the last.
    fn chosen_months(&self) -> Vec<u32> {
        let last = self.roadmap.months;
        let every = |step: u32| {
            let mut months: Vec<u32> = (0..=last).step_by(step as usize).collect();
            if months.last() != Some(&last) {
                months.push(last);
            }
            months
        };
        let per_window = self.sample.jobs_per_day() * f64::from(WINDOW_DAYS);
        let all = |months: &[u32]| {
            let factor = |month: u32| Outlook::ALL.map(|outlook| self.jobs.factor(month, outlook)).iter().sum::<f64>();
            let jobs: f64 = months.iter().map(|month| factor(*month) * per_window).sum();
            jobs * (self.roadmap.options.len() + 1) as f64
        };
        let mut steps = [1, 2, 3, 6, 12].into_iter().map(every);
        let few = steps.clone().find(|months| all(months) <= JOBS_IN_ALL);
        few.or_else(|| steps.next_back()).unwrap_or_default()
    }

    /// Simulates options.
    pub(super) fn follow(&self, options: Vec<PurchaseOption>) -> Result<Vec<Outcome>, Failure> {
        let of_course = |option: usize| {
            let outlooks = Outlook::ALL.into_iter();
            outlooks.flat_map(move |outlook| self.months.iter().map(move |month| (option, outlook, *month)))
        };
        let cases: Vec<(usize, Outlook, u32)> = (0..options.len()).flat_map(of_course).collect();
        let months = in_parallel(cases.len(), |case| {
            let (option, outlook, month) = cases[case];
            self.month(outlook, month, options[option].nodes(month))
        })?;
        let mut months = months.chunks(self.months.len()).map(<[Month]>::to_vec);
        let outcome = |option| Outcome { option, months: months.by_ref().take(Outlook::ALL.len()).collect() };
        Ok(options.into_iter().map(outcome).collect())
    }

    /// Simulates a month with so many nodes in addition.
    fn month(&self, outlook: Outlook, number: u32, bought: u32) -> Result<Month, Failure> {
        let Roadmap { growth, .. } = &self.roadmap;
        let queues = self.sample.wanted_by_queue().into_keys();
        let scale = Scale {
            jobs: self.jobs.factor(number, outlook),
            sizes: growth.sizes.factor(number, outlook),
            durations: growth.durations.factor(number, outlook),
            queues: queues.map(|queue| (queue.to_owned(), self.roadmap.team_factor(queue, number, outlook))).collect(),
        };
        // The same days for each option and outlook, so that nothing but these makes a difference.
        let workload = self.sample.draw(&scale, WINDOW_DAYS, self.node_devices, self.seed);
        let nodes = self.nodes(bought);
        let options = Options {
            policy: PolicyName::Gangline,
            charges: Charges::FREE,
            limits: LimitModel::Users,
            high_share: 0.0,
            faults: FaultSpec::NONE,
            seed: self.seed,
            oversized: BadRows::Skip,
            sharing: self.cluster.sharing.clone(),
            quirk: MuriQuirk::Without,
        };
        let (wanted, devices) = (wanted(&workload), nodes.iter().map(|node| node.capacity.accelerators).sum());
        if wanted >= f64::from(devices) {
            let (wait_p50, wait_p95) = (f64::INFINITY, f64::INFINITY);
            return Ok(Month { number, devices, wanted, busy: 1.0, wait_p50, wait_p95, too_large: 0.0 });
        }
        let summary = simulate_warm(&workload, &nodes, &options, WARM_UP).map_err(|error| failed(&error))?;
        let (jobs, left_out) = (summary.jobs as f64, summary.skipped as f64);
        Ok(Month {
            number,
            devices,
            wanted,
            busy: summary.utilisation_of_arrivals,
            wait_p50: summary.queue_seconds.p50,
            wait_p95: summary.queue_seconds.p95,
            too_large: if left_out > 0.0 { left_out / (jobs + left_out) } else { 0.0 },
        })
    }

    /// Returns the cluster's nodes and more like the largest of them.
    fn nodes(&self, bought: u32) -> Vec<NodeSpec> {
        let mut nodes = self.cluster.nodes.clone();
        let largest = nodes.iter().max_by_key(|node| node.capacity.accelerators);
        let Some(template) = largest.cloned() else { return nodes };
        let more = (0..bought).filter_map(|number| {
            let name = NodeName::new(&format!("bought-{number:05}")).ok()?;
            Some(NodeSpec { name, ..template.clone() })
        });
        nodes.extend(more);
        nodes
    }

    /// Returns, for each outlook, the fewest nodes that keep waits short in the last month; none if they are anyway.
    pub(super) fn advise(&self, as_it_is: &Outcome) -> Result<Vec<Option<Advice>>, Failure> {
        in_parallel(Outlook::ALL.len(), |outlook| {
            let short = as_it_is.months[outlook].iter().find(|month| month.is_short(&self.roadmap));
            let Some(first) = short else { return Ok(None) };
            let last = as_it_is.months[outlook].last().unwrap_or(first);
            let nodes = self.fewest_nodes(Outlook::ALL[outlook], last.wanted)?;
            Ok(nodes.map(|nodes| Advice { nodes, month: first.number }))
        })
    }

    /// Returns the fewest nodes that keep waits short in the last month, to within a tenth: demand is known less well.
    fn fewest_nodes(&self, outlook: Outlook, wanted: f64) -> Result<Option<u32>, Failure> {
        let is_enough =
            |nodes: u32| Ok::<_, Failure>(!self.month(outlook, self.roadmap.months, nodes)?.is_short(&self.roadmap));
        let there = u32::try_from(self.cluster.nodes.len()).unwrap_or(u32::MAX);
        // Fewer would hold less than is wanted.
        let mut few = (0..there.saturating_mul(ADVISED_MAX))
            .find(|nodes| f64::from((there + nodes) * self.node_devices) > wanted)
            .unwrap_or_default()
            .saturating_sub(1);
        let mut more = ((there + few) / 4).max(1);
        while !is_enough(few + more)? {
            few += more;
            more *= 2;
            if few > there.saturating_mul(ADVISED_MAX) {
                return Ok(None);
            }
        }
        let mut many = few + more;
        while many - few > (many / 10).max(1) {
            let middle = few + (many - few) / 2;
            if is_enough(middle)? { many = middle } else { few = middle }
        }
        Ok(Some(many))
    }
}

/// Returns the devices that the jobs of a window hold on average if none waits.
fn wanted(workload: &Workload) -> f64 {
    let held = workload.jobs.iter().map(|job| job.duration.as_secs_f64() * f64::from(job.gpus));
    held.sum::<f64>() / (f64::from(WINDOW_DAYS) * DAY_SECONDS as f64)
}

/// Calls a function for each number below a count, on all cores, and returns what it returned in order.
fn in_parallel<T: Send>(count: usize, call: impl Fn(usize) -> Result<T, Failure> + Sync) -> Result<Vec<T>, Failure> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<T, Failure>>>> = Mutex::new((0..count).map(|_| None).collect());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let result = call(number);
            results.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(result);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count.max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}
