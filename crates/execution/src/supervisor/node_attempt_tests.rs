//! Tests of an attempt's state machine without processes: the actions for each input, at times that no test
//! waits for. Proves A-13 (waits and grace are bounded, an orphan stops) and A-8 (device time in reports).

use std::time::Duration;

use gangline_base::{Buckets, Bytes, GpuSeconds, Step, Timestamp, Tokens};

use super::input::{Action, Input, Kept};
use super::node_attempt::{RENDEZVOUS_WAIT_MAX, STAY_MAX, Stage};
use super::stacks::Stacks;
use crate::health::{Finding, Verdict};
use crate::protocol::{FaultCause, Orders, Outcome, SAMPLES_PER_REPORT_MAX, SampleMetric, StopOrder, SupervisorSpec};
use crate::rank_protocol::{CheckpointSaved, RankMessage, RankOrder};
use crate::shim::{RankEnd, ShimCommand, ShimEvent};

pub(super) mod tested;

pub(super) use tested::{Tested, running};
use tested::{at, meeting_point, orders, spec};

const ORPHAN_AFTER: Duration = Duration::from_secs(120);

fn ended(local: u32, ended_at: u64, end: RankEnd) -> Input {
    let at = at(ended_at).unix_nanos();
    Input::Shim(Kept::Rank(local), ShimEvent::Ended { at, end, last_lines: Vec::new(), dropped: 0 })
}

fn stop(grace_ms: u64) -> Input {
    let stop = StopOrder { grace_ms, reason: "drain".to_owned() };
    Input::Orders(Orders { stop: Some(stop), ..orders() })
}

fn to_rank(local: u32, command: ShimCommand) -> Action {
    Action::Command(Kept::Rank(local), command)
}

fn outcome(node_attempt: &Tested) -> &Outcome {
    match &node_attempt.stage {
        Stage::Ended(_, outcome) => outcome,
        other => panic!("it stands at {other:?}"),
    }
}

fn faulty_rank(node_attempt: &Tested) -> Option<u32> {
    match outcome(node_attempt) {
        Outcome::Fault { fault } | Outcome::DoNotRestart { fault } => fault.rank,
        other => panic!("{other:?} has no fault"),
    }
}

#[test]
fn a_fault_terminates_the_others_and_kills_them_again_and_again_after_the_grace() {
    let mut node_attempt = running(3);
    let actions = node_attempt.apply(at(5), ended(1, 4, RankEnd::Exit(1)));
    assert_eq!(actions, [to_rank(0, ShimCommand::Terminate), to_rank(2, ShimCommand::Terminate)]);
    assert_eq!(node_attempt.apply(at(6), ended(0, 6, RankEnd::Signal(15))), []);
    assert_eq!(node_attempt.apply(at(10_000), Input::Tick), []);
    assert_eq!(node_attempt.deadline(), at(10_005));
    assert_eq!(node_attempt.apply(at(10_005), Input::Tick), [to_rank(2, ShimCommand::Kill)]);
    assert_eq!(node_attempt.apply(at(10_006), Input::Tick), []);
    assert_eq!(node_attempt.apply(at(11_005), Input::Tick), [to_rank(2, ShimCommand::Kill)]);
    node_attempt.apply(at(11_006), ended(2, 11_006, RankEnd::Signal(9)));
    assert_eq!(faulty_rank(&node_attempt), Some(1));
}

#[test]
fn the_first_failure_by_time_counts_even_if_it_is_heard_of_later() {
    let mut node_attempt = running(3);
    node_attempt.apply(at(7), ended(2, 6, RankEnd::Exit(1)));
    node_attempt.apply(at(8), ended(0, 3, RankEnd::Signal(11)));
    node_attempt.apply(at(9), ended(1, 9, RankEnd::Signal(15)));
    assert_eq!(faulty_rank(&node_attempt), Some(0));
    let Outcome::Fault { fault } = outcome(&node_attempt) else { panic!() };
    assert_eq!((&fault.cause, fault.noticed_at), (&FaultCause::Signal { signal: 11 }, at(8).unix_nanos()));
}

#[test]
fn peers_of_a_requeued_rank_get_a_bounded_time() {
    let mut node_attempt = running(2);
    assert_eq!(node_attempt.apply(at(0), ended(0, 0, RankEnd::Exit(94))), []);
    assert_eq!(node_attempt.apply(at(29_999), Input::Tick), []);
    assert_eq!(node_attempt.apply(at(30_000), Input::Tick), [to_rank(1, ShimCommand::Terminate)]);
    assert_eq!(node_attempt.apply(at(40_000), Input::Tick), [to_rank(1, ShimCommand::Kill)]);
    node_attempt.apply(at(40_001), ended(1, 40_001, RankEnd::Signal(9)));
    assert_eq!(outcome(&node_attempt), &Outcome::Requeue);
}

#[test]
fn a_peer_that_failed_before_a_rank_left_to_be_requeued_is_the_root_cause() {
    let mut node_attempt = running(2);
    node_attempt.apply(at(5), ended(0, 4, RankEnd::Exit(94)));
    node_attempt.apply(at(6), ended(1, 3, RankEnd::Exit(2)));
    assert_eq!(faulty_rank(&node_attempt), Some(1));
}

#[test]
fn an_ordered_stop_tells_terminates_and_kills_within_the_grace() {
    let mut node_attempt = running(1);
    node_attempt.apply(at(1), Input::Connected(0));
    let tell = RankOrder::SaveAndStop { grace_ms: 1_000, reason: "drain".to_owned() };
    assert_eq!(node_attempt.apply(at(10), stop(1_000)), [Action::Tell(tell)]);
    assert_eq!(node_attempt.apply(at(20), stop(1_000)), [], "the same order comes with every answer");
    assert_eq!(node_attempt.apply(at(760), Input::Tick), [to_rank(0, ShimCommand::Terminate)]);
    assert_eq!(node_attempt.apply(at(1_010), Input::Tick), [to_rank(0, ShimCommand::Kill)]);
    node_attempt.apply(at(1_011), ended(0, 1_011, RankEnd::Signal(9)));
    assert_eq!(outcome(&node_attempt), &Outcome::Stopped);
}

#[test]
fn a_second_order_may_shorten_the_grace_and_never_lengthens_it() {
    let mut node_attempt = running(1);
    node_attempt.apply(at(0), stop(60_000));
    assert_eq!(node_attempt.apply(at(10), stop(600_000)), []);
    assert_eq!(node_attempt.deadline(), at(60_000));
    assert_eq!(node_attempt.apply(at(20), stop(0)), [to_rank(0, ShimCommand::Kill)]);
}

#[test]
fn a_rank_that_was_killed_comes_before_a_peer_that_noticed() {
    let root = |killed_at: u64, end: RankEnd| {
        let mut node_attempt = running(2);
        node_attempt.apply(at(5), ended(0, 4, RankEnd::Exit(1)));
        node_attempt.apply(at(killed_at), ended(1, killed_at, end));
        faulty_rank(&node_attempt)
    };
    assert_eq!(root(6, RankEnd::Signal(9)), Some(1), "both were seen after a standstill");
    assert_eq!(root(6, RankEnd::Signal(15)), Some(0), "that is what the supervisor sent");
    assert_eq!(root(11_000, RankEnd::Signal(9)), Some(0), "that is what the supervisor sent after the grace");
}

#[test]
fn a_fault_before_the_order_stays_a_fault_and_one_after_it_does_not_count() {
    let end_at = |ended_at: u64, end: RankEnd| {
        let mut node_attempt = running(1);
        node_attempt.apply(at(10), stop(1_000));
        node_attempt.apply(at(12), ended(0, ended_at, end));
        node_attempt
    };
    assert_eq!(faulty_rank(&end_at(9, RankEnd::Exit(1))), Some(0));
    assert_eq!(outcome(&end_at(11, RankEnd::Exit(1))), &Outcome::Stopped);
    assert_eq!(outcome(&end_at(11, RankEnd::Exit(94))), &Outcome::Requeue);
    assert_eq!(outcome(&end_at(11, RankEnd::Exit(0))), &Outcome::Succeeded);
    assert_eq!(faulty_rank(&end_at(11, RankEnd::Exit(93))), Some(0));
}

#[test]
fn without_contact_the_ranks_run_on_and_then_stop() {
    let mut node_attempt = running(1);
    node_attempt.apply(at(1_000), Input::Orders(orders()));
    let orphaned_at = at(1_000) + ORPHAN_AFTER;
    assert_eq!(node_attempt.deadline(), orphaned_at);
    assert_eq!(node_attempt.apply(at(120_999), Input::Tick), []);
    let actions = node_attempt.apply(orphaned_at, Input::Tick);
    assert!(matches!(actions[0], Action::Tell(_)), "{actions:?}");
    assert_eq!(actions[1..], [to_rank(0, ShimCommand::Terminate)]);
    node_attempt.apply(at(121_500), ended(0, 121_500, RankEnd::Signal(15)));
    assert_eq!(outcome(&node_attempt), &Outcome::Stopped);
    assert!(node_attempt.is_over(at(121_500)));
}

/// Where waiting keeps devices from others, an end that the next control plane finds on the disk isn't waited with for long.
#[test]
fn a_recorded_end_waits_only_as_long_as_its_devices_may_be_held() {
    let wait = Duration::from_secs(30);
    let ended_at = |ended_at: u64, end_wait_ms: Option<u64>, is_recorded: bool| {
        let mut node_attempt = Tested::new(SupervisorSpec { end_wait_ms, ..spec(1, 1) }, Some(meeting_point()));
        node_attempt.begin(at(0));
        node_attempt.apply(at(ended_at), ended(0, ended_at, RankEnd::Exit(0)));
        node_attempt.is_end_recorded = is_recorded;
        node_attempt
    };
    let recorded = ended_at(5_000, Some(30_000), true);
    assert_eq!(recorded.deadline(), at(5_000) + wait);
    assert!(!recorded.is_over(at(34_999)) && recorded.is_over(at(35_000)) && !recorded.is_acknowledged());
    assert!(!ended_at(5_000, Some(30_000), false).is_over(at(60_000)), "the end would be lost");
    assert!(!ended_at(5_000, None, true).is_over(at(60_000)), "it holds nothing");
    let mut heard = ended_at(5_000, Some(30_000), true);
    heard.apply(at(20_000), Input::Orders(orders()));
    assert!(!heard.is_over(at(49_999)) && heard.is_over(at(50_000)), "the control plane was there");
}

#[test]
fn the_end_waits_for_an_acknowledgement_that_can_mean_it() {
    let mut node_attempt = running(1);
    node_attempt.sent();
    node_attempt.apply(at(1), ended(0, 1, RankEnd::Exit(0)));
    let acknowledged = || Input::Orders(Orders { end_acknowledged: true, ..orders() });
    node_attempt.apply(at(2), acknowledged());
    assert!(!node_attempt.is_over(at(2)), "that answered a report from before the end");
    assert!(node_attempt.has_news());
    node_attempt.sent();
    node_attempt.apply(at(3), acknowledged());
    assert!(node_attempt.is_over(at(3)) && node_attempt.is_acknowledged());
}

#[test]
fn a_supervisor_that_is_to_stay_does_so_until_it_is_ended_and_not_for_ever() {
    let acknowledged = |stay| Input::Orders(Orders { end_acknowledged: true, stay, ..orders() });
    let staying = || {
        let mut node_attempt = running(1);
        node_attempt.apply(at(1), ended(0, 1, RankEnd::Exit(0)));
        node_attempt.sent();
        node_attempt.apply(at(2), acknowledged(true));
        assert!(!node_attempt.is_over(at(2)) && node_attempt.is_acknowledged());
        node_attempt
    };
    let mut let_go = staying();
    let_go.apply(at(3), acknowledged(false));
    assert!(let_go.is_over(at(3)));
    let mut terminated = staying();
    terminated.apply(at(3), Input::Terminated);
    assert!(terminated.is_over(at(3)));
    assert!(!staying().is_over(at(0) + STAY_MAX) && staying().is_over(at(1) + STAY_MAX));
}

#[test]
fn samples_carry_the_metric_that_the_sweep_asks_for() {
    let mut node_attempt = running(1);
    for (step, metrics) in [(1, r#"{"accuracy":0.5,"f1":0.1}"#), (2, r#"{"f1":0.2}"#), (3, r#"{"accuracy":NaN}"#)] {
        let line = format!("{{\"step\":{step},\"loss\":9,\"metrics\":{metrics}}}");
        let message = RankMessage::parse(line.as_bytes()).expect("a message");
        node_attempt.apply(at(step), Input::Message(0, message));
    }
    let metrics: Vec<_> = node_attempt.report(at(4)).samples.iter().map(|sample| sample.metric).collect();
    assert_eq!(metrics, [Some(SampleMetric::Nanos(500_000_000)), None, Some(SampleMetric::Diverged)]);
}

#[test]
fn what_a_rank_measured_and_saved_counts_if_it_is_read_after_the_end() {
    let mut node_attempt = running(1);
    node_attempt.apply(at(1), ended(0, 1, RankEnd::Exit(0)));
    node_attempt.apply(at(2), Input::ShimGone(Kept::Rank(0), RankEnd::Exit(0)));
    assert!(node_attempt.readings.is_empty());
    let message = RankMessage::parse(br#"{"step":7,"loss":1.5}"#).expect("a message");
    node_attempt.apply(at(3), Input::Message(0, message));
    assert!(!node_attempt.readings.is_empty() && node_attempt.report(at(4)).samples.is_empty());
    node_attempt.apply(at(5), Input::Message(0, saved(7)));
    assert_eq!(node_attempt.report(at(6)).checkpoint.map(|checkpoint| checkpoint.step), Some(7));
}

#[test]
fn only_faults_of_the_node_are_reported_and_each_once() {
    let finding = |subject: &str, verdict| Finding { verdict, ..Finding::fine(subject, "seen") };
    let mut node_attempt = running(1);
    node_attempt.sent();
    node_attempt.apply(at(1), Input::Checked(vec![finding("a", Verdict::Warning), finding("b", Verdict::Unknown)]));
    assert!(node_attempt.report(at(1)).findings.is_empty() && !node_attempt.has_news());
    node_attempt.apply(at(2), Input::Checked(vec![finding("c", Verdict::Failed), finding("d", Verdict::Hung)]));
    node_attempt.apply(at(3), Input::Checked(vec![finding("d", Verdict::Hung)]));
    assert!(node_attempt.has_news());
    let places: Vec<String> = node_attempt.report(at(4)).findings.into_iter().map(|finding| finding.place).collect();
    assert_eq!(places, [" c", " d"]);
}

#[test]
fn the_last_samples_are_delivered_before_the_end() {
    let mut node_attempt = running(1);
    let count = u64::try_from(SAMPLES_PER_REPORT_MAX).expect("small") + 500;
    for step in 1..=count {
        let message = RankMessage { step: Some(Step(step)), tokens: Some(Tokens(2)), ..RankMessage::default() };
        node_attempt.apply(at(step), Input::Message(0, message));
    }
    node_attempt.apply(at(count), ended(0, count, RankEnd::Exit(0)));
    assert_eq!(node_attempt.report(at(count)).samples.len(), SAMPLES_PER_REPORT_MAX);
    node_attempt.sent();
    let acknowledged = |stored| Input::Orders(Orders { end_acknowledged: true, samples_stored: stored, ..orders() });
    node_attempt.apply(at(count), acknowledged(count - 500));
    assert!(!node_attempt.is_over(at(count)));
    assert_eq!(node_attempt.report(at(count)).samples.last().map(|sample| sample.tokens), Some(count * 2));
    node_attempt.sent();
    node_attempt.apply(at(count), acknowledged(count));
    assert!(node_attempt.is_over(at(count)));
}

#[test]
fn a_gang_whose_nodes_do_not_meet_in_time_fails_as_such() {
    let mut node_attempt = Tested::new(spec(1, 2), Some(meeting_point()));
    assert_eq!(node_attempt.begin(at(0)), []);
    assert_eq!(node_attempt.report(at(0)).rendezvous, Some(meeting_point()));
    let until = at(0) + RENDEZVOUS_WAIT_MAX;
    for minute in 0..15 {
        node_attempt.apply(at(minute * 60_000), Input::Orders(orders()));
    }
    assert_eq!(node_attempt.deadline(), until);
    node_attempt.apply(until, Input::Tick);
    let Outcome::Fault { fault } = outcome(&node_attempt) else { panic!() };
    assert_eq!(fault.cause, FaultCause::Rendezvous);
}

#[test]
fn a_gang_starts_once_all_know_where_to_meet() {
    let mut node_attempt = Tested::new(spec(2, 2), None);
    assert_eq!(node_attempt.begin(at(0)), []);
    let meet = || Input::Orders(Orders { rendezvous: Some(meeting_point()), ..orders() });
    assert_eq!(node_attempt.apply(at(5), meet()), [Action::StartRanks(meeting_point())]);
    assert_eq!(node_attempt.apply(at(6), meet()), []);
}

#[test]
fn a_shim_that_vanishes_is_cleaned_up_after() {
    let mut node_attempt = running(2);
    let actions = node_attempt.apply(at(5), Input::ShimGone(Kept::Rank(1), RankEnd::Signal(9)));
    assert_eq!(actions, [Action::KillOrphans, to_rank(0, ShimCommand::Terminate)]);
    node_attempt.apply(at(6), ended(0, 6, RankEnd::Signal(15)));
    assert_eq!(node_attempt.apply(at(7), Input::ShimGone(Kept::Rank(0), RankEnd::Exit(0))), []);
    assert_eq!(faulty_rank(&node_attempt), Some(1));
}

#[test]
fn reported_device_time_sums_to_wall_time_times_devices() {
    let mut node_attempt = running(3);
    let total = |node_attempt: &mut Tested, millis: u64| Buckets::from(&node_attempt.report(at(millis)).usage).total();
    assert_eq!(total(&mut node_attempt, 500), GpuSeconds::of(3, Duration::from_millis(500)));
    node_attempt.apply(at(900), ended(0, 800, RankEnd::Exit(0)));
    node_attempt.apply(at(1_000), ended(1, 950, RankEnd::Exit(0)));
    assert_eq!(total(&mut node_attempt, 1_500), GpuSeconds::of(3, Duration::from_millis(1_500)));
    node_attempt.apply(at(2_000), ended(2, 1_900, RankEnd::Exit(0)));
    assert_eq!(total(&mut node_attempt, 99_000), GpuSeconds::of(3, Duration::from_millis(2_000)));
}

#[test]
fn what_ranks_had_begun_to_save_is_finished_before_the_end_and_reported() {
    let mut node_attempt = running(2);
    node_attempt.has_staging = true;
    node_attempt.apply(at(1), Input::Message(0, saved(4)));
    node_attempt.apply(at(5), ended(1, 5, RankEnd::Signal(9)));
    assert_eq!(node_attempt.apply(at(6), ended(0, 6, RankEnd::Signal(15))), [Action::FinishStaged]);
    assert!(matches!(node_attempt.stage, Stage::Finishing(..)));
    assert_eq!(node_attempt.apply(at(7), stop(1_000)), [], "an order to stop finds nothing to stop");
    assert_eq!(node_attempt.apply(at(200_000), Input::Tick), [], "nor does an orphan");
    let newest = CheckpointSaved { step: Step(8), bytes: Bytes(50) };
    node_attempt.apply(at(200_001), Input::StagedFinished(Some(newest)));
    assert_eq!(faulty_rank(&node_attempt), Some(1));
    let report = node_attempt.report(at(200_002));
    assert_eq!(report.checkpoint.map(|checkpoint| (checkpoint.step, checkpoint.bytes)), Some((8, 50)));
    assert_eq!((report.checkpoints, report.checkpoint_bytes), (2, 90));
}

/// Proves A-10: a disk that hangs delays no recovery for ever.
#[test]
fn finishing_saves_has_a_limit() {
    let mut node_attempt = running(1);
    node_attempt.has_staging = true;
    assert_eq!(node_attempt.apply(at(5), ended(0, 5, RankEnd::Exit(1))), [Action::FinishStaged]);
    let limit = node_attempt.deadline();
    assert!(limit > at(60_000));
    node_attempt.apply(limit, Input::Tick);
    assert_eq!(faulty_rank(&node_attempt), Some(0));
    node_attempt.apply(limit, Input::StagedFinished(None));
    assert_eq!(faulty_rank(&node_attempt), Some(0), "what comes later changes nothing");
}

/// Reports steps of all ranks, 100 ms each, from time 0 on.
fn stepping(node_attempt: &mut Tested, steps: u64) {
    for step in 1..=steps {
        for local in 0..node_attempt.spec.ranks_per_node {
            let message = RankMessage { step: Some(Step(step)), ..RankMessage::default() };
            node_attempt.apply(at(step * 100), Input::Message(local, message));
        }
    }
}

fn started(node_attempt: &mut Tested) {
    for local in 0..node_attempt.spec.ranks_per_node {
        let event = ShimEvent::Started { pid: 1_000 + local, at: at(0).unix_nanos() };
        node_attempt.apply(at(0), Input::Shim(Kept::Rank(local), event));
    }
}

#[test]
fn ranks_that_come_to_a_stand_are_looked_at_and_given_up() {
    let mut node_attempt = running(2);
    started(&mut node_attempt);
    stepping(&mut node_attempt, 10);
    assert_eq!(pass(&mut node_attempt, 1_000, 29_499), []);
    assert_eq!(node_attempt.deadline(), at(29_500));
    assert_eq!(node_attempt.apply(at(29_500), Input::Tick), [Action::LookAtStacks(vec![(0, 1_000), (1, 1_001)])]);
    let of = |rank, is_halted| Stacks { rank, is_halted, summary: vec![format!("rank {rank}")], text: String::new() };
    let actions = node_attempt.apply(at(30_000), Input::Stacks(vec![of(0, false), of(1, true)]));
    let told = |local| Action::Command(Kept::Rank(local), ShimCommand::Terminate);
    assert_eq!(actions, [told(0), told(1)]);
    let killed = |local| Action::Command(Kept::Rank(local), ShimCommand::Kill);
    assert_eq!(node_attempt.apply(at(32_000), Input::Tick), [killed(0), killed(1)]);
    node_attempt.apply(at(32_100), ended(0, 32_100, RankEnd::Signal(15)));
    node_attempt.apply(at(32_200), ended(1, 32_200, RankEnd::Signal(9)));
    let Stage::Ended(_, Outcome::Fault { fault }) = &node_attempt.stage else { panic!("{:?}", node_attempt.stage) };
    assert_eq!(fault.cause, FaultCause::Hang { silent_ms: 29_000, limit_ms: 28_500 });
    assert_eq!(
        (fault.rank, fault.last_lines.as_slice()),
        (Some(1), ["rank 0".to_owned(), "rank 1".to_owned()].as_slice())
    );
    assert_eq!(fault.last_sign_of_life, at(1_000).unix_nanos());
}

#[test]
fn a_rank_terminated_with_its_supervisor_has_not_failed() {
    let mut node_attempt = running(2);
    node_attempt.apply(at(5_000), Input::Terminated);
    node_attempt.apply(at(5_010), ended(0, 4_990, RankEnd::Signal(15)));
    node_attempt.apply(at(5_020), ended(1, 5_000, RankEnd::Signal(15)));
    assert_eq!(outcome(&node_attempt), &Outcome::Terminated);
    let mut node_attempt = running(1);
    node_attempt.apply(at(5_000), Input::Terminated);
    node_attempt.apply(at(5_010), ended(0, 4_990, RankEnd::Exit(1)));
    assert_eq!(faulty_rank(&node_attempt), Some(0), "what fails by itself does so");
}

#[test]
fn a_rank_that_has_made_its_last_step_is_not_judged() {
    let mut node_attempt = running(1);
    started(&mut node_attempt);
    node_attempt.apply(at(0), Input::Message(0, RankMessage { total_steps: Some(Step(10)), ..RankMessage::default() }));
    stepping(&mut node_attempt, 9);
    assert_eq!(node_attempt.deadline(), at(29_400));
    stepping(&mut node_attempt, 10);
    assert_eq!(node_attempt.deadline(), Timestamp::EPOCH + ORPHAN_AFTER, "nothing else is waited for");
    assert_eq!(pass(&mut node_attempt, 2_000, 60_000), []);
}

/// Lets time pass as the supervisor sees it, with a tick at least each heartbeat. Returns the actions of the
/// last tick.
fn pass(node_attempt: &mut Tested, from: u64, to: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    for time in (from..to).step_by(1_000).chain([to]) {
        assert_eq!(actions, [], "before {time}");
        actions = node_attempt.apply(at(time), Input::Tick);
    }
    actions
}

/// Proves A-13: ranks aren't blamed for a machine that slept.
#[test]
fn ranks_of_a_supervisor_that_was_away_are_excused() {
    let mut node_attempt = running(1);
    started(&mut node_attempt);
    stepping(&mut node_attempt, 10);
    assert_eq!(node_attempt.apply(at(60_000), Input::Tick), [], "it wasn't there to see a step");
    assert_eq!(pass(&mut node_attempt, 61_000, 88_499), []);
    assert!(matches!(node_attempt.apply(at(88_500), Input::Tick).as_slice(), [Action::LookAtStacks(_)]));
}

#[test]
fn a_look_that_takes_too_long_is_not_waited_for_and_ranks_that_went_on_are_left_alone() {
    let mut node_attempt = running(1);
    started(&mut node_attempt);
    stepping(&mut node_attempt, 10);
    pass(&mut node_attempt, 1_000, 29_500);
    let message = RankMessage { step: Some(Step(11)), ..RankMessage::default() };
    node_attempt.apply(at(32_000), Input::Message(0, message));
    assert_eq!(node_attempt.apply(at(32_001), Input::Stacks(Vec::new())), []);
    assert!(node_attempt.stop.is_none());
    assert_eq!(pass(&mut node_attempt, 33_000, 100_000), []);
    node_attempt.apply(at(100_000), Input::Orders(orders()));
    let next = node_attempt.deadline();
    assert_eq!(next, at(32_000 + 5 * 31_000), "the pause is a step like others now");
    assert!(matches!(pass(&mut node_attempt, 101_000, 187_000).as_slice(), [Action::LookAtStacks(_)]));
    assert_eq!(node_attempt.deadline(), at(197_000));
    assert!(matches!(pass(&mut node_attempt, 188_000, 197_000).as_slice(), [Action::Command(..)]));
}

fn saved(step: u64) -> RankMessage {
    let checkpoint = CheckpointSaved { step: Step(step), bytes: Bytes(40) };
    RankMessage { checkpoint: Some(checkpoint), ..RankMessage::default() }
}
