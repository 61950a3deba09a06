//! Small workloads whose outcome each test computes by hand.

use gangline_base::{AcceleratorKind, Bytes, Level, NodeName, PoolName, QueueName};
use gangline_orchestration::{Location, NodeCapacity, QueueSpec};

use super::*;

pub(super) fn nodes(count: u32, gpus: u32) -> Vec<NodeSpec> {
    let node = |number: u32| NodeSpec {
        name: NodeName::new(&format!("n{number}")).expect("it is a name"),
        capacity: NodeCapacity {
            pool: PoolName::default(),
            accelerator: AcceleratorKind("GPU".to_owned()),
            accelerators: gpus,
            cpus: 0,
            memory: Bytes(0),
        },
        location: Location::default(),
        layout: Default::default(),
    };
    (0..count).map(node).collect()
}

/// Builds a workload from rows of submission, duration and accelerators.
fn workload(rows: &[(u32, u32, u32)]) -> Workload {
    let mut text = "job_id,submit_s,duration_s,gpus\n".to_owned();
    for (submitted, duration, gpus) in rows {
        text += &format!("j,{submitted},{duration},{gpus}\n");
    }
    read_trace("t.csv", &text, TraceFormat::Csv, BadRows::Refuse).expect("the rows are well formed")
}

fn options(policy: PolicyName) -> Options {
    Options {
        policy,
        charges: Charges::FREE,
        limits: LimitModel::Users,
        high_share: 0.0,
        faults: FaultSpec::NONE,
        seed: 1,
        oversized: BadRows::Refuse,
        quirk: MuriQuirk::Without,
        sharing: Configuration::default(),
    }
}

/// Checks the mean completion time and makespan on one node with 4 accelerators.
fn check(policy: PolicyName, rows: &[(u32, u32, u32)], mean: f64, makespan: f64) {
    let summary = simulate(&workload(rows), &nodes(1, 4), &options(policy)).expect("it has an end");
    let found = (summary.jct_seconds.mean, summary.makespan_seconds);
    assert!((found.0 - mean).abs() < 1e-9 && (found.1 - makespan).abs() < 1e-9, "{}: {found:?}", policy.name());
}

/// A: 3 GPUs for 100 s. B (at 1): 2 GPUs for 10 s. C (at 2): 1 GPU for 10 s.
const BLOCKED: [(u32, u32, u32); 3] = [(0, 100, 3), (1, 10, 2), (2, 10, 1)];

/// B waits until A ends at 100, and C waits behind B: both end at 110. (100 + 109 + 108) / 3.
#[test]
fn fifo_lets_nobody_pass_its_head() {
    check(PolicyName::Fifo, &BLOCKED, 317.0 / 3.0, 110.0);
}

/// C's limit is at least 15 minutes, so it may run beyond A's end only if B still fits beside it then: at A's
/// end 4 GPUs are free, C leaves 3 of them, and B needs 2. So C runs from 2 to 12. (100 + 109 + 10) / 3.
#[test]
fn easy_backfills_what_leaves_the_head_its_place() {
    check(PolicyName::EasyBackfill, &BLOCKED, 219.0 / 3.0, 110.0);
}

/// At 0 the job of 50 s starts on 4 GPUs. Then jobs of 100 s and 10 s are queued, and the job of 10 s goes
/// first. (50 + 159 + 58) / 3 with starts at 50 (10 s, submitted at 2) and 60 (100 s, submitted at 1).
#[test]
fn sjf_takes_the_shortest_that_waits() {
    check(PolicyName::Sjf, &[(0, 50, 4), (1, 100, 4), (2, 10, 4)], (50.0 + 159.0 + 58.0) / 3.0, 160.0);
}

/// The 10 s job submitted at 5 preempts the 100 s job, which resumes at 15 with 95 s left. (110 + 10) / 2.
#[test]
fn srtf_preempts_for_less_remaining_time() {
    check(PolicyName::Srtf, &[(0, 100, 4), (5, 10, 4)], 60.0, 110.0);
}

/// Remaining service at 1 is 4 x 29 = 116 against 1 x 100: the small job goes first; the large one waits
/// until 101 and runs its 29 s until 130. Under SRTF the large one would have finished at 30. (130 + 100) /
/// 2.
#[test]
fn srsf_weighs_remaining_time_by_accelerators() {
    check(PolicyName::Srsf, &[(0, 30, 4), (1, 100, 1)], 115.0, 130.0);
    check(PolicyName::Srtf, &[(0, 30, 4), (1, 100, 1)], (30.0 + 129.0) / 2.0, 130.0);
}

/// On 4 GPUs the first job reaches 3,250 GPU-seconds in 812.5 s, which is noticed after 813 s, and is
/// demoted; the second, in the first queue since 1, takes its place and completes its 100 s by 913. The first
/// ends at 1,100. (1,100 + 912) / 2.
#[test]
fn las_lets_a_job_that_has_had_much_give_way() {
    check(PolicyName::Las, &[(0, 1_000, 4), (1, 100, 4)], 1_006.0, 1_100.0);
}

/// Every job completes with faults and charges.
#[test]
fn gangline_runs_every_job_with_faults_and_charges() {
    let mut options = options(PolicyName::Gangline);
    options.charges = Charges::USUAL;
    options.faults = "node-mttf=1d,repair=1h,app-mttf=2d,silent=20%:30m".parse().expect("it is a specification");
    let rows: Vec<_> = (0..50).map(|row| (row * 600, 20_000, 1 + row % 16)).collect();
    let summary = simulate(&workload(&rows), &nodes(4, 8), &options).expect("it has an end");
    assert_eq!(summary.jobs, 50);
    assert!(summary.faults > 0 && summary.node_losses > 0 && summary.useful_gpu_hours > 0.0);
    let again = simulate(&workload(&rows), &nodes(4, 8), &options).expect("it has an end");
    assert_eq!(format!("{summary:?}"), format!("{again:?}"), "the same input gave another output");
}

/// A job of 7,200 s is preempted at 3,000 by one of 100 s: its checkpoint at 1,800 is kept, and 1,200 s x 4
/// GPUs are lost. It restarts at 3,100, restores for 60 s, and has 5,400 s left: it ends at 8,560.
#[test]
fn a_charged_preemption_loses_the_work_since_the_last_checkpoint() {
    let mut options = options(PolicyName::Srtf);
    options.charges = Charges::USUAL;
    let summary =
        simulate(&workload(&[(0, 7_200, 4), (3_000, 100, 4)]), &nodes(1, 4), &options).expect("it has an end");
    assert!((summary.makespan_seconds - 8_560.0).abs() < 1e-9, "{}", summary.makespan_seconds);
    let lost = |cause| summary.lost_gpu_hours.iter().find(|(found, _)| *found == cause).map(|(_, hours)| *hours);
    assert_eq!(lost(Waste::Preemption), Some(1_200.0 * 4.0 / 3_600.0));
    assert_eq!(lost(Waste::Restart), Some(60.0 * 4.0 / 3_600.0));
    assert_eq!(summary.preemptions, 1);
}

/// The engine's gangs have equal shares, so 12 accelerators take two whole nodes: 16 are held for 3,600 s, 4
/// of them beyond the request. That is half of what 4 nodes have.
#[test]
fn accelerators_held_beyond_those_asked_for_count_as_held_and_lost() {
    let summary = simulate(&workload(&[(0, 3_600, 12)]), &nodes(4, 8), &options(PolicyName::Gangline));
    let summary = summary.expect("it has an end");
    assert!((summary.utilisation - 0.5).abs() < 1e-9 && (summary.goodput - 0.375).abs() < 1e-9);
    let lost: f64 = summary.lost_gpu_hours.iter().map(|(_, hours)| hours).sum();
    assert!((lost - 4.0).abs() < 1e-9 && (summary.held_gpu_hours - summary.useful_gpu_hours - lost).abs() < 1e-9);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_sentence() {
    let refusal = |rows: &[(u32, u32, u32)], options: &Options| {
        simulate(&workload(rows), &nodes(1, 4), options).expect_err("it can't be simulated").to_string()
    };
    let oversized = refusal(&[(0, 1, 1), (0, 1, 5)], &options(PolicyName::Fifo));
    assert!(oversized.starts_with("simulate line 3: its gang of 5 accelerators fits"), "{oversized}");
    let unlimited = Options { limits: LimitModel::Trace, ..options(PolicyName::EasyBackfill) };
    assert!(refusal(&[(0, 1, 1)], &unlimited).contains("--limits"));
    let quirked = Options { quirk: MuriQuirk::AsPublished, charges: Charges::USUAL, ..options(PolicyName::Srtf) };
    assert!(refusal(&[(0, 1, 1)], &quirked).contains("quirk"));
    let skipping = Options { oversized: BadRows::Skip, ..options(PolicyName::Fifo) };
    let summary = simulate(&workload(&[(0, 1, 1), (0, 1, 5)]), &nodes(1, 4), &skipping).map(|s| (s.jobs, s.skipped));
    assert_eq!(summary, Ok((1, 1)));
    assert!(simulate(&workload(&[]), &[], &skipping).is_err());
}

#[test]
fn a_job_for_a_queue_that_is_not_there_and_a_cluster_of_two_kinds_are_refused() {
    let queue = |name: &str, parent: Option<&str>| QueueSpec {
        name: QueueName::new(name).expect("it is a name"),
        parent: parent.map(|parent| QueueName::new(parent).expect("it is a name")),
        weight: std::num::NonZeroU32::MIN,
        quota: BTreeMap::new(),
        borrowing_limit: BTreeMap::new(),
    };
    let queues = vec![queue("lab", None), queue("a", Some("lab")), queue("b", Some("lab"))];
    let sharing = Configuration { queues, ..Configuration::default() };
    let text = "job_id,submit_s,duration_s,gpus,vc\nj,0,1,1,a\nj,0,1,1,lab\n";
    let workload = read_trace("t.csv", text, TraceFormat::Csv, BadRows::Refuse).expect("the rows are well formed");
    let shared = Options { sharing, ..options(PolicyName::Gangline) };
    let refusal = simulate(&workload, &nodes(1, 4), &shared).expect_err("lab is a parent").to_string();
    assert!(refusal.starts_with("simulate line 3: its queue \"lab\" is none of the cluster's (a, b)"), "{refusal}");
    let skipping = Options { oversized: BadRows::Skip, ..shared };
    let counts = simulate(&workload, &nodes(1, 4), &skipping).map(|summary| (summary.jobs, summary.skipped));
    assert_eq!(counts, Ok((1, 1)));
    let mut mixed = nodes(2, 4);
    mixed[1].capacity.accelerator = AcceleratorKind("H100".to_owned());
    let refusal = simulate(&workload, &mixed, &skipping).expect_err("there are two kinds").to_string();
    assert!(refusal.starts_with("simulate nodes of GPU and H100 together"), "{refusal}");
}

#[test]
fn nodes_of_any_one_pool_are_simulated_and_those_of_two_refused() {
    let text = "job_id,submit_s,duration_s,gpus\nj,0,10,4\n";
    let workload = read_trace("t.csv", text, TraceFormat::Csv, BadRows::Refuse).expect("the row is well formed");
    let mut serving = nodes(2, 4);
    serving[0].capacity.pool = PoolName::new("inference").expect("it is a name");
    let refusal = simulate(&workload, &serving, &options(PolicyName::Gangline)).expect_err("two pools").to_string();
    assert!(refusal.starts_with("simulate nodes of the pools inference and training together"), "{refusal}");
    serving.truncate(1);
    let summary = simulate(&workload, &serving, &options(PolicyName::Gangline)).expect("one pool");
    assert_eq!(summary.jobs, 1);
}

/// Half of the jobs have high priority. Each takes 8,000 s on the whole cluster: the high-priority jobs
/// preempt the first normal one that runs and then run one after the other; normal jobs never preempt.
#[test]
fn priority_preempts_lower_jobs_only_and_loses_their_work() {
    let mut options = options(PolicyName::Priority);
    options.charges = Charges::USUAL;
    let rows: Vec<_> = (0..40).map(|row| (row * 700, 8_000, 4)).collect();
    let even = simulate(&workload(&rows), &nodes(1, 4), &options).expect("it has an end");
    assert_eq!(even.preemptions, 0, "jobs of one priority don't preempt each other");
    options.high_share = 0.5;
    let summary = simulate(&workload(&rows), &nodes(1, 4), &options).expect("it has an end");
    let lost = summary.lost_gpu_hours.iter().find(|(cause, _)| *cause == Waste::Preemption).map_or(0.0, |(_, it)| *it);
    assert!(summary.preemptions > 0 && lost > 0.0, "{} preemptions lost {lost}", summary.preemptions);
    assert!(summary.first_start_seconds.p50 < even.first_start_seconds.p50, "half of the jobs go before the others");
}

/// Spot nodes are reclaimed with a notice of 10 minutes: jobs there save and lose nothing. A notice of 10 s
/// is too short.
#[test]
fn a_spot_notice_saves_the_work_if_it_comes_in_time() {
    let lost = |notice: &str| {
        let mut options = options(PolicyName::Gangline);
        options.charges = Charges::USUAL;
        options.faults = format!("spot=100%:{notice}:6h,repair=1h").parse().expect("it is a specification");
        let summary = simulate(&workload(&[(0, 200_000, 4), (0, 200_000, 4)]), &nodes(2, 4), &options);
        let summary = summary.expect("it has an end");
        assert!(summary.node_losses > 5, "{}", summary.node_losses);
        summary.lost_gpu_hours.iter().find(|(cause, _)| *cause == Waste::Fault).map_or(0.0, |(_, hours)| *hours)
    };
    assert!(lost("10m") < 1e-9 && lost("10s") > 1.0, "{} {}", lost("10m"), lost("10s"));
}

/// One of 4 GPUs is held until the second job arrives at 50, then all of them until 150.
#[test]
fn utilisation_while_jobs_arrive_ends_with_the_last_arrival() {
    let summary = simulate(&workload(&[(0, 50, 1), (50, 100, 4)]), &nodes(1, 4), &options(PolicyName::Fifo));
    let summary = summary.expect("it has an end");
    assert!((summary.utilisation_of_arrivals - 0.25).abs() < 1e-9 && (summary.utilisation - 0.75).abs() < 1e-9);
}

/// Two racks of two nodes, listed alternately: the first two nodes are in different racks.
#[test]
fn the_engine_keeps_a_gang_in_one_rack_where_it_can() {
    let mut nodes = nodes(4, 4);
    for (number, node) in nodes.iter_mut().enumerate() {
        node.location = [(Level::Rack, format!("r{}", number % 2))].into_iter().collect();
    }
    let summary = simulate(&workload(&[(0, 50, 8), (100, 50, 8)]), &nodes, &options(PolicyName::Gangline));
    assert_eq!(summary.map(|summary| summary.gang_starts), Ok((2, 2)));
    let summary = simulate(&workload(&[(0, 50, 8), (100, 50, 8)]), &nodes, &options(PolicyName::Fifo));
    assert_eq!(summary.map(|summary| summary.gang_starts), Ok((2, 0)), "FIFO takes the first nodes");
}

#[test]
fn a_picture_needs_to_know_where_jobs_run() {
    let workload = workload(&BLOCKED);
    let draw = |options| simulate_and_draw(&workload, &nodes(1, 4), &options, "blocked");
    let (summary, picture) = draw(options(PolicyName::Fifo)).expect("it has an end");
    assert!(summary.jobs == 3 && picture.starts_with("<svg") && picture.contains("blocked"));
    assert_eq!(draw(options(PolicyName::Las)), Err(SimulationError::NoPlaces(PolicyName::Las)));
}

#[test]
fn fault_specifications_say_what_they_expect() {
    let error = |text: &str| text.parse::<FaultSpec>().expect_err("it is none").to_string();
    assert!(error("lemons=2%").contains("like 2%x10"));
    assert!(error("node-mttf=0d").contains("above zero"));
    assert!(error("spot=200%:2m").contains("like 5%:2m:1d"));
    assert!(error("meteor=1d").contains("there are node-mttf"));
}
