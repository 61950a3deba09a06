//! Tests of alerts, by what comes in and out.

mod file;
mod flow;
mod messages;
mod random;

use std::time::Duration;

use gangline_base::{JobId, NodeName, Timestamp};

use super::*;

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// A rule that breaks above 10 and is clear at 5, with these times in seconds.
fn rule(hold: u64, clear_hold: u64) -> Rule {
    Rule {
        name: "hot".to_owned(),
        measure: Measure::Metric("heat".to_owned()),
        bound: Bound::Above(10.0),
        clear: 5.0,
        hold: Duration::from_secs(hold),
        clear_hold: Duration::from_secs(clear_hold),
        severity: Severity::Warning,
        summary: "{subject} has {value}: {parts}".to_owned(),
        hint: "cool it".to_owned(),
    }
}

/// Readings of a job's ranks.
fn heat(job: u64, values: &[f64]) -> Vec<Reading> {
    let reading = |(rank, value): (usize, &f64)| Reading {
        measure: Measure::Metric("heat".to_owned()),
        subject: Subject::Job(JobId(job)),
        part: Some(format!("rank {rank}")),
        value: *value,
    };
    values.iter().enumerate().map(reading).collect()
}

/// The states of all alerts, firing ones first.
fn states(engine: &Engine) -> Vec<State> {
    engine.overview().alerts.iter().map(|(alert, _)| alert.state).collect()
}
