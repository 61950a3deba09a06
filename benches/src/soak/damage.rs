//! The journal is damaged while the control plane is down. What was acknowledged is there at the next start, or the product says what isn't:
//! a silent loss is never right.

use anyhow::{Context as _, Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::json;

use super::chaos::Chaos;
use super::journal::{self, Head};
use super::oracle::Lost;
use super::verdict::Scenario;
use super::world::{Answer, Start, World};
use super::{jobs, watch};

/// The option by which a person takes a loss upon herself.
const ACCEPT: &str = "--accept-loss-after";
/// How a control plane refuses a database that isn't one any more.
const DAMAGED: &str = "error[G0203]";
/// What a refusal says that a rebuild may mend.
const REBUILD: &str = "gangline rebuild";
/// What a control plane logs that met damaged rows at its start.
const TOLD_DAMAGE: &str = "what is stored isn't what was written";
/// Jobs that are looked at after each start, besides those that the loss may be about.
const SAMPLE: usize = 40;

/// Kills the control plane, damages the journal, and starts it again; how that went.
///
/// # Errors
/// When the product can't be brought up any more, not even on the undamaged journal.
pub(super) fn run(chaos: &mut Chaos<'_>, scenario: Scenario) -> Result<String> {
    let soak = chaos.soak;
    // Drawn anew, so that what is drawn here doesn't change what comes next.
    let mut random = ChaCha8Rng::seed_from_u64(chaos.random.next_u64());
    let _closed = soak.close();
    let world = &soak.world;
    let (data, intact, look, older) = (world.data(), world.path("intact"), world.path("look"), world.path("older"));
    world.kill()?;
    journal::copy(&data, &intact)?;
    // Reading a copy changes its files.
    journal::copy(&intact, &look)?;
    let (head, anchored) = (journal::head(&look)?, journal::anchored(&data)?);
    if !matches!(scenario, Scenario::Rollback | Scenario::PutBack) {
        keep(world)?;
    }
    let what = match scenario {
        Scenario::Cut => journal::cut_log(&data, &mut random)?,
        Scenario::FlipLog => journal::flip_log(&data, &mut random)?,
        Scenario::FlipDatabase => journal::flip_database(&data, &mut random)?,
        Scenario::FlipAnchor => journal::flip_anchor(&data, &mut random)?,
        _ if !older.exists() => None,
        Scenario::PutBack => {
            journal::copy_anchor(&older, &data)?;
            journal::copy(&older, &data)?;
            Some("an older copy and its anchor put back".to_owned())
        }
        _ => {
            journal::copy(&older, &data)?;
            Some("an older copy put back".to_owned())
        }
    };
    soak.oracle().record.note("damage", &json!({"scenario": scenario.name(), "what": what, "head": head.sequence}))?;
    let outcome = match (what, world.start(&[])?) {
        (None, Start::Up(_)) => "nothing to damage".to_owned(),
        (None, Start::Refused(log)) => bail!("the control plane doesn't start on an undamaged journal: {log}"),
        (Some(_), Start::Up(_)) if scenario == Scenario::PutBack => {
            let common = journal::common(&look, &data)?;
            accept(chaos, scenario, common)?;
            "started with what was put back".to_owned()
        }
        (Some(_), Start::Up(log)) if scenario == Scenario::FlipDatabase => {
            chaos.soak.world.kill()?;
            made_again(chaos, scenario, &head, Some(&log))?
        }
        (Some(_), Start::Refused(log)) if scenario == Scenario::FlipDatabase && log.contains(REBUILD) => {
            made_again(chaos, scenario, &head, None)?
        }
        (Some(_), Start::Up(log)) => started(chaos, scenario, (&head, anchored), &log)?,
        (Some(_), Start::Refused(log)) => refused(chaos, scenario, &head, &log)?,
    };
    Ok(outcome)
}

/// Keeps a copy of the journal of a control plane that is down, to be put back later, unless there is one.
///
/// # Errors
/// When it can't be copied.
pub(super) fn keep(world: &World) -> Result<()> {
    let (data, older) = (world.data(), world.path("older"));
    if older.exists() {
        return Ok(());
    }
    journal::copy(&data, &older)?;
    journal::copy_anchor(&data, &older)
}

/// The control plane took the damaged journal: whole, or it has said what is missing. A record after the anchored one was being
/// written when the control plane was killed, so it may go without a word, but nothing that anybody was told of may go with it.
fn started(chaos: &mut Chaos<'_>, scenario: Scenario, (head, anchored): (&Head, u64), log: &str) -> Result<String> {
    let world = &chaos.soak.world;
    if journal::has(&world.data(), head)? {
        check(chaos, scenario, None)?;
        return Ok("started, nothing lost".to_owned());
    }
    let (last_sound, outcome) = match told(log) {
        Some(sequence) => (sequence, "started, told what is lost"),
        None => {
            let common = journal::common(&world.path("look"), &world.data())?;
            if common >= anchored {
                check(chaos, scenario, None)?;
                return Ok("started, lost only what nobody was told of".to_owned());
            }
            let (lost, last) = (anchored - common, head.sequence);
            let text = format!("{lost} acknowledged records of {last} were lost without a word; the log: {log}");
            chaos.fail(scenario, &text);
            (common, "started, SILENT LOSS")
        }
    };
    accept(chaos, scenario, last_sound)?;
    Ok(outcome.to_owned())
}

/// What isn't the journal itself is made again from it, and was told by a control plane that started all the same.
fn made_again(chaos: &mut Chaos<'_>, scenario: Scenario, head: &Head, log: Option<&str>) -> Result<String> {
    let world = &chaos.soak.world;
    let Answer::Done(made) = world.ask(&["rebuild"]) else {
        go_back(chaos, scenario, head, log.is_some())?;
        return Ok("the journal itself was hit, put back from a copy".to_owned());
    };
    if !made["journal"].is_null() {
        go_back(chaos, scenario, head, log.is_some())?;
        return Ok("a record of the past was hit, put back from a copy".to_owned());
    }
    let differs = made["differences_total"].as_u64().unwrap_or(0) > 0;
    if differs && log.is_some_and(|log| !log.contains(TOLD_DAMAGE)) {
        let text = format!("the control plane started and said nothing, and {}", made["differences"]);
        chaos.fail(scenario, &text);
    }
    chaos.start().context("start with read models that were made again")?;
    check(chaos, scenario, None)?;
    let how = if log.is_some() { "started" } else { "refused" };
    let what = if made["before"].is_null() { "nothing differs" } else { "made again from the journal" };
    Ok(format!("{how}, {what}"))
}

/// Puts the journal back; what a control plane did that had started on the damaged one is lost, and that is accepted by name.
fn go_back(chaos: &mut Chaos<'_>, scenario: Scenario, head: &Head, had_started: bool) -> Result<()> {
    if !had_started {
        return put_back(chaos, scenario);
    }
    let world = &chaos.soak.world;
    journal::copy(&world.path("intact"), &world.data())?;
    match world.start(&[ACCEPT, &head.sequence.to_string()])? {
        Start::Up(_) => accept(chaos, scenario, head.sequence),
        Start::Refused(log) => bail!("the control plane doesn't start on a journal that was put back: {log}"),
    }
}

/// The control plane refused the damaged journal: it says how to go on without what is lost, or that a backup is needed.
fn refused(chaos: &mut Chaos<'_>, scenario: Scenario, head: &Head, log: &str) -> Result<String> {
    let world = &chaos.soak.world;
    if let Some(sequence) = after(log, ACCEPT) {
        match world.start(&[ACCEPT, &sequence.to_string()])? {
            Start::Up(_) if sequence > head.sequence => {
                chaos.fail(
                    scenario,
                    &format!("told to accept a loss after {sequence}, and {} was the last", head.sequence),
                );
                return Ok("refused with a wrong number".to_owned());
            }
            Start::Up(_) => {
                accept(chaos, scenario, sequence)?;
                return Ok("refused, started without what it named".to_owned());
            }
            // What is left of the database is damaged as well: it needs a backup, and nothing was forgotten without a word.
            Start::Refused(again) if again.contains(DAMAGED) => {
                put_back(chaos, scenario)?;
                return Ok("refused, and damaged beyond what it named, put back from a copy".to_owned());
            }
            Start::Refused(again) => {
                let text = format!("refused with {ACCEPT} {sequence}, as it had asked: {again}; at first: {log}");
                chaos.fail(scenario, &text);
            }
        }
    } else if !log.contains("error[G0") {
        chaos.fail(scenario, &format!("refused without a code: {log}"));
    }
    put_back(chaos, scenario)?;
    Ok("refused, put back from a copy".to_owned())
}

/// Puts the journal back as it was before the damage: nothing is lost then.
fn put_back(chaos: &mut Chaos<'_>, scenario: Scenario) -> Result<()> {
    let world = &chaos.soak.world;
    journal::copy(&world.path("intact"), &world.data())?;
    chaos.start().context("start with the journal as it was before the damage")?;
    check(chaos, scenario, None)
}

/// From here on what the records after `sequence` were about is excused, and nothing else.
fn accept(chaos: &mut Chaos<'_>, scenario: Scenario, sequence: u64) -> Result<()> {
    let world = &chaos.soak.world;
    let lost = journal::after(&world.path("look"), sequence)?;
    chaos.soak.oracle().told(&lost)?;
    // A copy from before it is of another past.
    let _ = std::fs::remove_dir_all(world.path("older"));
    check(chaos, scenario, Some(&lost))
}

/// Looks whether jobs are there as they were: all that the loss may be about, some others, and the newest.
///
/// # Errors
/// When some can't be shown: then nothing more can be judged.
fn check(chaos: &mut Chaos<'_>, scenario: Scenario, lost: Option<&Lost>) -> Result<()> {
    let soak = chaos.soak;
    let known: Vec<(String, String, bool)> = {
        let oracle = soak.oracle();
        let there = oracle.jobs.iter().filter(|(_, known)| !known.is_lost());
        there
            .filter_map(|(name, known)| {
                let id = known.id.clone()?;
                let is_affected = lost.is_some_and(|lost| known.may_be_lost(lost) || lost.jobs.contains(&id));
                Some((name.clone(), id, is_affected))
            })
            .collect()
    };
    for (name, id, _) in known.iter().filter(|(_, _, is_affected)| *is_affected) {
        watch::show(soak, name, id, lost)?;
    }
    let mut random = ChaCha8Rng::seed_from_u64(soak.seed.wrapping_add(u64::try_from(known.len()).unwrap_or(0)));
    for _ in 0..SAMPLE.min(known.len()) {
        let (name, id, is_affected) = &known[jobs::pick(&mut random, known.len())];
        if !is_affected && !watch::show(soak, name, id, lost)? {
            return hidden(chaos, scenario, &["show", id]);
        }
    }
    if watch::look(soak)? { Ok(()) } else { hidden(chaos, scenario, &["ps"]) }
}

/// What was there can't be shown any more.
fn hidden(chaos: &Chaos<'_>, scenario: Scenario, request: &[&str]) -> Result<()> {
    let text = format!(
        "after a start that told of no trouble, {request:?} is answered with {:?}",
        chaos.soak.world.ask(request)
    );
    chaos.fail(scenario, &text);
    bail!("what the product shows is damaged, so nothing more can be judged")
}

/// The last sound record, if a control plane that started says that it put some aside.
pub(super) fn told(log: &str) -> Option<u64> {
    let last = after(log, "put aside the last record").map(|sequence| sequence.saturating_sub(1));
    let records = log.find("put aside ").and_then(|place| after(&log[place..], "records after"));
    last.or(records)
}

/// The number that follows these words.
fn after(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    let rest = rest.trim_start();
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_control_plane_says_of_a_loss_is_understood() {
        assert_eq!(told("WARN put aside the last record 12: its checksum does not match"), Some(11));
        assert_eq!(told("WARN put aside 3 records after 40, as asked"), Some(40));
        assert_eq!(told("INFO replayed the journal entries=12"), None);
        assert_eq!(after("start with --accept-loss-after 17 to put", ACCEPT), Some(17));
        assert_eq!(after("start with --accept-loss-after", ACCEPT), None);
    }
}
