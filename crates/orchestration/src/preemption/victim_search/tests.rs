//! The search against brute force, and properties of every answer.

use std::collections::BTreeMap;

use super::*;

/// The number of seeded cases compared with brute force.
const SMALL_CASES: u64 = 4_000;

/// The number of seeded cases that are too large for brute force.
const LARGE_CASES: u64 = 60;

/// A seeded generator: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(super) struct Generator(pub(super) u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).unwrap()
    }

    pub(super) fn between(&mut self, least: u32, most: u32) -> u32 {
        least + self.below(most - least + 1)
    }
}

fn resources(devices: u32, cpus: u32) -> Resources {
    Resources { devices, cpus, memory: Bytes(u64::from(devices)) }
}

fn on(node: u32, devices: u32) -> NodeResources {
    NodeResources { node: NodeId(node), resources: resources(devices, devices) }
}

fn cost(units: u32) -> GpuSeconds {
    GpuSeconds::from_nanos(u128::from(units))
}

fn unbounded() -> Vec<QueueBound> {
    vec![QueueBound { parent: None, devices_max: u32::MAX }]
}

/// The sizes of random problems.
pub(super) struct Sizes {
    pub(super) domains: u32,
    pub(super) nodes_per_domain: u32,
    pub(super) jobs: u32,
    pub(super) wanted_max: u32,
    pub(super) offers_max: u32,
    pub(super) nodes_per_offer_max: u32,
    /// Few different costs make many ties.
    pub(super) cost_max: u32,
    pub(super) devices_max: u32,
}

pub(super) fn random_problem(generator: &mut Generator, sizes: &Sizes) -> Problem {
    let parents = [None, Some(0), Some(0), Some(1)];
    let queues = parents.map(|parent| QueueBound { parent, devices_max: generator.between(0, sizes.devices_max) });
    let wanted = Wanted {
        nodes: generator.between(1, sizes.wanted_max),
        per_node: resources(generator.between(1, 8), generator.between(0, 6)),
    };
    let mut problem = Problem::new(wanted, queues.to_vec());
    for domain in 0..sizes.domains {
        let first = domain * sizes.nodes_per_domain;
        // Some nodes are in no domain: what is freed there counts against the queue but is useless.
        let nodes = first..first + generator.between(1, sizes.nodes_per_domain);
        let free: Vec<NodeResources> = nodes
            .map(|node| NodeResources {
                node: NodeId(node),
                resources: resources(generator.below(5) * generator.below(2), generator.below(6)),
            })
            .collect();
        problem.add_domain(free);
    }
    for job in 0..sizes.jobs {
        let queue = usize::try_from(generator.below(4)).unwrap();
        for _ in 0..generator.between(1, sizes.offers_max) {
            let count = generator.between(1, sizes.nodes_per_offer_max);
            let devices = generator.between(1, 8);
            let cpus = generator.below(7);
            let mut nodes: Vec<u32> =
                (0..count).map(|_| generator.below(sizes.domains * sizes.nodes_per_domain)).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let freed =
                nodes.into_iter().map(|node| NodeResources { node: NodeId(node), resources: resources(devices, cpus) });
            problem.add_offer(JobId(u64::from(job)), queue, cost(generator.below(sizes.cost_max + 1)), freed);
        }
    }
    problem
}

pub(super) fn small() -> Sizes {
    Sizes {
        domains: 2,
        nodes_per_domain: 4,
        jobs: 9,
        wanted_max: 3,
        offers_max: 2,
        nodes_per_offer_max: 3,
        cost_max: 6,
        devices_max: 40,
    }
}

/// Returns the nodes of each domain that have room after these offers.
pub(super) fn rooms(problem: &Problem, offers: &[OfferId]) -> Vec<Vec<NodeId>> {
    let mut freed: BTreeMap<NodeId, Resources> = BTreeMap::new();
    for OfferId(offer) in offers {
        for gain in &problem.freed[problem.offers[*offer].freed.clone()] {
            let sum = freed.entry(gain.node).or_default();
            *sum = sum.plus(gain.resources);
        }
    }
    let has_room = |free: &&NodeResources| {
        let gain = freed.get(&free.node).copied().unwrap_or_default();
        free.resources.plus(gain).cover(problem.wanted.per_node)
    };
    problem.domains.iter().map(|domain| domain.iter().filter(has_room).map(|free| free.node).collect()).collect()
}

/// Reports whether the gang or all of its segments have room in one domain, or within one wider domain.
pub(super) fn fits(problem: &Problem, offers: &[OfferId]) -> bool {
    let wanted = usize::try_from(problem.wanted.nodes).unwrap();
    let mut segments: BTreeMap<usize, usize> = BTreeMap::new();
    for (nodes, outer) in rooms(problem, offers).iter().zip(&problem.outer) {
        *segments.entry(*outer).or_default() += nodes.len() / wanted;
    }
    let count = usize::try_from(problem.segments.unwrap_or(1)).unwrap();
    segments.values().any(|segments| *segments >= count)
}

pub(super) fn is_within_bounds(problem: &Problem, offers: &[OfferId]) -> bool {
    let mut taken = vec![0; problem.queues.len()];
    for OfferId(offer) in offers {
        let mut queue = Some(problem.offers[*offer].queue);
        while let Some(place) = queue {
            taken[place] += problem.offers[*offer].devices;
            queue = problem.queues[place].parent;
        }
    }
    problem.queues.iter().zip(taken).all(|(queue, taken)| taken <= queue.devices_max)
}

/// Tries every choice of at most one offer per job; returns cost, victims and ids of the best allowed set
/// that fits.
pub(super) fn brute_force(problem: &Problem) -> Option<(GpuSeconds, usize, Vec<JobId>)> {
    let mut by_job: BTreeMap<JobId, Vec<OfferId>> = BTreeMap::new();
    for (place, offer) in problem.offers.iter().enumerate() {
        by_job.entry(offer.job).or_default().push(OfferId(place));
    }
    let mut sets: Vec<Vec<OfferId>> = vec![Vec::new()];
    for offers in by_job.values() {
        let longer = |set: &Vec<OfferId>| offers.iter().map(|offer| [&set[..], &[*offer]].concat()).collect::<Vec<_>>();
        sets.extend(sets.iter().flat_map(longer).collect::<Vec<_>>());
    }
    let allowed = sets.iter().filter(|set| is_within_bounds(problem, set) && fits(problem, set));
    let key = |set: &Vec<OfferId>| {
        let cost = set.iter().map(|OfferId(offer)| problem.offers[*offer].cost).sum();
        (cost, set.len(), set.iter().map(|OfferId(offer)| problem.offers[*offer].job).collect())
    };
    allowed.map(key).min()
}

/// Checks the properties of every set, proved best or not.
fn check_set(problem: &Problem, set: &VictimSet, case: &str) {
    let wanted = usize::try_from(problem.wanted.nodes).unwrap();
    assert!(is_within_bounds(problem, &set.offers), "{case}: more is taken from a queue than may be");
    let rooms = rooms(problem, &set.offers);
    assert_eq!(set.nodes.len(), wanted, "{case}: a node for each of the gang");
    assert!(set.nodes.is_sorted_by(|a, b| a < b), "{case}: nodes differ");
    assert!(set.nodes.iter().all(|node| rooms[set.domain].contains(node)), "{case}: each node has room");
    assert!(set.jobs.is_sorted_by(|a, b| a < b), "{case}: one offer a job");
    let cost: GpuSeconds = set.offers.iter().map(|OfferId(offer)| problem.offers[*offer].cost).sum();
    assert_eq!(set.cost, cost, "{case}");
    for left_out in 0..set.offers.len() {
        let mut fewer = set.offers.clone();
        fewer.remove(left_out);
        assert!(
            self::rooms(problem, &fewer)[set.domain].len() < wanted,
            "{case}: {} is superfluous",
            set.jobs[left_out]
        );
    }
}

fn check_against_brute_force(sizes: &Sizes, seeds: std::ops::Range<u64>) -> (u32, u32) {
    let (mut granted, mut refused) = (0, 0);
    for seed in seeds {
        let problem = random_problem(&mut Generator(seed), sizes);
        let found = find_victims(&problem);
        let best = brute_force(&problem);
        let case = format!("seed {seed}");
        match (&found, best) {
            (Ok(victims), Some(best)) => {
                granted += 1;
                check_set(&problem, &victims.chosen, &case);
                let chosen = (victims.chosen.cost, victims.chosen.jobs.len(), victims.chosen.jobs.clone());
                assert_eq!(chosen, best, "{case}");
                assert!(victims.is_exact, "{case}: a small case is solved exactly");
            }
            (Err(NoVictims::Bounded | NoVictims::TooFewNodes { .. }), None) => refused += 1,
            (found, best) => panic!("{case}: found {found:?} where the best is {best:?}"),
        }
    }
    (granted, refused)
}

#[test]
fn victims_are_the_cheapest_by_brute_force() {
    let (granted, refused) = check_against_brute_force(&small(), 0..SMALL_CASES);
    assert!(granted > 500 && refused > 500, "both answers are tested: {granted} granted, {refused} refused");
}

#[test]
fn victims_of_one_node_each_are_the_cheapest_by_brute_force() {
    let sizes = Sizes { nodes_per_offer_max: 1, jobs: 12, offers_max: 1, nodes_per_domain: 3, ..small() };
    let (granted, refused) = check_against_brute_force(&sizes, 0..SMALL_CASES / 2);
    assert!(granted > 200 && refused > 200, "both answers are tested: {granted} granted, {refused} refused");
}

#[test]
fn large_answers_are_minimal_and_within_bounds() {
    let mut granted = 0;
    for seed in 0..LARGE_CASES {
        let sizes = Sizes {
            domains: 3,
            nodes_per_domain: 40,
            jobs: 400,
            wanted_max: 24,
            nodes_per_offer_max: 6,
            cost_max: 1_000,
            devices_max: 2_000,
            ..small()
        };
        let problem = random_problem(&mut Generator(seed), &sizes);
        let Ok(victims) = find_victims(&problem) else { continue };
        granted += 1;
        check_set(&problem, &victims.chosen, &format!("seed {seed}"));
        for (place, set) in victims.alternatives.iter().enumerate() {
            check_set(&problem, set, &format!("seed {seed}, alternative {place}"));
            assert!(set.cost >= victims.chosen.cost, "seed {seed}: the best is chosen");
        }
        assert_eq!(find_victims(&problem), Ok(victims), "seed {seed}: the same problem has the same answer");
    }
    assert!(granted > LARGE_CASES / 4, "{granted} of {LARGE_CASES} were granted");
}

/// An offer: the number of its job, its queue, its cost, and the (node, devices) that it would free.
type OfferRow<'a> = (u64, usize, u32, &'a [(u32, u32)]);

fn problem(wanted: (u32, u32), queues: Vec<QueueBound>, domains: &[&[(u32, u32)]], offers: &[OfferRow]) -> Problem {
    let (nodes, devices) = wanted;
    let mut problem = Problem::new(Wanted { nodes, per_node: resources(devices, 1) }, queues);
    for domain in domains {
        // Cores and memory are plentiful: only devices are short.
        problem.add_domain(domain.iter().map(|(node, devices)| NodeResources {
            node: NodeId(*node),
            resources: Resources { devices: *devices, cpus: 64, memory: Bytes(64) },
        }));
    }
    for (job, queue, units, freed) in offers {
        problem.add_offer(JobId(*job), *queue, cost(*units), freed.iter().map(|(node, devices)| on(*node, *devices)));
    }
    problem
}

fn chosen(problem: &Problem) -> Result<(Vec<u64>, Vec<u32>), NoVictims> {
    let chosen = find_victims(problem)?.chosen;
    Ok((chosen.jobs.iter().map(|job| job.0).collect(), chosen.nodes.iter().map(|node| node.0).collect()))
}

#[test]
fn what_is_freed_lies_in_one_domain() {
    // The two cheapest jobs are in different racks: together they free enough devices, but not in one rack.
    let racks: [&[(u32, u32)]; 2] = [&[(0, 0), (1, 0)], &[(2, 0), (3, 0)]];
    let offers: [OfferRow; 4] =
        [(1, 0, 1, &[(0, 8)]), (2, 0, 9, &[(1, 8)]), (3, 0, 2, &[(2, 8)]), (4, 0, 5, &[(3, 8)])];
    assert_eq!(chosen(&problem((2, 8), unbounded(), &racks, &offers)), Ok((vec![3, 4], vec![2, 3])));
    let victims = find_victims(&problem((2, 8), unbounded(), &racks, &offers)).unwrap();
    let others: Vec<&[JobId]> = victims.alternatives.iter().map(|set| &set.jobs[..]).collect();
    assert_eq!(others, [[JobId(1), JobId(2)]], "the other rack is named as the alternative");
    assert!(victims.is_exact);
}

#[test]
fn nothing_is_taken_below_a_queues_bound() {
    let borrowed =
        |devices_max| vec![QueueBound { parent: None, devices_max: 16 }, QueueBound { parent: Some(0), devices_max }];
    let rack: [&[(u32, u32)]; 1] = [&[(0, 0), (1, 0), (2, 0)]];
    let offers: [OfferRow; 3] = [(1, 1, 1, &[(0, 8)]), (2, 1, 1, &[(1, 8)]), (3, 0, 9, &[(2, 8)])];
    assert_eq!(chosen(&problem((2, 8), borrowed(16), &rack, &offers)), Ok((vec![1, 2], vec![0, 1])));
    assert_eq!(
        chosen(&problem((2, 8), borrowed(8), &rack, &offers)),
        Ok((vec![1, 3], vec![0, 2])),
        "it borrows 8 only"
    );
    assert_eq!(chosen(&problem((2, 8), borrowed(7), &rack, &offers)), Err(NoVictims::Bounded));
    assert_eq!(chosen(&problem((3, 8), borrowed(16), &rack, &offers)), Err(NoVictims::Bounded), "the parent's bound");
    let refusal = chosen(&problem((4, 8), borrowed(16), &rack, &offers)).unwrap_err();
    assert_eq!(refusal, NoVictims::TooFewNodes { nodes: 3 });
    assert_eq!(refusal.to_string(), "at most 3 node(s) of one domain could be freed");
}

#[test]
fn a_victim_on_several_nodes_is_paid_once() {
    let rack: [&[(u32, u32)]; 1] = [&[(0, 0), (1, 0), (2, 0), (3, 4)]];
    let offers: [OfferRow; 4] =
        [(1, 0, 10, &[(0, 8), (1, 8), (2, 8)]), (2, 0, 4, &[(0, 8)]), (3, 0, 4, &[(1, 8)]), (4, 0, 4, &[(2, 8)])];
    assert_eq!(chosen(&problem((3, 8), unbounded(), &rack, &offers)), Ok((vec![1], vec![0, 1, 2])));
    assert_eq!(chosen(&problem((2, 8), unbounded(), &rack, &offers)), Ok((vec![2, 3], vec![0, 1])));
    assert_eq!(chosen(&problem((2, 4), unbounded(), &rack, &offers)), Ok((vec![2], vec![0, 3])), "node 3 is half free");
    assert_eq!(chosen(&problem((1, 4), unbounded(), &rack, &offers)), Ok((vec![], vec![3])), "nobody need go");
}

#[test]
fn an_elastic_job_is_shrunk_rather_than_stopped() {
    let rack: [&[(u32, u32)]; 1] = [&[(0, 0), (1, 0), (2, 0)]];
    let offers: [OfferRow; 4] = [
        (1, 0, 3, &[(0, 8)]),
        (1, 0, 5, &[(0, 8), (1, 8)]),
        (1, 0, 30, &[(0, 8), (1, 8), (2, 8)]),
        (2, 0, 20, &[(2, 8)]),
    ];
    let offers_chosen = |nodes| find_victims(&problem((nodes, 8), unbounded(), &rack, &offers)).unwrap().chosen.offers;
    assert_eq!(offers_chosen(1), [OfferId(0)]);
    assert_eq!(offers_chosen(2), [OfferId(1)]);
    assert_eq!(offers_chosen(3), [OfferId(1), OfferId(3)], "shrunk and another stopped costs 25, stopped costs 30");
}

#[test]
fn ties_go_to_fewer_victims_then_to_lower_ids() {
    let nodes: [&[(u32, u32)]; 1] = [&[(0, 0), (1, 0), (2, 0)]];
    let offers: [OfferRow; 4] =
        [(1, 0, 2, &[(0, 4)]), (2, 0, 2, &[(0, 4)]), (9, 0, 4, &[(1, 8)]), (7, 0, 4, &[(2, 8)])];
    assert_eq!(chosen(&problem((1, 8), unbounded(), &nodes, &offers)), Ok((vec![7], vec![2])));
    assert_eq!(chosen(&problem((1, 4), unbounded(), &nodes, &offers)), Ok((vec![1], vec![0])));
}

/// Returns a problem in which each job is on two adjacent nodes of a ring and a hundred nodes are wanted: too
/// many jobs to solve as a whole.
fn ring(devices_max: u32) -> Problem {
    let mut generator = Generator(1);
    let queues = vec![QueueBound { parent: None, devices_max }];
    let mut ring = Problem::new(Wanted { nodes: 100, per_node: resources(8, 0) }, queues);
    ring.add_domain((0..300).map(|node| on(node, 0)));
    for node in 0..300 {
        let freed = [on(node, 8), on((node + 1) % 300, 8)];
        ring.add_offer(JobId(u64::from(node)), 0, cost(generator.between(50, 100)), freed);
    }
    ring
}

#[test]
fn a_search_beyond_its_limit_says_that_it_proves_nothing() {
    let victims = find_victims(&ring(u32::MAX)).unwrap();
    check_set(&ring(u32::MAX), &victims.chosen, "ring");
    assert!(!victims.is_exact);
    assert_eq!(find_victims(&ring(799)), Err(NoVictims::Unproven), "a hundred nodes are 800 devices");
}

#[test]
fn a_gang_that_no_domain_was_given_for_is_refused() {
    assert_eq!(chosen(&problem((1, 8), unbounded(), &[], &[])), Err(NoVictims::TooFewNodes { nodes: 0 }));
    assert_eq!(chosen(&problem((1, 8), unbounded(), &[&[]], &[])), Err(NoVictims::TooFewNodes { nodes: 0 }));
}

#[test]
#[should_panic(expected = "a queue comes after its parent")]
fn queues_in_a_circle_are_refused() {
    let _ = Problem::new(
        Wanted { nodes: 1, per_node: resources(1, 1) },
        vec![QueueBound { parent: Some(0), devices_max: 1 }],
    );
}
