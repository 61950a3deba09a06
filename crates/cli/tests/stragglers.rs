//! `gangline stragglers` from the outside: a small trace with a known answer, its timeline, and what is refused.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const HEADING: &str = "step,optype,dp_rank,stage,rank,start_ts,duration,seq_id,mc,gmc,mb_id";

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn stragglers(folder: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    let output = command.arg("stragglers").args(arguments).current_dir(folder).output().expect("gangline runs");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Two steps of four ranks, each a forward pass of 1 s, a backward pass of 2 s, the gradients of 0.5 s together and an
/// optimizer of 0.5 s; rank 3 is twice as slow at its passes.
fn trace() -> String {
    let mut lines = vec![HEADING.to_owned()];
    for step in 7..9 {
        for rank in 0..4 {
            let factor = if rank == 3 { 2.0 } else { 1.0 };
            let done = 3.0 * factor;
            let mut row = |kind: &str, start: f64, duration: f64, chunk: &str| {
                lines.push(format!("{step},{kind},{rank},0,{rank},{start},{duration},0,{chunk}"));
            };
            row("forward-compute", 0.0, factor, "0,0,0");
            row("backward-compute", factor, 2.0 * factor, "0,0,0");
            row("grads-reduce-scatter", done, 6.5 - done, "0,0,");
            row("optimizer", 6.5, 0.5, ",,");
        }
    }
    lines.join("\n")
}

fn folder(trace: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("trace.csv"), trace).expect("the trace can be written");
    folder
}

#[test]
fn a_slow_rank_is_named_with_what_it_costs() {
    let folder = folder(&trace());
    let ran = stragglers(folder.path(), &["--trace", "trace.csv", "--json", "--perfetto", "timeline.json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    // As it was, 6 + 0.5 + 0.5 s; ideally, passes of 1.25 and 2.5 s.
    let slowdown = found["slowdown"].as_f64().expect("a number");
    assert!((slowdown - 7.0 / 4.75).abs() < 1e-9, "{slowdown}");
    assert_eq!((&found["workers"][0]["rank"], &found["cause"]), (&Value::from(3), &Value::from("workers")));
    assert_eq!(found["by_dp_rank"][0]["dp_rank"], 3);
    let steps: Vec<&Value> = found["steps"].as_array().expect("steps").iter().map(|step| &step["step"]).collect();
    assert_eq!(steps, [7, 8]);
    let timeline = std::fs::read(folder.path().join("timeline.json")).expect("the timeline is there");
    let timeline: Value = serde_json::from_slice(&timeline).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("events");
    assert_eq!(events.iter().filter(|event| event["ph"] == "X").count(), 2 * 4 * 4);

    let text = stragglers(folder.path(), &["--trace", "trace.csv", "--layout", "dp=4,tp=2"]).stdout;
    assert!(text.contains("Steps take 7.0 s on average, 1.474 times as long as without stragglers (4.8 s)."), "{text}");
    assert!(text.contains("Look at the machines of the slowest workers (rank 3 first)."), "{text}");
}

#[test]
fn what_cannot_be_analysed_is_refused_with_its_place() {
    let refused = |trace: &str, arguments: &[&str], problem: &str| {
        let folder = folder(trace);
        let ran = stragglers(folder.path(), &[&["--trace", "trace.csv"], arguments].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        let said = format!("error[G0801]: failed to analyse {problem}");
        assert!(ran.stderr.starts_with(&said), "{:?} does not begin with {said:?}", ran.stderr);
    };
    let whole = trace();
    refused("", &[], "trace.csv: the trace has no operations");
    refused(&whole.replacen(",1,0,0,0,0", ",-1,0,0,0,0", 1), &[], "trace.csv: row 1, column duration: -1");
    refused(&whole, &["--layout", "dp=2"], "trace.csv: row 9, column dp_rank: 2 is outside of the layout, which has 2");
    refused(&whole, &["--layout", "dp=x"], "trace.csv: layout: dp is \"x\"");
    refused(&whole, &["--meta", "nowhere.yaml"], "nowhere.yaml: No such file");
    let lines: Vec<&str> = whole.lines().collect();
    let problem = "trace.csv: step 8, dp rank 3, optimizer 0 of stage 0: it isn't there, but the first step has it";
    refused(&lines[..lines.len() - 1].join("\n"), &[], problem);
}
