//! `goodput`: how much of a job's time was productive, and where the rest went by the names of Google's ml-goodput-measurement.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use gangline_accounting::goodput::badput_type;
use gangline_api as api;
use gangline_base::Bucket;
use serde_json::{Value, json};

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::output;

/// Which job.
#[derive(Args, Debug)]
pub(crate) struct GoodputArgs {
    /// The job, as job-3 or 3
    job: String,
    /// Print JSON with the names of Google's ml-goodput-measurement
    #[arg(long)]
    ml_goodput: bool,
}

pub(crate) fn run(client: &Client, args: &GoodputArgs, is_json: bool) -> Result<(), Failure> {
    let goodput: api::JobGoodput = client.get(&format!("/jobs/{}/goodput", path_segment(&args.job)))?;
    match (args.ml_goodput, is_json) {
        (true, _) => {
            if goodput.runtime_goodput.is_none() {
                output::tell(&format!("what the ranks did isn't known, and counts as OTHER: {}", unknown(&goodput)));
            }
            output::json(&ml_goodput(&goodput))
        }
        (false, true) => output::json(&goodput),
        (false, false) => output::print(&text(&goodput)),
    }
}

fn text(goodput: &api::JobGoodput) -> String {
    let kind = if goodput.is_estimated { "estimated, an attempt still runs" } else { "measured" };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut text = match (goodput.runtime_goodput, goodput.ettr) {
        (Some(runtime), Some(ettr)) => {
            let (runtime, ettr) = (percent(runtime), percent(ettr));
            format!("{}: runtime goodput {runtime}, with the time in the queue (ETTR) {ettr} ({kind})\n", goodput.job)
        }
        _ => format!("{}: goodput unknown: {}\n", goodput.job, unknown(goodput)),
    };
    // Writing to a String can't fail.
    let (wall, held) = (goodput.wall_seconds, goodput.held_seconds);
    let first = (wall - held - goodput.recovering_seconds).max(0.0);
    let of = |seconds: f64| output::seconds(seconds);
    let _ = writeln!(
        text,
        "  {} since its submission: held devices for {}, waited {} for the first and {} after that; {} disruption(s)",
        of(wall),
        of(held),
        of(first),
        of(goodput.recovering_seconds),
        goodput.disruptions
    );
    let total: f64 = goodput.buckets.iter().map(|line| line.gpu_seconds).sum();
    let rows = goodput.buckets.iter().filter(|line| line.gpu_nanoseconds > 0).map(|line| {
        let google = Bucket::from_name(&line.bucket).and_then(badput_type).unwrap_or("productive");
        let share = format!("{:.1} %", line.gpu_seconds / total * 100.0);
        vec![line.bucket.clone(), format!("{:.3} s", line.gpu_seconds), share, google.to_owned()]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return text;
    }
    text + "\n" + &output::table(&["BUCKET", ">DEVICE TIME", ">SHARE", "IN ML-GOODPUT"], rows)
}

/// Says why the goodput isn't known.
fn unknown(goodput: &api::JobGoodput) -> &'static str {
    if goodput.buckets.iter().all(|line| line.gpu_nanoseconds == 0) {
        "no device time has been reported yet"
    } else {
        "its ranks report no steps (docs/reference/rank-protocol.md)"
    }
}

/// Returns the time with the keys and names of `WorkloadMetricDetails` in ml-goodput-measurement 0.2.3. Its times are seconds of
/// the job, not of devices, and the time after a disruption without devices counts; that before the first ones doesn't.
fn ml_goodput(goodput: &api::JobGoodput) -> Value {
    let total: f64 = goodput.buckets.iter().map(|line| line.gpu_seconds).sum();
    let of_job = |device_seconds: f64| if total > 0.0 { device_seconds / total * goodput.held_seconds } else { 0.0 };
    let mut productive = 0.0;
    let mut badput: BTreeMap<&str, f64> = BTreeMap::new();
    for line in &goodput.buckets {
        match Bucket::from_name(&line.bucket).and_then(badput_type) {
            Some(name) => *badput.entry(name).or_default() += of_job(line.gpu_seconds),
            None => productive += of_job(line.gpu_seconds),
        }
    }
    badput.insert("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", goodput.recovering_seconds);
    let named = |(name, seconds): (&str, f64)| match name {
        "CUSTOM_BADPUT_EVENTS" => (name.to_owned(), json!({Bucket::StragglerWait.name(): seconds})),
        _ => (name.to_owned(), json!(seconds)),
    };
    json!({
        "goodput_time": {"TOTAL": productive},
        "badput_time": badput.into_iter().map(named).collect::<serde_json::Map<String, Value>>(),
        "max_productive_step": goodput.step,
        "total_elapsed_time": goodput.held_seconds + goodput.recovering_seconds,
        "disruption_count": goodput.disruptions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn googles_names_hold_all_of_the_time_of_the_job() {
        let line = |(bucket, seconds): (&str, f64)| api::BucketLine {
            bucket: bucket.to_owned(),
            gpu_seconds: seconds,
            gpu_nanoseconds: 1,
            cost_nano_dollars: 0,
        };
        let buckets = [
            ("compute", 40.0),
            ("communication", 20.0),
            ("straggler_wait", 10.0),
            ("restart", 20.0),
            ("idle", 6.0),
            ("unreported", 4.0),
        ];
        let goodput = api::JobGoodput {
            job: "job-1".to_owned(),
            wall_seconds: 100.0,
            held_seconds: 50.0,
            recovering_seconds: 30.0,
            runtime_goodput: Some(0.6),
            ettr: Some(0.3),
            disruptions: 1,
            step: Some(7),
            buckets: buckets.map(line).to_vec(),
            is_estimated: false,
        };
        let expected = json!({
            "goodput_time": {"TOTAL": 30.0},
            "badput_time": {"CUSTOM_BADPUT_EVENTS": {"straggler_wait": 5.0}, "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 30.0,
                "OTHER": 5.0, "PROGRAM_STARTUP": 10.0},
            "max_productive_step": 7, "total_elapsed_time": 80.0, "disruption_count": 1,
        });
        assert_eq!(ml_goodput(&goodput), expected);
        let text = text(&goodput);
        assert!(
            text.starts_with("job-1: runtime goodput 60.0 %, with the time in the queue (ETTR) 30.0 % (measured)\n"),
            "{text}"
        );
        let unknown = api::JobGoodput { runtime_goodput: None, ettr: None, ..goodput };
        assert!(super::text(&unknown).starts_with("job-1: goodput unknown: its ranks report no steps"));
        let nothing = super::text(&api::JobGoodput { buckets: Vec::new(), ..unknown });
        assert!(nothing.contains("no device time has been reported yet") && !nothing.contains("BUCKET"), "{nothing}");
        assert!(text.contains("waited 20.0 s for the first and 30.0 s after that; 1 disruption(s)"), "{text}");
    }
}
