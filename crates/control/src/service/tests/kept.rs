//! The stored form of attempts that are over.

use std::path::Path;
use std::time::Duration;

use gangline_api::JobState;
use gangline_base::JobId;
use gangline_execution::protocol::{FaultCause, Outcome};

use super::{Supervisor, World, fault, spec};
use crate::views::{Texts, to_api};
use gangline_store::model::JobRecord;

const SECOND: Duration = Duration::from_secs(1);

/// A job keeps many attempts, and its documents are rewritten with every report, so they must be small.
#[test]
fn an_attempt_that_is_over_is_shown_as_before_and_kept_in_few_bytes() {
    let mut world = World::new(&[("n1", 8), ("n2", 8)]);
    let job = world.submit(spec("gang", 2, 8));
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, world.now)).collect();
    world.pass(SECOND);
    let now = world.now;
    for supervisor in &mut gang {
        supervisor.report.marks.ranks_started = Some(now.unix_nanos());
        supervisor.report.marks.first_step = Some(now.unix_nanos());
        supervisor.runs(now).steps(now, 7).worked(1_000_000).saved(now, 5).tell(&mut world);
    }
    let diagnosis = vec!["a long line of a log".to_owned(); 10];
    let mut outcome = fault(FaultCause::Exit { code: 1 }, now);
    if let Outcome::Fault { fault } = &mut outcome {
        fault.last_lines = diagnosis;
    }
    gang[0].ends(now, outcome.clone()).tell(&mut world);
    world.pass(SECOND);
    let before = (world.show(job).attempts[0].clone(), document(&mut world, job));
    gang[1].ends(world.now, outcome).tell(&mut world);
    let specs = world.launch();
    assert_eq!(specs.len(), 2, "it begins again");
    let after = (world.show(job), document(&mut world, job));
    assert_eq!(after.0.attempts[0].shares[0], before.0.shares[0]);
    assert_eq!((after.0.attempts[0].shares[1].state.as_str(), after.0.attempts.len()), ("ended", 2));
    assert_eq!(after.0.attempts[0].shares[1].ranks, before.0.shares[1].ranks);
    assert_eq!((after.0.checkpoints.count, after.0.checkpoints.last_step), (2, Some(5)));
    let [short, long] = [&after.1, &before.1].map(|text| {
        let document: serde_json::Value = serde_json::from_str(text).expect("it is one");
        document["attempts"][0]["shares"].to_string().len()
    });
    assert!(short * 3 < long, "{short} bytes of {long}");
    // A document of an earlier release is shown in the same way.
    let old: JobRecord = serde_json::from_str(&before.1).expect("it is one");
    let show = to_api(Path::new("/data"), &old, &[], Texts::Whole);
    assert_eq!(show.attempts[0].shares, before.0.shares);
    world.crash_and_restart();
    assert_eq!(world.show(job).attempts[0], after.0.attempts[0]);
    // The view of a recovery needs both attempts.
    let mut gang: Vec<Supervisor> = specs.iter().map(|spec| Supervisor::new(spec, world.now)).collect();
    for supervisor in &mut gang {
        let now = world.now;
        supervisor.report.marks.ranks_started = Some(now.unix_nanos());
        supervisor.report.marks.first_step = Some(now.unix_nanos());
        supervisor.runs(now).steps(now, 9).tell(&mut world);
    }
    world.pass(SECOND);
    let running = world.show(job).recoveries;
    assert!(running.len() == 1 && running[0].is_complete && !running[0].phases.is_empty(), "{running:?}");
    gang.iter_mut().for_each(|supervisor| drop(supervisor.ends(world.now, Outcome::Succeeded).tell(&mut world)));
    assert_eq!(world.show(job).state, JobState::Succeeded);
    assert_eq!(world.show(job).recoveries, running);
}

fn document(world: &mut World, job: JobId) -> String {
    let sql = "SELECT doc FROM jobs WHERE job = ?1";
    world.database().query_row(sql, [job.0.cast_signed()], |row| row.get(0)).expect("it is there")
}
