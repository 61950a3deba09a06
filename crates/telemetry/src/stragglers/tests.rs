//! What the analysis finds in made-up traces, and how it refuses bad ones.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::fixture::{Gang, SMALL, csv};
use super::*;

fn layout(gang: &Gang) -> Layout {
    Layout::parse(&format!("dp={},pp={}", gang.ranks, gang.stages)).unwrap()
}

fn found(gang: &Gang, trace: &Trace) -> Analysis {
    analyse(trace, &layout(gang)).unwrap()
}

fn refused(text: &str) -> String {
    read(text.as_bytes().to_vec()).and_then(|trace| analyse(&trace, &layout(&SMALL))).unwrap_err().to_string()
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// The trace as CSV, with a row changed.
fn changed(row: usize, from: &str, to: &str) -> String {
    let text = csv(&SMALL.trace(|_, _| 1.0));
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(lines[row].contains(from), "{}", lines[row]);
    lines[row] = lines[row].replacen(from, to, 1);
    lines.join("\n")
}

#[test]
fn without_a_straggler_the_slowdown_is_one() {
    for (ranks, stages, microbatches) in [(1, 1, 1), (1, 2, 4), (4, 1, 2), (3, 4, 8)] {
        let gang = Gang { ranks, stages, microbatches, steps: 2 };
        let trace = gang.trace(|_, _| 1.0);
        let layout = Layout::parse(&format!("dp={ranks},pp={stages},dsp=2")).unwrap();
        let analysis = analyse(&trace, &layout).unwrap();
        assert!(is_near(analysis.slowdown, 1.0), "{ranks} x {stages}: {}", analysis.slowdown);
        assert!(is_near(analysis.gaps, 1.0), "{ranks} x {stages}: {}", analysis.gaps);
        let shares = analysis.by_dp_rank.iter().chain(&analysis.by_stage).map(|share| share.slowdown);
        assert!(shares.chain(analysis.by_kind.iter().map(|share| share.slowdown)).all(|share| is_near(share, 1.0)));
        assert_eq!(analysis.cause(), Cause::Nothing);
        assert_eq!(analysis.workers.len(), usize::try_from(ranks * stages).unwrap());
    }
}

#[test]
fn a_slowed_worker_is_found_and_explains_the_slowdown() {
    let gang = Gang { ranks: 8, stages: 2, ..SMALL };
    let trace = gang.trace(|dp_rank, stage| if (dp_rank, stage) == (5, 1) { 3.0 } else { 1.0 });
    let analysis = found(&gang, &trace);
    assert!(analysis.slowdown > 1.5, "{}", analysis.slowdown);
    assert_eq!((analysis.workers[0].dp_rank, analysis.workers[0].stage), (5, 1));
    assert_eq!((analysis.by_dp_rank[0].part, analysis.by_stage[0].part), (5, 1));
    assert!(analysis.by_dp_rank[1].slowdown < 1.0 + 1e-9, "the others aren't slow");
    assert_eq!(analysis.cause(), Cause::Workers);
    let share = analysis.slowest_workers.share_removed;
    assert!((0.9..1.2).contains(&share), "{share}");
}

/// One data-parallel rank and one stage: the slowdown can be computed by hand. Microbatches are passes of 1 and 2 s, four
/// ranks of which one is twice as slow: the means are 1.25 and 2.5 s.
#[test]
fn the_slowdown_is_what_the_formula_says() {
    let gang = Gang { ranks: 4, stages: 1, microbatches: 3, steps: 2 };
    let analysis = found(&gang, &gang.trace(|dp_rank, _| if dp_rank == 2 { 2.0 } else { 1.0 }));
    let (passes, rest) = (3.0 * 3.0, 0.4);
    let expected = (2.0 * passes + rest) / (1.25 * passes + rest);
    assert!(is_near(analysis.slowdown, expected), "{} is not {expected}", analysis.slowdown);
    assert!(is_near(analysis.by_dp_rank[0].slowdown, expected));
    assert!(is_near(analysis.by_dp_rank[3].slowdown, 1.0));
    let kind = |name: &str| analysis.by_kind.iter().find(|share| share.part == name).unwrap().slowdown;
    let forward = (3.0 * (2.0 + 2.5) + rest) / (1.25 * passes + rest);
    assert!(is_near(kind("forward-compute"), forward), "{} is not {forward}", kind("forward-compute"));
}

#[test]
fn a_slow_last_stage_is_told_from_a_slow_worker() {
    let gang = Gang { ranks: 8, stages: 4, microbatches: 8, steps: 2 };
    let analysis = found(&gang, &gang.trace(|_, stage| if stage == 3 { 1.5 } else { 1.0 }));
    assert_eq!((analysis.by_stage[0].part, analysis.cause()), (3, Cause::LastStage));
    assert!(analysis.last_stage.share_removed > 0.9, "{}", analysis.last_stage.share_removed);
    assert!(analysis.slowest_workers.share_removed < 0.2, "{}", analysis.slowest_workers.share_removed);
}

#[test]
fn the_order_of_rows_changes_nothing() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let trace = SMALL.trace(|dp_rank, stage| 1.0 + 0.1 * f64::from(dp_rank + 3 * stage));
    let expected = found(&SMALL, &trace);
    for _ in 0..20 {
        let mut rows = trace.operations().to_vec();
        for last in (1..rows.len()).rev() {
            rows.swap(last, usize::try_from(random.next_u64() % (last as u64 + 1)).unwrap());
        }
        assert_eq!(found(&SMALL, &Trace::new(rows).unwrap()), expected);
    }
}

#[test]
fn csv_and_json_lines_hold_the_same() {
    let trace = SMALL.trace(|_, _| 1.0);
    let text = csv(&trace);
    let heading: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let object = |line: &str| {
        let field = |(name, value): (&&str, &str)| match *name {
            "optype" => format!("\"{name}\":\"{value}\""),
            _ => format!("\"{name}\":{value}"),
        };
        format!("{{{}}}\n", heading.iter().zip(line.split(',')).map(field).collect::<Vec<_>>().join(","))
    };
    let json: String = text.lines().skip(1).map(object).collect();
    let (of_csv, of_json) = (read(text.into_bytes()).unwrap(), read(json.into_bytes()).unwrap());
    assert_eq!(of_csv.operations(), trace.operations());
    // JSON's numbers are read to within a last digit.
    assert_eq!(of_json.operations().len(), trace.operations().len());
    for (read, made) in of_json.operations().iter().zip(trace.operations()) {
        assert!(is_near(read.start, made.start) && is_near(read.duration, made.duration), "{read:?} is not {made:?}");
        assert_eq!(Operation { start: made.start, duration: made.duration, ..*read }, *made);
    }
}

#[test]
fn a_bad_value_is_refused_with_its_row_and_column() {
    let says = |text: &str, problem: &str| assert_eq!(refused(text), problem);
    says(&changed(1, ",0.1,", ",-0.1,"), "row 1, column duration: -0.1 isn't a duration");
    says(&changed(1, ",0.1,", ",NaN,"), "row 1, column duration: NaN isn't a duration");
    says(&changed(2, ",0,0.1,", ",inf,0.1,"), "row 2, column start_ts: inf isn't a time");
    says(&changed(3, "0,0,", "four,0,"), "row 3, column dp_rank: \"four\" isn't a number of this column");
    says(&changed(3, "0,0,", ",0,"), "row 3, column dp_rank: there is no value");
    says(&changed(3, "0,0,", "-1,0,"), "row 3, column dp_rank: -1 is out of range");
    says(&changed(3, "0,0,", "9,0,"), "row 3, column dp_rank: 9 is outside of the layout, which has 4");
    says(&changed(3, "0,0,0,", "0,7,0,"), "row 3, column stage: 7 is outside of the layout, which has 2");
    says(&changed(3, "0,0,0,", "0,0,88,"), "row 3, column rank: 88 is outside of the layout, which has 8");
    says(&changed(0, "duration", "length"), "column duration: the trace doesn't have it");
    assert!(
        refused(&changed(1, "params", "parms")).starts_with("row 1, column optype: no operation \"parms-all-gather\"")
    );
}

#[test]
fn an_empty_file_is_refused() {
    assert_eq!(refused(""), "the trace has no operations");
    assert_eq!(refused(" \n"), "the trace has no operations");
    assert_eq!(refused(&read::COLUMNS.join(",")), "the trace has no operations");
    assert!(refused("PAR1 and nothing more").starts_with("the trace can't be read as Parquet"));
    assert!(refused("{\"dp_rank\": 0").starts_with("the trace can't be read as JSON lines: row 1"));
}

#[test]
fn an_operation_out_of_place_is_refused_by_name() {
    let without = |is_left_out: fn(&Operation) -> bool| {
        let rows = SMALL.trace(|_, _| 1.0).operations().to_vec();
        let rows: Vec<Operation> = rows.into_iter().filter(|row| !is_left_out(row)).collect();
        analyse(&Trace::new(rows).unwrap(), &layout(&SMALL)).unwrap_err().to_string()
    };
    let is_gone =
        |row: &Operation| row.step == 1 && row.kind == Kind::ForwardSend && row.sequence == 1 && row.dp_rank == 2;
    let message = "step 1, dp rank 2, forward-send 1 of stage 0: it isn't there, but the first step has it";
    assert_eq!(without(is_gone), message);
    let message = without(|row| row.kind == Kind::ForwardReceive);
    assert!(message.ends_with("its partner, forward-recv 0 of stage 1, isn't there"), "{message}");
    let message = without(|row| row.kind == Kind::ForwardCompute && row.sequence == 1);
    assert!(message.ends_with("the numbers (seq_id) of its kind have a gap or a double before it"), "{message}");
    assert!(without(|row| row.kind == Kind::Optimizer).ends_with("it has no optimizer, and a step needs one"));
    let mut rows = SMALL.trace(|_, _| 1.0).operations().to_vec();
    rows.extend(rows.iter().rfind(|row| row.kind == Kind::Optimizer).copied());
    let twice = analyse(&Trace::new(rows).unwrap(), &layout(&SMALL)).unwrap_err().to_string();
    assert_eq!(twice, "step 2, dp rank 3, optimizer 0 of stage 1: it is there twice");
}

/// Whatever a file says, it is an answer or a refusal.
#[test]
fn damaged_files_never_panic() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let whole = csv(&SMALL.trace(|_, _| 1.0)).into_bytes();
    let below = |most: usize, random: &mut ChaCha8Rng| usize::try_from(random.next_u64() % most as u64).unwrap();
    let mut refusals = 0;
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..=below(3, &mut random) {
            let at = below(bytes.len(), &mut random);
            bytes[at] = b"0123456789,-.eN\n"[below(16, &mut random)];
        }
        refusals += usize::from(read(bytes).and_then(|trace| analyse(&trace, &layout(&SMALL))).is_err());
    }
    assert!(refusals > 200, "{refusals} of 2000 were refused");
}

#[test]
fn a_layout_says_what_is_wrong_with_it() {
    let wrong = |text: &str| Layout::parse(text).unwrap_err().to_string();
    assert_eq!(wrong("dp=4,qq=2"), "layout: no key \"qq\": there are dp, pp, tp, dsp and vpp");
    assert_eq!(wrong("dp=0"), "layout: dp is \"0\", not a number from 1 to 1048576");
    assert_eq!(wrong("dp=2,dp=3"), "layout: dp is there twice");
    assert_eq!(wrong("dp"), "layout: \"dp\" has no key and value");
    let meta =
        "trial_name: AR\nrun_id: 0\ndp_size: 4\ndsp_size: 1\npp_size: 4\ntp_size: 4\nvpp_size: 1\nworld_size: 64\n";
    assert_eq!(Layout::parse_meta(meta).unwrap().world(), 64);
    let wrong = Layout::parse_meta(&meta.replace("64", "32")).unwrap_err().to_string();
    assert_eq!(wrong, "layout: world_size is 32, but dp x pp x tp x dsp is 64");
}

#[test]
fn a_timeline_has_every_operation_and_names_every_thread() {
    let trace = SMALL.trace(|_, _| 1.0);
    let mut bytes = Vec::new();
    timeline(&trace, &mut bytes).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = value["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert_eq!(of_phase("X"), trace.operations().len());
    assert_eq!(of_phase("M"), 4 * 2 * 3 * 3, "ranks x stages x streams x (process, thread, order)");
    let begin = |step: i64| {
        let of_step = events.iter().filter(|event| event["args"]["step"] == step);
        of_step.map(|event| event["ts"].as_f64().unwrap()).fold(f64::INFINITY, f64::min)
    };
    assert!(begin(0) == 0.0 && begin(1) > 9.0e6 && begin(2) > begin(1) + 9.0e6, "steps follow each other");
}
