//! The client: submits, and asks for jobs' ends. It holds the product to nothing but what it was answered.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::Soak;
use super::jobs::{Kind, POINTS, pick};
use super::watch;
use super::world::Answer;

/// Jobs that haven't ended, at most: none of them waits for long.
const OUTSTANDING_MAX: usize = 20;
/// Of so many turns, one asks for a job's end.
const CANCEL_ONE_IN: u64 = 25;
/// The longest pause between two turns, in milliseconds.
const PAUSE_MAX: u64 = 600;

/// Submits and cancels until it is told to stop. `number` tells this client from others.
///
/// # Errors
/// When the record can't be written.
pub(super) fn run(soak: &Soak, number: u64) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(soak.seed);
    random.set_stream(number);
    let mut sent = 0_u64;
    while !soak.is_quiet.load(Ordering::Relaxed) {
        {
            let _pass = soak.pass();
            let outstanding = soak.oracle().outstanding();
            if random.next_u64().is_multiple_of(CANCEL_ONE_IN) && !outstanding.is_empty() {
                let (name, id) = &outstanding[pick(&mut random, outstanding.len())];
                cancel(soak, name, id)?;
            } else if outstanding.len() < OUTSTANDING_MAX {
                sent += 1;
                submit(soak, &format!("c{number}-{sent}"), Kind::any(&mut random), &mut random)?;
            }
        }
        std::thread::sleep(Duration::from_millis(random.next_u64() % PAUSE_MAX));
    }
    Ok(())
}

/// Submits a job of this name, or a sweep; whether it was acknowledged.
///
/// # Errors
/// When the record can't be written.
pub(super) fn submit(soak: &Soak, name: &str, kind: Kind, random: &mut ChaCha8Rng) -> Result<bool> {
    let names: Vec<String> = match kind {
        Kind::Point => POINTS.iter().map(|point| format!("{name}/POINT={point}")).collect(),
        _ => vec![name.to_owned()],
    };
    let witness = soak.world.path("witness").join(name);
    let text = kind.file(name, &soak.world.path("job.bash"), &witness, random);
    let file = format!("{name}.yaml");
    std::fs::write(soak.world.path(&file), text).context("write a job file")?;
    // What a sweep's job adds to the witness's name is its value.
    let of = |job: &str| soak.world.path("witness").join(job.replacen("/POINT=", "", 1));
    soak.oracle().sends(&names, kind, of)?;
    let answer = soak.world.ask(&["submit", &file]);
    let _ = std::fs::remove_file(soak.world.path(&file));
    let mut oracle = soak.oracle();
    match answer {
        Answer::Done(answer) => oracle.acknowledged(&names, &watch::ids(&answer)).map(|()| true),
        Answer::Refused(why) => oracle.refused(&names, &why).map(|()| false),
        Answer::NotFound => oracle.refused(&names, "not found").map(|()| false),
        Answer::Unknown(why) => oracle.unanswered(&names, &why).map(|()| false),
    }
}

fn cancel(soak: &Soak, name: &str, id: &str) -> Result<()> {
    soak.oracle().cancels(name)?;
    if matches!(soak.world.ask(&["cancel", id]), Answer::Done(_)) {
        soak.oracle().counts.cancelled += 1;
    }
    Ok(())
}
