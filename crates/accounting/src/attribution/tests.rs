//! Each cause is found where it is, and none where there is none.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{Money, Phase, Timestamp};

use super::*;

/// Milliseconds of a step in a phase.
type Times<'t> = &'t [(Phase, u64)];

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(seconds)
}

/// A rank that made 40 steps of a second, in each of which it was in these phases.
fn rank(number: u32, times: Times<'_>) -> RankObserved {
    let steps = 40;
    let phases: BTreeMap<Phase, Duration> =
        times.iter().map(|(phase, millis)| (*phase, Duration::from_millis(millis * steps))).collect();
    let (node, stepping) = (format!("n{}", number / 8), Duration::from_secs(steps));
    RankObserved { rank: number, node, steps, stepping, phases, ..RankObserved::default() }
}

fn stretch(from: u64, ranks: Vec<RankObserved>) -> Observed {
    Observed { from: at(from), ranks }
}

/// A gang of 16 ranks that all do the same, but for `change`.
fn gang(times: Times<'_>, change: impl Fn(&mut RankObserved)) -> Vec<RankObserved> {
    (0..16)
        .map(|number| {
            let mut rank = rank(number, times);
            change(&mut rank);
            rank
        })
        .collect()
}

fn verdict(ranks: Vec<RankObserved>) -> Vec<(Kind, Option<u32>, Vec<u32>)> {
    let verdict = why(&[stretch(0, ranks)], None).expect("enough steps");
    let percent = |share: f64| format!("{:.0}", share * 100.0).parse().expect("a number");
    verdict.causes.into_iter().map(|cause| (cause.kind, cause.share.map(percent), cause.ranks)).collect()
}

const WELL: Times<'static> = &[(Phase::Data, 20), (Phase::Compute, 930), (Phase::Communication, 50)];

#[test]
fn nothing_is_named_of_a_job_that_runs_well() {
    assert_eq!(verdict(gang(WELL, |_| {})), []);
}

#[test]
fn data_and_saves_cost_what_the_worst_rank_waits() {
    let all: Vec<u32> = (0..16).collect();
    let data = gang(&[(Phase::Data, 300), (Phase::Compute, 700)], |_| {});
    assert_eq!(verdict(data), [(Kind::Data, Some(30), all.clone())]);
    let saves = gang(&[(Phase::Checkpoint, 100), (Phase::Compute, 900)], |_| {});
    assert_eq!(verdict(saves), [(Kind::Checkpoint, Some(10), all)]);
    let one = gang(&[(Phase::Compute, 700), (Phase::Communication, 60), (Phase::StragglerWait, 240)], |rank| {
        if rank.rank == 5 {
            *rank = super::tests::rank(5, &[(Phase::Data, 240), (Phase::Compute, 700), (Phase::Communication, 60)]);
        }
    });
    assert_eq!(verdict(one), [(Kind::Data, Some(24), vec![5])], "it isn't told as a straggler besides");
}

#[test]
fn a_slow_rank_is_told_from_communication() {
    let slow = gang(&[(Phase::Compute, 600), (Phase::Communication, 400)], |rank| {
        if rank.rank == 9 {
            *rank = super::tests::rank(9, &[(Phase::Compute, 950), (Phase::Communication, 50)]);
        }
    });
    assert_eq!(verdict(slow.clone()), [(Kind::Straggler, Some(35), vec![9])]);
    let told = why(&[stretch(0, slow)], None).expect("enough steps").causes.remove(0);
    assert_eq!(told.evidence, "rank 9 works 950 ms for a step, the others 600 ms (median)");
    assert_eq!(told.nodes, ["n1"]);
    let all = gang(&[(Phase::Compute, 600), (Phase::Communication, 400)], |_| {});
    assert_eq!(verdict(all), [(Kind::Communication, Some(40), (0..16).collect())]);
}

#[test]
fn causes_behind_slow_ranks_are_named_with_what_was_measured() {
    let behind = gang(WELL, |rank| {
        if rank.rank == 3 {
            rank.collecting = Some(Duration::from_secs(4));
            rank.allocator_retries = Some(7);
            rank.clocks_held = Some(0.5);
        }
        rank.cpu_pressure = (rank.node == "n1").then_some(0.6);
    });
    let n1 = (8..16).collect();
    let expected = [
        (Kind::Collection, Some(10), vec![3]),
        (Kind::Memory, None, vec![3]),
        (Kind::Clocks, None, vec![3]),
        (Kind::Contention, None, n1),
    ];
    assert_eq!(verdict(behind), expected);
}

#[test]
fn a_cause_says_since_when_it_has_shown_without_a_break_and_what_an_hour_of_it_costs() {
    let slow = || gang(&[(Phase::Data, 250), (Phase::Compute, 750)], |_| {});
    let well = || gang(WELL, |_| {});
    let course = [slow(), well(), slow(), slow(), slow(), slow()];
    let stretches: Vec<Observed> = (0..).zip(course).map(|(at, ranks)| stretch(at * 100, ranks)).collect();
    let price = Money::from_nano_dollars(32_000_000_000);
    let told = why(&stretches, Some(price)).expect("enough steps").causes.remove(0);
    assert_eq!((told.kind, told.since), (Kind::Data, at(200)));
    assert_eq!(told.cost_per_hour, Some(Money::from_nano_dollars(8_000_000_000)));
    assert_eq!((told.ranks.len(), told.more_ranks), (16, 0));
}

#[test]
fn too_few_steps_say_nothing_and_odd_measurements_stay_in_bounds() {
    assert_eq!(why(&[], None), None);
    let few = RankObserved { steps: 2, ..rank(0, WELL) };
    assert_eq!(why(&[stretch(0, vec![few])], None), None);
    let odd = RankObserved { stepping: Duration::ZERO, ..rank(0, &[(Phase::Data, 1)]) };
    assert_eq!(verdict(vec![odd]), []);
    let more_than_all = verdict(vec![rank(0, &[(Phase::Data, 9_000)])]);
    assert_eq!(more_than_all, [(Kind::Data, Some(100), vec![0])]);
}
