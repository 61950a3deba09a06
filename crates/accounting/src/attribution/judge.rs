//! The verdict: which causes cost a job how much of its time, in the order in which they are looked for.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{Money, Phase, Timestamp};

use super::straggler::{RankWork, Slowness, Straggler, stragglers};

/// The part of the steps from which on waiting for data or for saves is named: what the field calls a stall.
const STALL_MIN: f64 = 0.05;
/// The same of communication that compute doesn't hide, of which some is usual.
const COMMUNICATION_MIN: f64 = 0.10;
/// The same of garbage collection: no training needs more.
const COLLECTION_MIN: f64 = 0.02;
/// The part of its time in which a node's processes wait for a CPU from which on the node counts as overloaded.
const CONTENTION_MIN: f64 = 0.10;
/// The part of its time in which clocks are held down from which on that is named.
const CLOCKS_MIN: f64 = 0.05;
/// Ranks that a cause names.
const RANKS_MAX: usize = 16;
/// The fewest steps of a rank on which anything is said.
const STEPS_MIN: u64 = 3;

/// What was measured of one rank in a stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankObserved {
    /// Its global rank.
    pub rank: u32,
    /// Its node.
    pub node: String,
    /// Steps that it finished.
    pub steps: u64,
    /// Time of these steps.
    pub stepping: Duration,
    /// Time of these steps in each phase that it reported.
    pub phases: BTreeMap<Phase, Duration>,
    /// Tokens of these steps, if it reports them.
    pub tokens: Option<f64>,
    /// Time in Python's garbage collector, if it reports that.
    pub collecting: Option<Duration>,
    /// How often the device's allocator had to free its cache and try again, if it reports that.
    pub allocator_retries: Option<u64>,
    /// Part of the time in which its device's clocks were held down by heat or power, if that is measured.
    pub clocks_held: Option<f64>,
    /// Part of the time in which some process of its node waited for a CPU, if that is measured.
    pub cpu_pressure: Option<f64>,
}

/// What was measured of a job in a stretch of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// When the stretch begins.
    pub from: Timestamp,
    /// Its ranks.
    pub ranks: Vec<RankObserved>,
}

/// What costs time, in the order in which it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Ranks wait for data.
    Data,
    /// Ranks are blocked by saves.
    Checkpoint,
    /// Communication that compute doesn't hide.
    Communication,
    /// Some ranks compute for longer than the others.
    Straggler,
    /// Python collects garbage.
    Collection,
    /// The device's memory is nearly full.
    Memory,
    /// Clocks are held down by heat or power.
    Clocks,
    /// Other load on the node's CPUs.
    Contention,
}

impl Kind {
    /// All kinds, in order.
    pub const ALL: [Kind; 8] = [
        Kind::Data,
        Kind::Checkpoint,
        Kind::Communication,
        Kind::Straggler,
        Kind::Collection,
        Kind::Memory,
        Kind::Clocks,
        Kind::Contention,
    ];

    /// Returns the name, as the API has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Checkpoint => "checkpoint",
            Kind::Communication => "communication",
            Kind::Straggler => "straggler",
            Kind::Collection => "garbage_collection",
            Kind::Memory => "memory_pressure",
            Kind::Clocks => "clocks",
            Kind::Contention => "host_contention",
        }
    }
}

/// Something that costs time.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// What.
    pub kind: Kind,
    /// The part of the gang's time that it costs; `None` if that can't be told.
    pub share: Option<f64>,
    /// What was measured, as a sentence without capital or full stop.
    pub evidence: String,
    /// The ranks where it shows, the worst first, at most 16.
    pub ranks: Vec<u32>,
    /// Number of further ranks.
    pub more_ranks: usize,
    /// The nodes of these ranks.
    pub nodes: Vec<String>,
    /// Since when it has shown without a break, within what was looked at.
    pub since: Timestamp,
    /// What it costs an hour, if prices are known.
    pub cost_per_hour: Option<Money>,
}

/// Why a job is slower than it could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Ranks that were looked at.
    pub ranks: usize,
    /// The fewest steps of any of them in the newest stretches.
    pub steps: u64,
    /// The mean time of a step.
    pub step: Duration,
    /// Tokens a second of all ranks that report them; `None` if none does.
    pub tokens_per_second: Option<f64>,
    /// Phases that ranks report, so that time in them can be told from others.
    pub phases: Vec<Phase>,
    /// The causes, in the order in which they are looked for.
    pub causes: Vec<Cause>,
}

/// A cause before it has a time and a price.
struct Found {
    kind: Kind,
    share: Option<f64>,
    evidence: String,
    /// The ranks, the worst first.
    ranks: Vec<u32>,
}

/// Says why a job is slower than it could be, from consecutive stretches of time, oldest first. The newest half of them is
/// judged; the older ones say since when. `price` is of all its devices for an hour. Returns `None` if its ranks made too
/// few steps.
#[must_use]
pub fn why(stretches: &[Observed], price: Option<Money>) -> Option<Verdict> {
    let newest = &stretches[stretches.len() / 2..];
    let ranks = total(newest);
    let steps = ranks.iter().map(|rank| rank.steps).min().filter(|steps| *steps >= STEPS_MIN)?;
    let shown = |kind: Kind| {
        let has = |stretch: &&Observed| found(&stretch.ranks).iter().any(|found| found.kind == kind);
        let run = stretches.iter().rev().take_while(has).last();
        run.or(newest.first()).map_or(Timestamp::EPOCH, |stretch| stretch.from)
    };
    let causes = found(&ranks).into_iter().map(|found| {
        let count = found.ranks.len().min(RANKS_MAX);
        let mut nodes: Vec<String> = Vec::new();
        for rank in &found.ranks[..count] {
            let node = ranks.iter().find(|other| other.rank == *rank).map(|rank| rank.node.clone());
            nodes.extend(node.filter(|node| !nodes.contains(node)));
        }
        Cause {
            kind: found.kind,
            share: found.share,
            evidence: found.evidence,
            more_ranks: found.ranks.len() - count,
            ranks: found.ranks[..count].to_vec(),
            nodes,
            since: shown(found.kind),
            cost_per_hour: price.zip(found.share).map(|(price, share)| part_of(price, share)),
        }
    });
    let mean = ranks.iter().map(|rank| per_step(rank.stepping, rank)).sum::<f64>() / count(ranks.len());
    Some(Verdict {
        steps,
        step: Duration::from_secs_f64(mean),
        tokens_per_second: tokens_per_second(&ranks),
        phases: phases_of(&ranks),
        causes: causes.collect(),
        ranks: ranks.len(),
    })
}

/// Returns the rate of all ranks together, in tokens a second; `None` if none of them reports tokens.
#[must_use]
pub fn tokens_per_second(ranks: &[RankObserved]) -> Option<f64> {
    let of_rank = |rank: &RankObserved| {
        let seconds = rank.stepping.as_secs_f64();
        rank.tokens.filter(|_| seconds > 0.0).map(|tokens| tokens / seconds)
    };
    ranks.iter().filter_map(of_rank).reduce(|one, other| one + other)
}

/// Adds stretches up, rank by rank.
fn total(stretches: &[Observed]) -> Vec<RankObserved> {
    let mut ranks: BTreeMap<u32, RankObserved> = BTreeMap::new();
    let worse = |one: Option<f64>, other: Option<f64>| one.into_iter().chain(other).reduce(f64::max);
    for rank in stretches.iter().flat_map(|stretch| &stretch.ranks) {
        let sum = ranks.entry(rank.rank).or_insert_with(|| RankObserved { rank: rank.rank, ..RankObserved::default() });
        sum.node.clone_from(&rank.node);
        sum.steps += rank.steps;
        sum.stepping += rank.stepping;
        for (phase, time) in &rank.phases {
            *sum.phases.entry(*phase).or_default() += *time;
        }
        sum.collecting = sum.collecting.into_iter().chain(rank.collecting).reduce(|one, other| one + other);
        sum.tokens = sum.tokens.into_iter().chain(rank.tokens).reduce(|one, other| one + other);
        let retries = sum.allocator_retries.into_iter().chain(rank.allocator_retries);
        sum.allocator_retries = retries.reduce(u64::saturating_add);
        sum.clocks_held = worse(sum.clocks_held, rank.clocks_held);
        sum.cpu_pressure = worse(sum.cpu_pressure, rank.cpu_pressure);
    }
    ranks.into_values().filter(|rank| rank.steps > 0).collect()
}

/// Returns the causes that show in one stretch, in order.
fn found(ranks: &[RankObserved]) -> Vec<Found> {
    let slow = slow_ranks(ranks);
    let by_kind = Kind::ALL.iter().map(|kind| match kind {
        Kind::Data => stall(ranks, (Kind::Data, Phase::Data), "waiting for data"),
        Kind::Checkpoint => stall(ranks, (Kind::Checkpoint, Phase::Checkpoint), "blocked by saves"),
        Kind::Communication => communication(ranks),
        Kind::Straggler => straggler(ranks, &slow),
        Kind::Collection => collection(ranks),
        Kind::Memory => memory(ranks),
        Kind::Clocks => held(ranks, Kind::Clocks),
        Kind::Contention => held(ranks, Kind::Contention),
    });
    by_kind.flatten().collect()
}

/// Time in a phase, as a part of the steps.
fn share(rank: &RankObserved, phase: Phase) -> f64 {
    part(rank.phases.get(&phase).copied().unwrap_or_default(), rank.stepping)
}

/// Ranks that are in a phase for a noticeable part of their steps. The gang waits for the worst one.
fn stall(ranks: &[RankObserved], (kind, phase): (Kind, Phase), what: &str) -> Option<Found> {
    let (worst, named) = worst_first(ranks, STALL_MIN, |rank| share(rank, phase))?;
    let rank = ranks.iter().find(|rank| rank.rank == named[0])?;
    let time = per_step(rank.phases.get(&phase).copied().unwrap_or_default(), rank);
    let step = per_step(rank.stepping, rank);
    let evidence = format!("rank {} is {what} for {} of each step of {}", rank.rank, seconds(time), seconds(step));
    Some(Found { kind, share: Some(worst), evidence, ranks: named })
}

/// What communication costs itself: the time of the rank that waits least at collectives.
fn communication(ranks: &[RankObserved]) -> Option<Found> {
    let of = |rank: &RankObserved| share(rank, Phase::Communication);
    let least = ranks.iter().min_by(|one, other| of(one).total_cmp(&of(other)))?;
    let share = of(least);
    let time = per_step(least.phases.get(&Phase::Communication).copied().unwrap_or_default(), least);
    let evidence = format!(
        "even rank {}, which waits least, communicates for {} of each step of {}",
        least.rank,
        seconds(time),
        seconds(per_step(least.stepping, least))
    );
    let all = ranks.iter().map(|rank| rank.rank).collect();
    (share >= COMMUNICATION_MIN).then_some(Found {
        kind: Kind::Communication,
        share: Some(share),
        evidence,
        ranks: all,
    })
}

fn slow_ranks(ranks: &[RankObserved]) -> Vec<Straggler> {
    let of = |rank: &RankObserved, phase: Phase| rank.phases.get(&phase).copied().unwrap_or_default();
    let work = |rank: &RankObserved| RankWork {
        rank: rank.rank,
        steps: rank.steps,
        compute: of(rank, Phase::Compute),
        data: of(rank, Phase::Data),
    };
    stragglers(&ranks.iter().map(work).collect::<Vec<_>>())
}

/// Ranks that compute for longer than the others. Those that wait for data are named with that.
fn straggler(ranks: &[RankObserved], slow: &[Straggler]) -> Option<Found> {
    let slow: Vec<&Straggler> = slow.iter().filter(|slow| slow.slowness == Slowness::Compute).collect();
    let worst = slow.first()?;
    let step = ranks.iter().find(|rank| rank.rank == worst.rank).map(|rank| per_step(rank.stepping, rank))?;
    let (own, peers) = (worst.own.as_secs_f64(), worst.peers.as_secs_f64());
    let evidence =
        format!("rank {} works {} for a step, the others {} (median)", worst.rank, seconds(own), seconds(peers));
    let lost = if step > 0.0 { ((own - peers) / step).clamp(0.0, 1.0) } else { 0.0 };
    let ranks = slow.iter().map(|slow| slow.rank).collect();
    Some(Found { kind: Kind::Straggler, share: Some(lost), evidence, ranks })
}

fn collection(ranks: &[RankObserved]) -> Option<Found> {
    let of = |rank: &RankObserved| part(rank.collecting.unwrap_or_default(), rank.stepping);
    let (worst, ranks) = worst_first(ranks, COLLECTION_MIN, of)?;
    let evidence = format!("Python's garbage collector takes {} of the steps of rank {}", percent(worst), ranks[0]);
    Some(Found { kind: Kind::Collection, share: Some(worst), evidence, ranks })
}

/// The allocator had to free its cache: the device's memory is full or fragmented. What that costs isn't measured.
fn memory(ranks: &[RankObserved]) -> Option<Found> {
    let of = |rank: &RankObserved| count_of(rank.allocator_retries.unwrap_or_default());
    let (worst, ranks) = worst_first(ranks, 1.0, of)?;
    let evidence = format!("the device's allocator of rank {} freed its cache {worst} times to find room", ranks[0]);
    Some(Found { kind: Kind::Memory, share: None, evidence, ranks })
}

/// What is measured as a part of the time, and not as a part of the steps; so what it costs can't be told.
fn held(ranks: &[RankObserved], kind: Kind) -> Option<Found> {
    let is_clocks = kind == Kind::Clocks;
    let of = |rank: &RankObserved| if is_clocks { rank.clocks_held } else { rank.cpu_pressure }.unwrap_or_default();
    let (worst, named) = worst_first(ranks, if is_clocks { CLOCKS_MIN } else { CONTENTION_MIN }, of)?;
    let node = ranks.iter().find(|rank| rank.rank == named[0]).map_or("", |rank| rank.node.as_str());
    let evidence = if is_clocks {
        format!("clocks of the device of rank {} on {node} are held down for {} of the time", named[0], percent(worst))
    } else {
        format!("processes on {node} wait for a CPU for {} of the time (pressure stall information)", percent(worst))
    };
    Some(Found { kind, share: None, evidence, ranks: named })
}

/// Returns the largest value, and the ranks whose value is at least `least`, the largest first.
fn worst_first(ranks: &[RankObserved], least: f64, of: impl Fn(&RankObserved) -> f64) -> Option<(f64, Vec<u32>)> {
    let mut named: Vec<(f64, u32)> = ranks.iter().map(|rank| (of(rank), rank.rank)).collect();
    named.retain(|(value, _)| *value >= least);
    named.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let worst = named.first()?.0;
    Some((worst, named.into_iter().map(|(_, rank)| rank).collect()))
}

fn phases_of(ranks: &[RankObserved]) -> Vec<Phase> {
    let all: BTreeMap<Phase, ()> = ranks.iter().flat_map(|rank| rank.phases.keys().map(|phase| (*phase, ()))).collect();
    all.into_keys().collect()
}

fn part(time: Duration, of: Duration) -> f64 {
    if of.is_zero() { 0.0 } else { (time.as_secs_f64() / of.as_secs_f64()).clamp(0.0, 1.0) }
}

fn per_step(time: Duration, rank: &RankObserved) -> f64 {
    time.as_secs_f64() / count_of(rank.steps.max(1))
}

/// Returns a part of an amount, to the nano-dollar above zero.
fn part_of(price: Money, share: f64) -> Money {
    // A share is a measurement with an error far above a millionth.
    let millionths = (share.clamp(0.0, 1.0) * 1e6).round();
    #[expect(clippy::cast_possible_truncation, reason = "it is from 0 to a million")]
    let millionths = millionths as i64;
    Money::from_nano_dollars(price.nano_dollars() / 1_000_000 * millionths)
}

#[expect(clippy::cast_precision_loss, reason = "nobody makes 2^53 steps")]
fn count_of(count: u64) -> f64 {
    count as f64
}

fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from).max(1.0)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn seconds(seconds: f64) -> String {
    if seconds < 0.9995 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}
