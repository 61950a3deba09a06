//! What devices cost beside their price, and the time of people, are noted with the prices of then, and in the bill of whom they are
//! charged to.

use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{JobId, Timestamp};
use gangline_execution::protocol::{FaultCause, NodeFinding};
use gangline_orchestration::HealthPolicy;
use gangline_specs::config::{Billing, Config};
use gangline_store::rebuild::rebuild;

use super::{Supervisor, World, fault, spec};
use crate::views::{By, Views};

const SECOND: Duration = Duration::from_secs(1);

/// A second of a device costs $0.001 by its price, $0.0001 for the network, $0.0005 for support, and $0.0001 for the energy of 1 kW, a
/// tenth of that while nobody holds it.
const BILLING: &str = "[[overhead]]\nline = 'network'\nusd_per_device_hour = '0.36'\n\
    [[overhead]]\nline = 'support'\nshare_of_price = 0.5\n\
    [energy]\nusd_per_kwh = '0.36'\n[[energy.device]]\naccelerator = 'cpu'\nwatts = 1000\nidle_watts = 100\n\
    [people]\nusd_per_hour = '90'\nhours_per_failed_job = 0.5\nhours_per_node_fault = 2\n";

fn world() -> World {
    let mut world = World::new(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]);
    world.sharing.health = Some(HealthPolicy::DEFAULT);
    world.crash_and_restart();
    set(&mut world, Config::parse(BILLING).expect("a sound file").billing);
    world
}

/// Nodes are looked through every ten seconds.
fn set(world: &mut World, billing: Billing) {
    world.actor().options.billing = billing;
    world.pass(11 * SECOND);
}

fn views(world: &mut World) -> Views {
    let folder = world.folder.path().to_owned();
    Views::new(world.actor().journal.reader(), folder)
}

fn bill(world: &mut World, (from, to): (Timestamp, Timestamp), by: By) -> api::CostReport {
    let now = world.now;
    views(world).cost_report(Period { from, to }, by, false, now).expect("the read models are readable")
}

/// Runs a job on one node for so many seconds, after which it fails for good.
fn fail(world: &mut World, seconds: u32) -> (JobId, String) {
    let mut wanted = spec("fails", 1, 1);
    wanted.recovery.max_faults = 0;
    let job = world.submit(wanted);
    let launched = world.launch().remove(0);
    let now = world.now;
    let mut supervisor = Supervisor::new(&launched, now);
    supervisor.runs(now).tell(world);
    world.pass(SECOND * seconds);
    let now = world.now;
    supervisor.ends(now, fault(FaultCause::Exit { code: 1 }, now)).tell(world);
    assert_eq!(world.show(job).state, api::JobState::Failed);
    world.pass(SECOND);
    (job, launched.node.clone())
}

/// Returns the lines beside device time, in micro-dollars.
fn beside(group: &api::CostGroup) -> Vec<(&str, i64)> {
    let lines = group.lines.iter().filter(|line| line.gpu_seconds == 0.0);
    lines.map(|line| (line.line.as_str(), line.cost_nano_dollars / 1_000)).collect()
}

fn group<'a>(report: &'a api::CostReport, name: &str) -> &'a api::CostGroup {
    report.groups.iter().find(|group| group.name == name).unwrap_or_else(|| panic!("no {name} in {report:?}"))
}

#[test]
fn whoever_holds_devices_pays_what_they_cost_beside_their_price() {
    let mut world = world();
    let begin = world.now;
    let (job, node) = fail(&mut world, 100);
    let end = world.now;
    let report = bill(&mut world, (begin, end), By::Queue);
    let paid = [("network", 10_000), ("support", 50_000), ("energy", 10_000), ("people", 45_000_000)];
    assert_eq!(beside(group(&report, "research")), paid);
    // Of 4 devices for 101 seconds, 304 device-seconds nobody held.
    let idle = [("network", 30_400), ("support", 152_000), ("energy", 3_040)];
    assert_eq!(beside(group(&report, "(idle)")), idle);
    assert_eq!(report.capacity_seconds, "404.000000000");
    let sum: i64 = report.groups.iter().map(|group| group.cost_nano_dollars).sum();
    assert_eq!((sum, report.total.cost_nano_dollars), (sum, sum));
    assert!((report.total.people_hours - 0.5).abs() < 1e-12 && report.total.kilowatt_hours > 0.0);

    let cost = views(&mut world).job_cost(job, end).expect("readable").expect("it is there");
    assert_eq!(beside(&cost.total), paid);
    assert_eq!(beside(&cost.attempts[0]), paid[..3], "people look after the job");
    let lost: Vec<&str> = cost.losses.iter().map(|loss| loss.line.as_str()).collect();
    assert_eq!(lost, ["people", "idle_while_held"], "network, support and energy are no loss of their own");

    let by_node = bill(&mut world, (begin, end), By::Node);
    assert_eq!(beside(group(&by_node, "(people)")), paid[3..]);
    assert_eq!(beside(group(&by_node, &node)), [("network", 10_100), ("support", 50_500), ("energy", 10_010)]);

    let usage = views(&mut world).cost_usage(Period { from: begin, to: end }, end).expect("readable");
    let of_job = usage.rows.iter().filter(|row| row.job == Some(job.to_string()));
    let prices = of_job.filter_map(|row| {
        let price = row.unit_price.as_ref()?;
        Some((row.line.line.as_str(), row.node.as_str(), price.unit.as_str(), price.nano_dollars))
    });
    let mut prices: Vec<_> = prices.collect();
    prices.sort_unstable();
    let id = job.to_string();
    let expected = [
        ("energy", node.as_str(), "Kilowatt-Hours", 360_000_000),
        ("network", &node, "GPU-Hours", 360_000_000),
        ("people", &id, "Hours", 90_000_000_000),
        ("support", &node, "GPU-Hours", 1_800_000_000),
    ];
    assert_eq!(prices, expected);
}

#[test]
fn a_nodes_fault_takes_people_once_and_is_the_platforms() {
    let mut world = world();
    let begin = world.now;
    let finding = NodeFinding { place: "kernel-log XID".to_owned(), measured: "XID 79".to_owned() };
    world.agent_found("n2", finding).expect("the node is there");
    world.pass(11 * SECOND);
    world.pass(11 * SECOND);
    let period = (begin, world.now);
    assert_eq!(beside(group(&bill(&mut world, period, By::Queue), "(platform)")), [("people", 180_000_000)]);
    let by_node = bill(&mut world, period, By::Node);
    assert_eq!(beside(group(&by_node, "n2")).last(), Some(&("people", 180_000_000)));
    assert!(!by_node.groups.iter().any(|group| group.name == "(people)"));
}

#[test]
fn prices_are_those_of_then_and_read_models_are_made_again_from_the_journal() {
    let mut world = world();
    let begin = world.now;
    fail(&mut world, 50);
    let changed = world.now;
    set(&mut world, Billing::default());
    fail(&mut world, 50);
    let end = world.now;
    let of = |world: &mut World, period| {
        let report = bill(world, period, By::Queue);
        beside(group(&report, "research")).into_iter().map(|(line, cost)| (line.to_owned(), cost)).collect::<Vec<_>>()
    };
    assert_eq!(of(&mut world, (changed, end)), [], "nothing is charged beside the price any more");
    let before = of(&mut world, (begin, end));
    assert_eq!(before.last(), Some(&("people".to_owned(), 45_000_000)), "{before:?}");
    world.stop();
    let database = world.database();
    database.execute("DELETE FROM incidents", []).expect("the statement is sound");
    database.execute("UPDATE capacity SET overheads = NULL WHERE node = 'n3'", []).expect("the statement is sound");
    drop(database);
    let made = rebuild(world.folder.path(), false).expect("nobody holds the folder");
    let told = ["what node n3 offered is damaged or missing", "the failure of job-1 is damaged or missing"];
    assert_eq!(made.differences, told);
    world.open().expect("the folder opens again");
    assert_eq!(of(&mut world, (begin, end)), before);
}
