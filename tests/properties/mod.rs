//! Properties of the scheduling engine under seeded random histories.
//!
//! A seed gives a history: nodes come, go, drain and change; jobs of random shapes are submitted, started, stopped,
//! crashed and cancelled; time goes by; the control plane dies and comes back from its journal. After every event the
//! engine is compared with a second set of books ([`shadow`]) that judges each answer ([`judge`]), and with the checks of
//! the test at hand ([`checks`]). What fails is shrunk ([`shrink`]) and printed as Rust, to be pasted into `regressions`.
//!
//! `GANGLINE_SEEDS=10000` tries more histories; `GANGLINE_SEED=42` tries one.

mod action;
mod checks;
mod judge;
mod network;
mod preemption;
mod regressions;
mod shadow;
mod shrink;
mod world;

use std::ops::Range;

use action::{Action, history};
use checks::{BOOKS, JOURNAL, LOST_DECISIONS, NOTHING_CHANGES, REASONS};
use gangline_orchestration::{Decision, Fate};
use shrink::shrink;
use world::{Check, ensure, run};

/// Histories tried by each test unless `GANGLINE_SEEDS` says otherwise.
const SEEDS: u64 = 1_000;
/// Actions in a history.
const ACTIONS: usize = 120;

fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a seed and their count are numbers"));
    match number("GANGLINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("GANGLINE_SEEDS").unwrap_or(SEEDS),
    }
}

/// What a person needs to know about a seed whose history breaks a property; none if it keeps all.
fn report(seed: u64, check: Check) -> Option<String> {
    let whole = history(seed, ACTIONS);
    let broken = run(&whole, check).err()?;
    let fails = |part: &[Action]| run(part, check).is_err_and(|other| other.property == broken.property);
    let shortest = shrink(&whole, fails);
    let detail = run(&shortest, check).err().map_or(broken.detail, |broken| broken.detail);
    let lines: String = shortest.iter().map(|action| format!("    {action:?},\n")).collect();
    Some(format!(
        "GANGLINE_SEED={seed} breaks \"{}\":\n{detail}\nthe shortest history that does ({} of {} actions):\n[\n{lines}]",
        broken.property,
        shortest.len(),
        whole.len()
    ))
}

fn holds_for_all_seeds(check: Check) {
    if let Some(report) = seeds().find_map(|seed| report(seed, check)) {
        panic!("{report}");
    }
}

/// Proves A-5: gangs are placed whole, on devices that nobody else holds, in strict order, on nodes that are ready; no
/// job is lost or ends twice; budgets hold; and when all have ended everything is free.
#[test]
fn the_books_balance_under_random_histories() {
    holds_for_all_seeds(BOOKS);
}

/// Proves A-4: a refusal, a decision and a wait always carry a reason, and it is true.
#[test]
fn every_waiting_job_has_a_true_reason() {
    holds_for_all_seeds(REASONS);
}

/// Proves A-2: only an event that applies changes the state.
#[test]
fn refusals_questions_stale_events_and_idle_ticks_change_nothing() {
    holds_for_all_seeds(NOTHING_CHANGES);
}

/// Proves A-3: the journal gives the state back, from its beginning and from every snapshot.
#[test]
fn replay_gives_the_state_before_the_crash() {
    holds_for_all_seeds(JOURNAL);
}

/// Proves A-3: what was decided but not yet written is decided again.
#[test]
fn lost_decisions_are_decided_again() {
    holds_for_all_seeds(LOST_DECISIONS);
}

/// Proves A-1: the same seed and events give the same bytes.
#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in seeds() {
        let trace = || run(&history(seed, ACTIONS), BOOKS).map(|world| world.trace);
        let (first, second) = (trace(), trace());
        assert!(first == second, "GANGLINE_SEED={seed} gives different answers");
        assert!(first.is_ok_and(|text| text.len() > 1_000), "GANGLINE_SEED={seed} hardly did anything");
    }
}

/// Random histories are worth something only if they get everywhere.
#[test]
fn the_histories_reach_every_decision_and_refusal() {
    let traces: Vec<String> =
        (0..SEEDS).filter_map(|seed| run(&history(seed, ACTIONS), BOOKS).ok()).map(|world| world.trace).collect();
    let words = [
        "Place {",
        "Stop {",
        "Requeue {",
        "End {",
        "reason: Cancelled",
        "TimeLimit(",
        "PeerEnded",
        "reason: Fault {",
        "reason: Asked",
        "Orphaned",
        "fate: Succeeded",
        "fate: Cancelled",
        "TimedOut",
        "fate: DoNotRestart",
        "FaultsExhausted",
        "NoProgress",
        "NotRetried",
        "kept_since: Some",
        "rung: Elsewhere, in_place: Some",
        "RequeuesExhausted",
        "Err(UnknownJob",
        "Err(UnknownNode",
        "Err(LostNode",
        "Err(Stale",
        "Err(NeverFits",
        "Err(QueueFull",
        "Err(ClusterFull",
    ];
    for word in words {
        let reached = traces.iter().filter(|trace| trace.contains(word)).count();
        assert!(reached >= 3, "only {reached} of {SEEDS} histories reach {word}");
    }
}

/// A property that is false: the report has to name the seed and need no more than some nodes, a job and its end.
#[test]
fn a_broken_property_is_reported_with_its_seed_and_a_short_history() {
    let nobody_succeeds = Check {
        each: |taken| {
            let is_success =
                |d: &Decision| if let Decision::End { fate, .. } = d { *fate == Fate::Succeeded } else { false };
            let any = taken.outcome.as_ref().is_ok_and(|decisions| decisions.iter().any(is_success));
            ensure("nobody succeeds", !any, || "one did".to_owned())
        },
        end: |_| Ok(()),
    };
    let text = (0..SEEDS).find_map(|seed| report(seed, nobody_succeeds)).expect("some job succeeds");
    assert!(text.contains("GANGLINE_SEED=") && text.contains("breaks \"nobody succeeds\":\none did"), "{text}");
    let actions: Vec<&str> = text.lines().filter(|line| line.starts_with("    ")).collect();
    assert!(actions.len() <= 6, "not short: {text}");
    let is_known =
        |line: &str| ["Join(", "Submit(", "End {", "EndAll {"].iter().any(|word| line.trim().starts_with(word));
    assert!(actions.iter().all(|line| is_known(line)), "{text}");
}
