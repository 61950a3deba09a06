//! Small workloads whose outcome is worked out by hand in each test.

use gangline_base::{AcceleratorKind, Bytes, NodeName, PoolName};

use super::*;
use crate::NodeCapacity;

fn nodes(count: u32, gpus: u32) -> Vec<NodeSpec> {
    let node = |number: u32| NodeSpec {
        name: NodeName::new(&format!("n{number}")).expect("it is a name"),
        capacity: NodeCapacity {
            pool: PoolName::default(),
            accelerator: AcceleratorKind("GPU".to_owned()),
            accelerators: gpus,
            cpus: 0,
            memory: Bytes(0),
        },
        location: crate::Location::default(),
    };
    (0..count).map(node).collect()
}

/// Rows of submission, duration and accelerators.
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
        faults: FaultSpec::NONE,
        seed: 1,
        oversized: BadRows::Refuse,
        quirk: MuriQuirk::Without,
    }
}

/// Mean completion time and makespan on one node of 4.
fn check(policy: PolicyName, rows: &[(u32, u32, u32)], mean: f64, makespan: f64) {
    let summary = simulate(&workload(rows), &nodes(1, 4), &options(policy)).expect("it has an end");
    let found = (summary.jct_seconds.mean, summary.makespan_seconds);
    assert!((found.0 - mean).abs() < 1e-9 && (found.1 - makespan).abs() < 1e-9, "{}: {found:?}", policy.name());
}

/// A: 3 GPUs for 100 s. B (at 1): 2 GPUs for 10 s. C (at 2): 1 GPU for 10 s.
const BLOCKED: [(u32, u32, u32); 3] = [(0, 100, 3), (1, 10, 2), (2, 10, 1)];

/// B waits for A to end at 100, and C behind B: done at 110 and 110. (100 + 109 + 108) / 3.
#[test]
fn fifo_lets_nobody_pass_its_head() {
    check(PolicyName::Fifo, &BLOCKED, 317.0 / 3.0, 110.0);
}

/// C's limit is at least 15 minutes, so it could outlast A's end only if B still fitted beside it: at A's end 4 GPUs
/// are free, C leaves 3 of them, B needs 2. So C runs from 2 to 12. (100 + 109 + 10) / 3.
#[test]
fn easy_backfills_what_leaves_the_head_its_place() {
    check(PolicyName::EasyBackfill, &BLOCKED, 219.0 / 3.0, 110.0);
}

/// With 4 GPUs for the head, C's limit of 15 minutes or more would hold one of them beyond A's end (A's limit is at
/// most 30 minutes and C's is no shorter than A's duration suggests): whichever it is, B starts no later than FIFO's.
#[test]
fn easy_never_delays_its_head_beyond_fifo() {
    let rows = [(0, 100, 3), (1, 10, 4), (2, 890, 1)];
    let run = |policy| simulate(&workload(&rows[..2]), &nodes(1, 4), &options(policy)).expect("it has an end");
    let (fifo, easy) = (run(PolicyName::Fifo), run(PolicyName::EasyBackfill));
    assert_eq!(fifo.queue_seconds, easy.queue_seconds);
}

/// At 0 the job of 50 starts on 4 GPUs. Then the queue is 100 s, 10 s: the 10 s go first. (50 + 159 + 58) / 3 with
/// starts at 50 (10 s, submitted at 2) and 60 (100 s, submitted at 1).
#[test]
fn sjf_takes_the_shortest_that_waits() {
    check(PolicyName::Sjf, &[(0, 50, 4), (1, 100, 4), (2, 10, 4)], (50.0 + 159.0 + 58.0) / 3.0, 160.0);
}

/// The 10 s job submitted at 5 preempts the 100 s job, which resumes at 15 with 95 s left. (110 + 10) / 2.
#[test]
fn srtf_preempts_for_less_remaining_time() {
    check(PolicyName::Srtf, &[(0, 100, 4), (5, 10, 4)], 60.0, 110.0);
}

/// Remaining service at 1: 4 x 29 = 116 against 1 x 100: the small one goes first, the large waits until 101 and runs
/// its 29 s to 130. Under SRTF the large one would have finished at 30. (130 + 100) / 2.
#[test]
fn srsf_weighs_remaining_time_by_accelerators() {
    check(PolicyName::Srsf, &[(0, 30, 4), (1, 100, 1)], 115.0, 130.0);
    check(PolicyName::Srtf, &[(0, 30, 4), (1, 100, 1)], (30.0 + 129.0) / 2.0, 130.0);
}

/// On 4 GPUs the first job reaches 3,250 GPU-seconds in 812.5 s, looked at after 813 s, and sinks; the second, waiting
/// in the first queue since 1, takes its place and does its 100 s by 913. The first ends at 1,100. (1,100 + 912) / 2.
#[test]
fn las_lets_a_job_that_has_had_much_give_way() {
    check(PolicyName::Las, &[(0, 1_000, 4), (1, 100, 4)], 1_006.0, 1_100.0);
}

/// The engine today: first come, first placed.
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

/// One job of 7,200 s is preempted at 3,000 by one of 100 s: its checkpoint at 1,800 holds, 1,200 s x 4 GPUs are lost.
/// It restarts at 3,100, restores for 60 s, and has 5,400 s left: done at 8,560.
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
fn fault_specifications_say_what_they_expect() {
    let error = |text: &str| text.parse::<FaultSpec>().expect_err("it is none").to_string();
    assert!(error("lemons=2%").contains("like 2%x10"));
    assert!(error("node-mttf=0d").contains("above zero"));
    assert!(error("spot=200%:2m").contains("like 5%:2m:1d"));
    assert!(error("meteor=1d").contains("there are node-mttf"));
}
