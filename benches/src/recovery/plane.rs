//! The control plane killed and started again at random moments, while jobs start, train, save and end: no job may notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Bench;
use super::product::{Product, is_over, rank_pid};
use crate::report::Bar;

/// Ranks of each of the two jobs that train at a time.
const RANKS: [u32; 2] = [2, 1];
/// The longest time that the control plane lives and is away.
const LIVES_MOST: Duration = Duration::from_millis(2_500);
const AWAY_MOST: Duration = Duration::from_millis(1_500);

/// Steps of a job, and the least time that each takes: a job among restarts, and what a job makes more after a long absence.
const STEPS: u64 = 300;
const STEP: Duration = Duration::from_millis(20);
const STEPS_AFTERWARDS: u64 = 20;
const LONG_STEP: Duration = Duration::from_millis(500);

/// Jobs of a pair, and the processes that their ranks had at first.
type Pair = BTreeMap<String, Option<u32>>;

/// Kills, and counts whom that disturbed; then leaves it away for long.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    killed_often(bench)?;
    away_for_long(bench)
}

fn killed_often(bench: &mut Bench) -> Result<()> {
    bench.report.section("The control plane killed and started again at random moments, two jobs of tinygpt at a time");
    let mut product = Product::up(bench.gangline.clone(), "a=cpu:3", &[])?;
    let (mut kills, mut jobs, mut disturbed, mut back) = (0, 0_u32, 0_u32, Vec::new());
    while kills < bench.options.restarts {
        let mut pair = submit(&product, STEPS, STEP)?;
        jobs += u32::try_from(pair.len()).unwrap_or(u32::MAX);
        while kills < bench.options.restarts && !are_over(&product, &mut pair)?.0 {
            std::thread::sleep(bench.moment_below(LIVES_MOST));
            product.kill()?;
            std::thread::sleep(bench.moment_below(AWAY_MOST));
            let began = std::time::Instant::now();
            product.start()?;
            back.push(began.elapsed());
            kills += 1;
        }
        disturbed += count(bench, end(&product, &mut pair, STEPS)?);
    }
    let what = format!("jobs disturbed, of {jobs} at {kills} kills");
    bench.report.figure(&what, f64::from(disturbed), "", Bar::AtMost(0.0));
    bench.times("until the control plane answers again", &mut back, None);
    Ok(())
}

fn away_for_long(bench: &mut Bench) -> Result<()> {
    let away = Duration::from_secs(bench.options.away);
    bench.report.section(&format!("The control plane away for {} s, two jobs of tinygpt meanwhile", away.as_secs()));
    let mut product = Product::up(bench.gangline.clone(), "a=cpu:3", &[])?;
    let steps = u64::try_from(away.as_millis() / LONG_STEP.as_millis()).unwrap_or(u64::MAX) + STEPS_AFTERWARDS;
    let mut pair = submit(&product, steps, LONG_STEP)?;
    while pair.values().any(Option::is_none) {
        are_over(&product, &mut pair)?;
    }
    product.kill()?;
    std::thread::sleep(away);
    product.start()?;
    let disturbed = count(bench, end(&product, &mut pair, steps)?);
    bench.report.figure(&format!("jobs disturbed, of {}", pair.len()), f64::from(disturbed), "", Bar::AtMost(0.0));
    Ok(())
}

/// How many were disturbed, each with its reason in the report.
fn count(bench: &mut Bench, disturbed: BTreeMap<String, String>) -> u32 {
    for (id, why) in &disturbed {
        bench.report.note(&format!("{id} was disturbed: {why}"));
    }
    u32::try_from(disturbed.len()).unwrap_or(u32::MAX)
}

fn submit(product: &Product, steps: u64, step: Duration) -> Result<Pair> {
    let training = format!("--steps {steps} --step-time-min {}", step.as_millis());
    let of = |ranks: u32| {
        let name = format!("steady-{ranks}");
        // Each pair begins anew.
        let _ = std::fs::remove_dir_all(product.folder.path(&name));
        let id = product.submit(&product.training(&name, ranks, &training))?;
        Ok((id, None))
    };
    RANKS.into_iter().map(of).collect()
}

/// Whether all have ended, and who was disturbed so far: whose first rank isn't the one it was.
fn are_over(product: &Product, pair: &mut Pair) -> Result<(bool, Vec<(String, String)>)> {
    let (mut are_over, mut changed) = (true, Vec::new());
    for (id, first) in pair {
        let job = product.job(id)?;
        are_over &= is_over(&job);
        let now = rank_pid(&job, 0);
        match (*first, now) {
            (None, _) => *first = now,
            (Some(first), Some(now)) if first != now => changed.push((id.clone(), format!("{first} became {now}"))),
            (Some(_), _) => {}
        }
    }
    Ok((are_over, changed))
}

/// Waits until both have ended; who was disturbed, and how.
fn end(product: &Product, pair: &mut Pair, steps: u64) -> Result<BTreeMap<String, String>> {
    let mut disturbed = BTreeMap::new();
    loop {
        let (are_over, changed) = are_over(product, pair)?;
        disturbed.extend(changed);
        if are_over {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for id in pair.keys() {
        if let Some(why) = disturbance(&product.job(id)?, steps)? {
            disturbed.insert(id.clone(), why);
        }
    }
    Ok(disturbed)
}

/// What is wrong with a job that should have gone through in one go.
fn disturbance(job: &Value, steps: u64) -> Result<Option<String>> {
    let attempts = job["attempts"].as_array().context("read the attempts")?.len();
    let (state, faults) = (&job["state"], &job["faults"]);
    let is_calm = state == "succeeded" && attempts == 1 && faults == 0 && job["progress"]["step"] == steps;
    Ok((!is_calm).then(|| format!("{state}, {attempts} attempt(s), {faults} fault(s): {}", job["because"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_disturbed_unless_it_went_through_in_one_go() {
        let job = |state: &str, attempts: &[u32], faults: u32| serde_json::json!({"state": state, "attempts": attempts, "faults": faults, "progress": {"step": 300}});
        assert_eq!(disturbance(&job("succeeded", &[1], 0), 300).unwrap(), None);
        assert!(disturbance(&job("succeeded", &[1, 2], 0), 300).unwrap().is_some());
        assert!(disturbance(&job("succeeded", &[1], 1), 300).unwrap().is_some());
        assert!(disturbance(&job("failed", &[1], 0), 300).unwrap().is_some());
    }
}
