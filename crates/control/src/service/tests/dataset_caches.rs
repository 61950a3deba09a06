//! What supervisors say of datasets: jobs go where their data is, and each job's record has what it asked for.

use std::time::Duration;

use gangline_api as api;
use gangline_base::{JobId, JobSpec};
use gangline_execution::protocol::agent::DatasetFetched;
use gangline_execution::protocol::{CacheReport, CachedDataset, DatasetReads, FaultCause, Outcome};

use gangline_store::rebuild::rebuild;

use super::{Supervisor, World, fault, spec};

const C4: &str = "s3://bucket/c4";

fn cache(here_bytes: u64) -> CacheReport {
    let dataset = CachedDataset { dataset: C4.to_owned(), here_bytes, bytes: 4 << 30 };
    CacheReport { folder: "/cache".to_owned(), datasets: vec![dataset] }
}

fn cached(world: &mut World, node: &str) -> Vec<(String, u64)> {
    let found = world.nodes().into_iter().find(|known| known.name == node).expect("it is there");
    found.cached_datasets.into_iter().map(|held| (held.dataset, held.here_bytes)).collect()
}

#[test]
fn a_job_goes_to_the_node_whose_cache_holds_most_of_its_data_also_after_a_restart() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
    for _ in 0..3 {
        world.submit(spec("a", 1, 1));
    }
    let now = world.now;
    let mut supervisors: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    for supervisor in &mut supervisors {
        let here = if supervisor.spec.node == "n2" { 3 << 30 } else { 1 << 30 };
        supervisor.report.cache = Some(cache(here));
        supervisor.runs(now).tell(&mut world);
        supervisor.ends(now, Outcome::Succeeded).tell(&mut world);
    }
    world.crash_and_restart();
    assert_eq!(cached(&mut world, "n2"), [(C4.to_owned(), 3 << 30)]);
    let mut reads = spec("reads", 1, 1);
    reads.datasets = [C4.to_owned()].into();
    let job = world.submit(reads.clone());
    let attempt = world.show(job).attempts.remove(0);
    assert_eq!(attempt.shares[0].node, "n2");
    assert!(attempt.placed_because.ends_with("; 3.0 GiB of its datasets are there"), "{}", attempt.placed_because);

    let now = world.now;
    let mut supervisor = Supervisor::new(&world.launch()[0], now);
    supervisor.report.cache = Some(CacheReport { datasets: Vec::new(), ..cache(0) });
    supervisor.runs(now).tell(&mut world);
    assert_eq!(cached(&mut world, "n2"), [], "it made room for others");
}

fn reads_of_c4(get: u64, list: u64, bytes: u64) -> api::DatasetReads {
    let (dataset, head, put, failed) = (C4.to_owned(), 0, 0, 0);
    api::DatasetReads { dataset, get, head, list, put, failed, bytes, in_region_bytes: 0, cross_region_bytes: 0 }
}

#[test]
fn a_jobs_record_has_what_all_its_attempts_asked_for() {
    let mut world = World::new(&[("n1", 1)]);
    let job = world.submit(spec("a", 1, 1));
    for attempt in 1..=2 {
        world.pass(Duration::from_secs(60));
        let now = world.now;
        let mut supervisor = Supervisor::new(&world.launch()[0], now);
        let reads = DatasetReads { get: 3 * attempt, head: 1, list: 1, put: 0, failed: attempt, bytes: 100 };
        supervisor.report.dataset_reads = [(C4.to_owned(), reads)].into();
        supervisor.runs(now).tell(&mut world);
        supervisor.tell(&mut world);
        let outcome = if attempt == 1 { fault(FaultCause::Exit { code: 1 }, now) } else { Outcome::Succeeded };
        supervisor.ends(now, outcome).tell(&mut world);
        world.crash_and_restart();
    }
    let expected = api::DatasetReads { head: 2, failed: 3, ..reads_of_c4(9, 2, 200) };
    assert_eq!(world.show(job).dataset_reads, [expected]);
}

/// The job pays once for a fetch, however often the agent reports it.
#[test]
fn what_was_fetched_for_a_job_that_waited_is_in_its_record_once() {
    let mut world = World::new(&[("n1", 1)]);
    world.submit(spec("first", 1, 1));
    let job = world.submit(JobSpec { datasets: [C4.to_owned()].into(), ..spec("reader", 1, 1) });
    let from = world.now.unix_nanos();
    world.pass(Duration::from_secs(60));
    let fetch = |job: JobId, dataset: &str, from: u64| DatasetFetched {
        dataset: dataset.to_owned(),
        job: job.0,
        from,
        to: from + 7,
        reads: DatasetReads { get: 5, head: 0, list: 1, put: 0, failed: 0, bytes: 100 },
    };
    // The second one is of a clock that is an hour ahead.
    let ahead = from + 3_600_000_000_000;
    world.agent_fetched("n1", vec![fetch(job, C4, from), fetch(job, C4, ahead)]);
    world.crash_and_restart();
    world.pass(Duration::from_secs(1));
    // Its answer was lost, and it tells them again; no job pays for what it doesn't read, nor one that nobody knows.
    let others = vec![fetch(job, "s3://bucket/other", from), fetch(JobId(1), C4, from), fetch(JobId(99), C4, from)];
    world.agent_fetched("n1", [vec![fetch(job, C4, from), fetch(job, C4, ahead)], others].concat());
    world.pass(Duration::from_secs(1));
    assert_eq!(world.show(job).dataset_reads, [reads_of_c4(10, 2, 200)]);
    assert_eq!(world.show(JobId(1)).dataset_reads, []);
    world.stop();
    world.database().execute("DELETE FROM requests", []).expect("rows are there");
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    let lost = made.differences.iter().filter(|line| line.starts_with("what n1 fetched for job-2 from ")).count();
    assert_eq!(lost, 2, "{:?}", made.differences);
    world.open().expect("the folder opens again");
    assert_eq!(world.show(job).dataset_reads, [reads_of_c4(10, 2, 200)]);
}
