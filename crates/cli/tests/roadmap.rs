//! `gangline cost roadmap` from the outside: pasts with known answers, and what is refused.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn roadmap(folder: &Path, file: &str, arguments: &[&str]) -> Ran {
    std::fs::write(folder.join("growth.toml"), file).expect("the folder is writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gangline"));
    command.args(["cost", "roadmap", "growth.toml", "--trace", "past.csv"]).args(arguments);
    let output = command.current_dir(folder).output().expect("gangline runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A past in which so many jobs begin at each midnight, on eight devices for twelve hours.
fn past(folder: &Path, days: u64, jobs: impl Fn(u64) -> u64) {
    let mut text = "job_id,submit_s,duration_s,gpus,user,vc\n".to_owned();
    for day in 0..days {
        for number in 0..jobs(day) {
            // Writing to a String can't fail.
            let _ = writeln!(text, "j{day}-{number},{},43200,8,ada,research", day * 86_400);
        }
    }
    std::fs::write(folder.join("past.csv"), text).expect("the folder is writable");
}

/// Eight jobs a day on 16 nodes want 32 of 128 devices. They double each month: after two months they want all of them.
#[test]
fn what_doubles_each_month_runs_out_when_it_has_to() {
    let folder = tempfile::tempdir().expect("a folder");
    past(folder.path(), 29, |_| 8);
    let file = "months = 2\nlead = 1\nusd_per_device_hour = 2.0\n[growth]\njobs = [0.0, 1.0, 1.0]\n\
                [storage]\nnow_tib = 100\ngrowth = 0.5\ncapacity_tib = 200\nusd_per_tib_month = 10\n\
                [[option]]\nname = 'sixteen'\nbuy = [{nodes = 16, order = 0, lead = 1, usd_per_device_hour = 1.0}]\n";
    let found = roadmap(folder.path(), file, &["--cluster", "16x8", "--json"]);
    let found: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|_| panic!("{}", found.stderr));
    let [nothing, sixteen] = found["options"].as_array().expect("a list").as_slice() else { panic!("{found:#}") };
    let wanted = |outlook: &str| -> Vec<f64> {
        let months = nothing["months"][outlook].as_array().expect("a list");
        months.iter().map(|month| month["devices_wanted"].as_f64().expect("a number")).collect()
    };
    assert_eq!((wanted("p10"), wanted("p50")), (vec![32.0; 3], vec![32.0, 64.0, 128.0]));
    assert_eq!((&nothing["waits_from_month"]["p10"], &nothing["waits_from_month"]["p50"]), (&Value::Null, &2.into()));
    assert_eq!(nothing["months"]["p50"][2]["wait_p95_seconds"], Value::Null, "the line only grows");
    assert_eq!(nothing["months"]["p50"][1]["wait_p95_seconds"], 0.0);
    assert_eq!(sixteen["waits_from_month"]["p90"], Value::Null);
    assert_eq!(found["storage_full_in_month"]["p50"], 2, "100, 150, 225");
    let devices = 128.0 * 2.0 * 730.0 * 2.0;
    assert_eq!(nothing["cost_dollars"]["p50"], devices + (100.0 + 150.0) * 10.0);
    assert_eq!(sixteen["cost_dollars"]["p50"], devices + (100.0 + 150.0) * 10.0 + 16.0 * 8.0 * 730.0);
    // 32 jobs at one time hold 32 nodes, and whoever has none waits for twelve hours.
    let needed = found["nodes_needed"]["p50"].as_u64().expect("a number");
    assert!((14..=18).contains(&needed) && found["nodes_needed"]["p10"] == 0, "{found:#}");

    let text = roadmap(folder.path(), file, &["--cluster", "16x8"]).stdout;
    for part in ["month 2 (P10 not in this time, P90 month 2)", "no end", "is to be ordered in month 1 (P10 not"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn without_a_figure_the_growth_is_fitted_to_the_past() {
    let folder = tempfile::tempdir().expect("a folder");
    // 10 % more a week: 100, 110, 121, 133 and so on, rounded.
    let week = |day: u64| u32::try_from(day / 7).expect("few");
    past(folder.path(), 64, |day| (0..week(day)).fold(100_u64, |jobs, _| (jobs * 11 + 5) / 10));
    let found = roadmap(folder.path(), "months = 1", &["--cluster", "400x8", "--json"]);
    let found: Value = serde_json::from_str(&found.stdout).unwrap_or_else(|_| panic!("{}", found.stderr));
    let expected = 1.1_f64.powf(365.25 / 84.0) - 1.0;
    let fitted = found["jobs_growth"]["p50"].as_f64().expect("a number");
    assert!(found["is_growth_fitted"] == true && (fitted / expected - 1.0).abs() < 0.02, "{fitted} beside {expected}");
}

#[test]
fn what_says_too_little_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    past(folder.path(), 6, |_| 1);
    let check = |file: &str, part: &str| {
        let ran = roadmap(folder.path(), file, &["--cluster", "1x8"]);
        assert!(ran.code == Some(1) && ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
    };
    check("", "fitted to 6 or more");
    check("[growth]\njobs = 0.1", "5 whole day(s) of jobs, and 7 are needed");
    check("months = 99", "`months` is 99: write 1 to 60");
    past(folder.path(), 9, |_| 1);
    check("[growth]\njobs = 0.1\n[[team]]\nqueue = 'vision'", "in the queue \"vision\" of a team");
}
