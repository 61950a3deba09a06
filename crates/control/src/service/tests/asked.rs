//! What ranks ask of object storage is noted at their attempt's end, and in the bill of their job.

use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{Bytes, JobId, NodeName, Timestamp};
use gangline_execution::protocol::{FaultCause, Outcome};
use gangline_specs::config::RequestPrice;
use gangline_store::rebuild::rebuild;

use super::{Supervisor, World, fault, spec};
use crate::views::{By, Views};

const SECOND: Duration = Duration::from_secs(1);

fn views(world: &mut World) -> Views {
    let folder = world.folder.path().to_owned();
    Views::new(world.actor().journal.reader(), folder)
}

fn bill(world: &mut World, (from, to): (Timestamp, Timestamp), by: By) -> api::CostReport {
    let now = world.now;
    views(world).cost_report(Period { from, to }, by, false, now).expect("the read models are readable")
}

fn lines(group: &api::CostGroup) -> Vec<(&str, i64, i64, i64)> {
    let asked = group.lines.iter().filter_map(|line| {
        let count = line.requests.or(line.bytes_read)?;
        let unpriced = line.unpriced_requests.or(line.unpriced_bytes_read)?;
        Some((line.line.as_str(), count, line.cost_nano_dollars, unpriced))
    });
    asked.collect()
}

/// Runs an attempt of a gang of two nodes for so many seconds, each of which makes `get` GETs, a HEAD and a LIST and reads as many
/// bytes as it makes GETs.
fn attempt(world: &mut World, get: u64, seconds: u64, outcome: &Outcome) {
    let now = world.now;
    let mut gang: Vec<Supervisor> = world.launch().iter().map(|spec| Supervisor::new(spec, now)).collect();
    for node in &mut gang {
        node.runs(now).read(get).tell(world);
    }
    world.pass(SECOND * u32::try_from(seconds).expect("short"));
    let now = world.now;
    for node in &mut gang {
        node.ends(now, outcome.clone()).tell(world);
    }
    world.pass(SECOND);
}

fn priced(world: &mut World) {
    let dollar = |text: &str| Some(text.parse().expect("a price"));
    world.actor().options.billing.storage.requests = vec![RequestPrice {
        address: "s3://bucket".to_owned(),
        per_thousand: dollar("0.4"),
        per_thousand_lists: dollar("5"),
        per_thousand_writes: None,
        per_unit: dollar("0.09"),
        per_unit_across: dollar("0.2"),
        unit: Bytes(1_000),
        region: Some("us-east-1".to_owned()),
    }];
}

#[test]
fn requests_are_in_the_bill_of_whoever_made_them_and_any_division_of_time_sums() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    priced(&mut world);
    let begin = world.now;
    let job = world.submit(spec("reads", 2, 1));
    attempt(&mut world, 1_000, 20, &fault(FaultCause::Exit { code: 1 }, begin));
    world.pass_slowly(Duration::from_secs(60));
    attempt(&mut world, 3_000, 10, &Outcome::Succeeded);
    let all = (Timestamp::EPOCH, world.now);
    // Two attempts on two nodes: 8,000 GETs and 4 HEADs at $0.0004, 4 LISTs at $0.005, and 8,000 bytes at $0.00009.
    let expected = [
        ("requests", 8_004, 3_201_600_000, 0),
        ("list_requests", 4, 20_000_000, 0),
        ("transfer", 8_000, 720_000_000, 0),
    ];
    let report = bill(&mut world, all, By::Queue);
    let group = report.groups.iter().find(|group| group.name == "research").expect("the job's queue");
    assert_eq!(lines(group), expected);
    assert_eq!((group.requests, group.bytes_read, group.unpriced_requests), (8_008, 8_000, 0));
    let sum: i64 = group.lines.iter().map(|line| line.cost_nano_dollars).sum();
    assert_eq!(sum, group.cost_nano_dollars, "the cost is that of all lines");
    let by_node = bill(&mut world, all, By::Node);
    assert!(by_node.groups.iter().any(|group| group.name == "(requests)" && lines(group) == expected));

    let now = world.now;
    let cost = views(&mut world).job_cost(job, now).expect("readable").expect("it is there");
    assert_eq!(lines(&cost.total), expected);
    let of_attempts: Vec<i64> = cost.attempts.iter().map(|attempt| attempt.requests).collect();
    assert_eq!(of_attempts, [2_004, 6_004]);

    let cuts = [begin + SECOND * 3, begin + Duration::from_millis(7_777), begin + SECOND * 30, now];
    let mut from = Timestamp::EPOCH;
    let mut sums = [(0, 0); 3];
    for to in cuts {
        let part = bill(&mut world, (from, to), By::Queue);
        for (name, count, cost, _) in lines(&part.total) {
            let place = expected.iter().position(|line| line.0 == name).expect("a line of requests");
            sums[place] = (sums[place].0 + count, sums[place].1 + cost);
        }
        from = to;
    }
    assert_eq!(sums, expected.map(|(_, count, cost, _)| (count, cost)));

    let usage = views(&mut world).cost_usage(Period { from: all.0, to: all.1 }, now).expect("readable");
    let units: Vec<(&str, &str, i64)> = usage
        .rows
        .iter()
        .filter(|row| row.node == "s3://bucket/c4")
        .filter_map(|row| Some((row.line.line.as_str(), row.unit_price.as_ref()?)))
        .map(|(line, price)| (line, price.unit.as_str(), price.nano_dollars))
        .collect();
    let expected = [("requests", "1000 Requests", 400_000_000), ("list_requests", "1000 Requests", 5_000_000_000)];
    assert_eq!(units[..2], expected);
}

#[test]
fn bytes_from_another_region_are_told_apart_and_have_a_price_of_their_own() {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
    priced(&mut world);
    let regions = [("n1", "us-east-1"), ("n2", "eu-west-1")];
    let regions = regions.map(|(node, region)| (NodeName::new(node).expect("a name"), region.to_owned()));
    world.actor().options.billing.storage.regions.nodes = regions.into();
    let job = world.submit(spec("reads", 3, 1));
    attempt(&mut world, 1_000, 20, &Outcome::Succeeded);
    let of_job = world.show(job).dataset_reads;
    let found: Vec<_> =
        of_job.iter().map(|reads| (reads.bytes, reads.in_region_bytes, reads.cross_region_bytes)).collect();
    assert_eq!(found, [(3_000, 1_000, 1_000)], "the region of n3 isn't known");
    let all = (Timestamp::EPOCH, world.now);
    let report = bill(&mut world, all, By::Job);
    let expected = [("transfer", 2_000, 180_000_000, 0), ("cross_region_transfer", 1_000, 200_000_000, 0)];
    assert_eq!(lines(&report.total)[2..], expected);
    assert_eq!(report.total.bytes_read, 3_000);
    let now = world.now;
    let usage = views(&mut world).cost_usage(Period { from: all.0, to: all.1 }, now).expect("readable");
    let row = usage.rows.iter().find(|row| row.line.line == "cross_region_transfer").expect("a row");
    assert_eq!(row.unit_price.as_ref().map(|price| price.nano_dollars), Some(200_000_000));
}

#[test]
fn requests_without_a_price_are_not_free_and_old_ones_keep_theirs_through_a_rebuild() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    priced(&mut world);
    let job = world.submit(spec("priced", 2, 1));
    attempt(&mut world, 500, 5, &Outcome::Succeeded);
    world.actor().options.billing.storage.requests.clear();
    world.submit(spec("unpriced", 2, 1));
    attempt(&mut world, 500, 5, &Outcome::Succeeded);
    let shown = |world: &mut World| {
        let all = (Timestamp::EPOCH, world.now);
        let report = bill(world, all, By::Job);
        let of = |job: u64| {
            let group = report.groups.iter().find(|group| group.name == JobId(job).to_string()).expect("it is billed");
            lines(group)[0]
        };
        [of(job.0), of(job.0 + 1)].map(|(_, count, cost, unpriced)| (count, cost, unpriced))
    };
    let before = shown(&mut world);
    assert_eq!(before, [(1_002, 400_800_000, 0), (1_002, 0, 1_002)]);
    world.stop();
    let database = world.database();
    database.execute("DELETE FROM requests WHERE job = 1", []).expect("the row is there");
    database.execute("UPDATE requests SET to_unix_nanos = to_unix_nanos + 1 WHERE job = 2", []).expect("it is there");
    drop(database);
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    let differences =
        [1, 2].map(|job| format!("what attempt 1 of job-{job} asked of object storage is damaged or missing"));
    assert_eq!(made.differences, differences);
    world.open().expect("the folder opens again");
    assert_eq!(shown(&mut world), before);
}
