//! Bills by hand, and of random histories.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bucket, Buckets, Bytes, GpuSeconds, JobId, Money, NodeName, Timestamp,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;
use crate::{Allocation, book};

const HOUR: u64 = 3_600_000_000_000;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_unix_nanos(nanos)
}

fn period(from: u64, to: u64) -> Period {
    Period { from: at(from), to: at(to) }
}

fn dollars(text: &str) -> Money {
    text.parse().expect("an amount")
}

fn capacity(state: NodeState, devices: u32, price: Option<&str>) -> Capacity {
    Capacity {
        state,
        accelerator: AcceleratorKind("H100".to_owned()),
        devices,
        others: 0,
        price: price.map(dollars),
        overheads: Overheads::default(),
    }
}

fn held(job: u64, devices: u32, (from, to): (u64, u64), buckets: &[(Bucket, u64)]) -> Held<'static> {
    let mut times = Buckets::default();
    for (bucket, nanos) in buckets {
        times[*bucket] = GpuSeconds::from_nanos(u128::from(*nanos));
    }
    Held {
        job: JobId(job),
        node: "n1",
        devices,
        from: at(from),
        to: at(to),
        price: Some(dollars("2.50")),
        buckets: times,
        has_failed: false,
    }
}

/// An example by hand: 8 devices at $2.50 for 10 hours are $200. A job has 4 of them for 4 hours ($40), 3 of which are
/// compute; another node of 2 devices at $1 is drained after 5 hours.
#[test]
fn a_bill_has_what_was_held_and_what_was_idle() {
    let mut biller = Biller::new(period(0, 10 * HOUR));
    biller.offer("n1", at(0), capacity(NodeState::Ready, 8, Some("2.50")));
    biller.offer("n2", at(0), capacity(NodeState::Ready, 2, Some("1")));
    biller.offer("n2", at(5 * HOUR), capacity(NodeState::Draining, 2, Some("1")));
    let buckets = [(Bucket::Compute, 12 * HOUR), (Bucket::Restart, 4 * HOUR)];
    biller.hold("team", &held(1, 4, (HOUR, 5 * HOUR), &buckets));
    let bill = biller.finish(|_, _, _| "(idle)");
    let lines = bill.total().lines;
    let costs: Vec<(&str, String)> = lines.iter().map(|(line, a)| (line.name(), a.money().to_string())).collect();
    let expected =
        [("compute", "$30.00"), ("restart", "$10.00"), ("idle_spare", "$170.00"), ("idle_drained", "$10.00")];
    assert_eq!(costs, expected.map(|(line, cost)| (line, cost.to_owned())));
    assert_eq!(bill.total().sum(|_| true).money(), dollars("220"));
    assert_eq!((bill.capacity, bill.beyond_capacity), (i128::from(100 * HOUR), 0));
    assert_eq!(bill.groups["team"].jobs.len(), 1);
}

#[test]
fn a_failed_jobs_steps_are_a_line_of_their_own_and_a_node_without_a_price_is_not_free() {
    let mut biller = Biller::new(period(0, 2 * HOUR));
    biller.offer("n1", at(0), Capacity { others: 1, ..capacity(NodeState::Lost, 4, None) });
    let buckets = [(Bucket::Compute, HOUR), (Bucket::Idle, HOUR)];
    biller.hold((), &Held { has_failed: true, ..held(1, 2, (0, HOUR), &buckets) });
    let total = biller.finish(|_, _, _| ()).total();
    let hours: Vec<(&str, i128, i128)> = total
        .lines
        .iter()
        .map(|(l, a)| (l.name(), a.quantity / i128::from(HOUR), a.unpriced / i128::from(HOUR)))
        .collect();
    assert_eq!(
        hours,
        [("idle_while_held", 1, 0), ("failed_run", 1, 0), ("idle_broken", 4, 4), ("others", 2, 2)],
        "of 8 device-hours"
    );
}

#[test]
fn time_before_the_capacity_was_recorded_is_told() {
    let mut biller = Biller::new(period(0, 4 * HOUR));
    biller.offer("n1", at(2 * HOUR), capacity(NodeState::Ready, 1, Some("1")));
    biller.hold((), &held(1, 2, (HOUR, 3 * HOUR), &[(Bucket::Compute, 4 * HOUR)]));
    let bill = biller.finish(|_, _, _| ());
    assert_eq!(bill.beyond_capacity, i128::from(3 * HOUR), "two devices for an hour, then one beyond the other");
    assert_eq!(bill.capacity_since, Some(at(2 * HOUR)));
    assert_eq!(bill.total().sum(Line::is_unheld).quantity, i128::from(HOUR));
}

#[test]
fn shared_idle_time_follows_what_jobs_held_to_the_last_nano_dollar() {
    let mut biller = Biller::new(period(0, HOUR));
    biller.offer("n1", at(0), capacity(NodeState::Ready, 7, Some("3.33")));
    biller.hold("a", &held(1, 1, (0, HOUR), &[(Bucket::Compute, HOUR)]));
    biller.hold("b", &held(2, 2, (0, HOUR), &[(Bucket::Compute, 2 * HOUR)]));
    let own = biller.finish(|_, _, _| "(idle)");
    let mut shared = own.clone();
    shared.share_out(&"(idle)");
    assert_eq!(shared.groups.keys().copied().collect::<Vec<_>>(), ["a", "b"]);
    let idle = |group: &str| shared.groups[group].sum(Line::is_unheld);
    assert_eq!(idle("b").cost - 2 * idle("a").cost, 0, "$13.32 by one to two");
    assert_eq!(shared.total().lines, own.total().lines);

    let mut nobody = Biller::new(period(0, HOUR));
    nobody.offer("n1", at(0), capacity(NodeState::Ready, 7, Some("3.33")));
    let mut bill = nobody.finish(|_, _, _| "(idle)");
    bill.share_out(&"(idle)");
    assert!(bill.groups.contains_key("(idle)"), "nobody held anything, so it stays its owner's");
}

/// The example above with a network at $0.10, support at $0.05 and energy at $0.20 a kilowatt-hour of devices that draw 1 kW for a job
/// and 100 W otherwise. The node is offered for ten hours, and without its network for the last five of them.
#[test]
fn overheads_are_charged_to_whoever_holds_the_devices() {
    let energy = Energy { held_milliwatts: 1_000_000, unheld_milliwatts: 100_000, per_kilowatt_hour: dollars("0.20") };
    let overheads = Overheads { network: Some(dollars("0.10")), support: Some(dollars("0.05")), energy: Some(energy) };
    let mut biller = Biller::new(period(0, 10 * HOUR));
    biller.offer("n1", at(0), Capacity { overheads, ..capacity(NodeState::Ready, 8, Some("2.50")) });
    let less = Overheads { network: None, ..overheads };
    biller.offer("n1", at(5 * HOUR), Capacity { overheads: less, ..capacity(NodeState::Ready, 8, Some("2.50")) });
    let of_job = held(1, 4, (HOUR, 7 * HOUR), &[(Bucket::Compute, 24 * HOUR)]);
    biller.hold("team", &of_job);
    biller.charge(&of_job, |_, _| "team");
    biller.attend("team", at(7 * HOUR), &Incident { nanos: HOUR / 2, per_hour: dollars("90") });
    biller.attend("team", at(10 * HOUR), &Incident { nanos: HOUR, per_hour: dollars("90") });
    let bill = biller.finish(|_, _, _| "(idle)");
    let costs = |group: &str| {
        let lines = bill.groups[group].lines.iter().map(|(line, amount)| (line.name(), amount.money().to_string()));
        lines.collect::<Vec<_>>()
    };
    let expected = |lines: &[(&'static str, &str)]| -> Vec<(&str, String)> {
        lines.iter().map(|(line, cost)| (*line, (*cost).to_owned())).collect()
    };
    let of_team =
        [("compute", "$60.00"), ("network", "$1.60"), ("support", "$1.20"), ("energy", "$4.80"), ("people", "$45.00")];
    assert_eq!(costs("team"), expected(&of_team), "four hours of the network, six of all else");
    let idle = [("idle_spare", "$140.00"), ("network", "$2.40"), ("support", "$2.80"), ("energy", "$1.12")];
    assert_eq!(costs("(idle)"), expected(&idle), "24 and 56 device-hours");
    assert_eq!(bill.total().sum(Line::is_of_devices).quantity, bill.capacity, "overheads are no device time");
}

/// A random history of a node: what it offered, and what jobs held.
struct World {
    changes: Vec<(u64, Capacity)>,
    holds: Vec<Hold>,
}

struct Hold {
    span: (u64, u64),
    devices: u32,
    compute: u64,
    has_failed: bool,
}

/// Times are multiples of a number that isn't round, so that every division leaves a rest.
const STEP: u64 = 1_234_567_891;
const END: u64 = 150 * STEP;
const SEEDS: u64 = 300;

fn below(random: &mut ChaCha8Rng, bound: u64) -> u64 {
    random.next_u64() % bound
}

fn small(random: &mut ChaCha8Rng, bound: u64) -> u32 {
    u32::try_from(below(random, bound)).expect("a small bound")
}

fn price(cents: u32) -> Money {
    Money::from_nano_dollars(i64::from(cents) * 10_000_003)
}

fn world(random: &mut ChaCha8Rng) -> World {
    let states = [NodeState::Ready, NodeState::Suspect, NodeState::Draining, NodeState::Lost];
    let change = |random: &mut ChaCha8Rng| {
        let state = states[usize::try_from(below(random, 4)).expect("a small number")];
        let price = (below(random, 4) > 0).then(|| price(small(random, 5_000)));
        let (devices, others) = (small(random, 9), small(random, 3));
        let network = (below(random, 2) > 0).then(|| self::price(small(random, 50)));
        let energy = (below(random, 2) > 0).then(|| Energy {
            held_milliwatts: below(random, 2_000_000),
            unheld_milliwatts: below(random, 200_000),
            per_kilowatt_hour: self::price(small(random, 30)),
        });
        let overheads = Overheads { network, support: network, energy };
        (below(random, 100) * STEP, Capacity { others, price, overheads, ..capacity(state, devices, None) })
    };
    let hold = |random: &mut ChaCha8Rng| {
        let (from, length) = (below(random, 100), 1 + below(random, 40));
        Hold {
            span: (from * STEP, (from + length) * STEP),
            devices: 1 + small(random, 4),
            compute: length * STEP / (1 + below(random, 4)),
            has_failed: below(random, 2) == 0,
        }
    };
    let (changes, holds) = (below(random, 12), below(random, 12));
    World { changes: (0..changes).map(|_| change(random)).collect(), holds: (0..holds).map(|_| hold(random)).collect() }
}

fn bill_of(world: &World, period: Period) -> Bill<Option<u64>> {
    let mut biller = Biller::new(period);
    world.changes.iter().for_each(|(when, capacity)| biller.offer("n1", at(*when), capacity.clone()));
    for (job, hold) in (1..).zip(&world.holds) {
        let (from, to) = hold.span;
        let allocation = Allocation {
            job: JobId(job),
            attempt: AttemptNumber::FIRST,
            node: NodeName::new("n1").expect("a name"),
            devices: hold.devices,
            from: at(from),
            to: at(to),
            price: price(777),
        };
        let mut reported = Buckets::default();
        reported[Bucket::Compute] = GpuSeconds::from_nanos(u128::from(hold.compute));
        reported[Bucket::LostWork] = GpuSeconds::from_nanos(17);
        let entry = book(allocation, Some((at(from + 5), reported)));
        let of_job = Held { has_failed: hold.has_failed, ..held(job, hold.devices, hold.span, &[]) };
        let of_job = Held { buckets: entry.buckets, price: Some(price(777)), ..of_job };
        biller.hold(Some(job), &of_job);
        biller.charge(&of_job, |_, _| Some(job));
        if hold.has_failed {
            biller.attend(Some(job), at(to), &Incident { nanos: hold.compute, per_hour: price(9_000) });
        }
    }
    for hold in &world.holds {
        let price = StorageRate { per_month: price(13), unit: Bytes(1 << 30), month_hours: 730 };
        let bytes = Bytes(hold.compute * 1_000 + 7);
        let stored = Stored { class: StorageClass::Checkpoints, bytes, price: Some(price).filter(|_| hold.has_failed) };
        biller.keep(None, (at(hold.span.0), at(hold.span.1)), &stored);
    }
    biller.finish(|_, _, _| None)
}

/// Proves A-8 for bills: every offered device-second is in one line, jobs pay what the ledger booked, and the bills of
/// adjoining periods sum to the bill of both.
#[test]
fn bills_of_random_histories_are_conserved() {
    for seed in 0..SEEDS {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let world = world(random);
        let whole = bill_of(&world, period(0, END));
        let time = whole.total().sum(Line::is_of_devices).quantity;
        assert_eq!(time, whole.capacity + whole.beyond_capacity, "seed {seed}");
        for (job, hold) in (1..).zip(&world.holds) {
            let time = GpuSeconds::of(hold.devices, Duration::from_nanos(hold.span.1 - hold.span.0));
            let paid = whole.groups[&Some(job)].sum(Line::is_of_devices).money();
            assert_eq!(paid, price(777).per_hour_times(time), "seed {seed}: as booked");
        }
        let mut ends = vec![0, END];
        ends.extend((0..below(random, 4)).map(|_| below(random, END)).collect::<Vec<_>>());
        ends.sort_unstable();
        let mut parts: BTreeMap<(Option<u64>, Line), Amount> = BTreeMap::new();
        for pair in ends.windows(2) {
            for (key, group) in bill_of(&world, period(pair[0], pair[1])).groups {
                group.lines.iter().for_each(|(line, amount)| *parts.entry((key, line)).or_default() += amount);
            }
        }
        parts.retain(|_, amount| *amount != Amount::default());
        let lines = whole.groups.iter().flat_map(|(key, group)| group.lines.iter().map(|(l, a)| ((*key, l), a)));
        assert_eq!(parts, lines.collect::<BTreeMap<_, _>>(), "seed {seed}");
    }
}
