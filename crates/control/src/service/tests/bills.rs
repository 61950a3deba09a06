//! Bills are made of the ledger and of what nodes offered, which is noted as it changes.

use std::time::Duration;

use gangline_accounting::bill::Period;
use gangline_api as api;
use gangline_base::{Money, Timestamp};
use gangline_store::codec::NodeStateV1;
use gangline_store::ports::Queries as _;

use super::super::DrainWish;
use super::random::Chaos;
use super::{Supervisor, World, spec};
use crate::views::{By, Views};

/// The number of random histories.
const SEEDS: u64 = 12;
/// The number of steps in each history.
const STEPS: usize = 60;
const HOUR: Duration = Duration::from_secs(3_600);

fn views(world: &mut World) -> Views {
    let reader = world.actor().journal.reader();
    Views::new(reader, world.folder.path().to_owned())
}

fn report(world: &mut World, period: Period, by: By) -> api::CostReport {
    let now = world.now;
    views(world).cost_report(period, by, false, now).expect("the read models are readable")
}

fn offered(world: &mut World) -> Vec<(String, NodeStateV1, u32, Option<Money>)> {
    let all = (Timestamp::EPOCH, Timestamp::from_unix_nanos(u64::MAX));
    let found = world.actor().journal.reader().capacities(all).expect("the read models are readable");
    found.into_iter().map(|(_, changed)| (changed.node, changed.state, changed.devices, changed.price)).collect()
}

#[test]
fn what_nodes_offer_is_noted_once_for_each_change() {
    use NodeStateV1::{Draining, Ready};
    let mut world = World::new(&[("n1", 2)]);
    let price = offered(&mut world)[0].3;
    let change = |state| ("n1".to_owned(), state, 2, price);
    assert_eq!(offered(&mut world), [change(Ready)]);
    world.pass(HOUR);
    world.drain("n1", DrainWish::WhenFree).expect("the node is there");
    world.pass(HOUR);
    world.crash_and_restart();
    assert_eq!(offered(&mut world), [change(Ready), change(Draining)], "a start changes nothing");
    world.pass(HOUR);
    world.drain("n1", DrainWish::Undo).expect("the node is there");
    assert_eq!(offered(&mut world), [change(Ready), change(Draining), change(Ready)]);
    let now = world.now;
    let report = report(&mut world, Period { from: Timestamp::EPOCH, to: now }, By::Node);
    let lines: Vec<(&str, u64)> = report.total.lines.iter().map(|line| (line.line.as_str(), hours(line))).collect();
    assert_eq!(lines, [("idle_spare", 2), ("idle_drained", 4)], "two devices for one hour and for two");
    assert_eq!(report.groups[0].name, "n1");
}

fn hours(line: &api::CostLine) -> u64 {
    let seconds = line.exact_gpu_seconds.split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
    seconds.expect("whole seconds") / 3_600
}

#[test]
fn a_running_job_is_in_the_bill_and_an_ended_one_stays_its_users_without_its_record() {
    let mut world = World::new(&[("n1", 2)]);
    let begin = world.now;
    let job = world.submit(spec("a", 1, 1));
    let launched = world.launch().remove(0);
    let now = world.now;
    let mut supervisor = Supervisor::new(&launched, now);
    supervisor.runs(now).tell(&mut world);
    world.pass(HOUR);
    let period = Period { from: begin, to: world.now };
    let running = report(&mut world, period, By::User);
    assert_eq!((running.estimated_jobs, running.total.jobs), (1, 1));
    let user = running.groups.iter().find(|group| group.name != "(idle)").expect("its user's").name.clone();
    let now = world.now;
    supervisor.steps(now, 3).worked(700_000_000).tell(&mut world);
    supervisor.ends(now, gangline_execution::protocol::Outcome::Succeeded).tell(&mut world);
    assert!(world.stored(job).is_some());
    world.database().execute("DELETE FROM jobs", []).expect("the statement is sound");
    let ended = report(&mut world, period, By::User);
    assert_eq!(ended.estimated_jobs, 0);
    let of_user = ended.groups.iter().find(|group| group.name == user).expect("its user is known");
    assert!((of_user.gpu_seconds - 3_600.0).abs() < 1e-9, "{of_user:?}");
    assert_eq!(ended.capacity_seconds, "7200.000000000");
    assert_eq!(ended.beyond_capacity_seconds, "0.000000000");
}

/// Proves A-8 for bills of the control plane: in random histories with crashes, every device-second that the nodes offered is
/// in one line, and the bills of adjoining periods sum to the bill of both.
#[test]
fn bills_of_random_histories_sum_to_what_the_nodes_offered() {
    for seed in 0..SEEDS {
        let mut chaos = Chaos::new(7_000 + seed);
        let mut ends = vec![chaos.world.now];
        for step in 0..STEPS {
            chaos.step();
            if step % 15 == 14 {
                ends.push(chaos.world.now);
            }
        }
        for job in chaos.jobs.clone() {
            // It may have ended.
            let _ = chaos.world.cancel(job);
        }
        chaos.end_all();
        ends.push(chaos.world.now);
        let exact = |seconds: &str| seconds.replace('.', "").parse::<i128>().expect("a number");
        let time = |group: &api::CostGroup| group.lines.iter().map(|line| exact(&line.exact_gpu_seconds)).sum::<i128>();
        let cost = |group: &api::CostGroup| group.lines.iter().map(|line| line.cost_nano_dollars).sum::<i64>();
        let (first, last) = (ends[0], ends[ends.len() - 1]);
        for by in By::ALL {
            let whole = report(&mut chaos.world, Period { from: first, to: last }, by);
            let all = exact(&whole.capacity_seconds) + exact(&whole.beyond_capacity_seconds);
            assert_eq!(time(&whole.total), all, "seed {seed}, by {by}");
            assert_eq!(exact(&whole.beyond_capacity_seconds), 0, "seed {seed}");
            assert_eq!(whole.groups.iter().map(cost).sum::<i64>(), whole.total.cost_nano_dollars, "seed {seed}");
            let (mut times, mut costs) = (0, 0);
            for pair in ends.windows(2).filter(|pair| pair[0] < pair[1]) {
                let part = report(&mut chaos.world, Period { from: pair[0], to: pair[1] }, by);
                times += time(&part.total);
                costs += part.total.cost_nano_dollars;
            }
            assert_eq!((times, costs), (time(&whole.total), whole.total.cost_nano_dollars), "seed {seed}, by {by}");
        }
    }
}
