//! Parses the values of sbatch's options: counts, times, sizes, lists of array tasks.

use std::collections::BTreeMap;

/// Maximum number of tasks of an array: that of a sweep's jobs.
const ARRAY_MAX: u64 = 1_000;

fn wrong(text: &str, form: &str) -> String {
    format!("\"{text}\" is not {form}")
}

pub(super) fn count(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| wrong(text, "a number"))
}

/// Parses `4` or `4-8`.
pub(super) fn range(text: &str) -> Result<(u32, u32), String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let refused = |_| wrong(text, "a number or a range such as 4-8");
    Ok((count(from).map_err(refused)?, count(to).map_err(refused)?))
}

/// Parses `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes` and
/// `days-hours:minutes:seconds`; returns seconds, or none for no limit.
pub(super) fn time(text: &str) -> Result<Option<u64>, String> {
    if ["0", "UNLIMITED", "INFINITE"].contains(&text.to_uppercase().as_str()) {
        return Ok(None);
    }
    let refused = || wrong(text, "a time such as 90 (minutes), 12:00:00 or 2-00:00:00");
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(days.parse::<u64>().map_err(|_| refused())?), rest),
        None => (None, text),
    };
    let parts: Result<Vec<u64>, _> = rest.split(':').map(str::parse).collect();
    let seconds = match (days, parts.map_err(|_| refused())?.as_slice()) {
        (None, [minutes]) => minutes.checked_mul(60),
        (None, [minutes, seconds]) => minutes.checked_mul(60).and_then(|sum| sum.checked_add(*seconds)),
        (_, [hours, rest @ ..]) if rest.len() < 3 => {
            let (minutes, seconds) = (rest.first().unwrap_or(&0), rest.get(1).unwrap_or(&0));
            let hours = days.unwrap_or(0).checked_mul(24).and_then(|sum| sum.checked_add(*hours));
            let minutes = hours.and_then(|hours| hours.checked_mul(60)?.checked_add(*minutes));
            minutes.and_then(|minutes| minutes.checked_mul(60)?.checked_add(*seconds))
        }
        _ => None,
    };
    seconds.map(Some).ok_or_else(refused)
}

/// Parses `afterok:12:13,afterany:14` into the jobs that have to end, and how.
pub(super) fn dependencies(text: &str, after: &mut BTreeMap<String, String>) -> Result<(), String> {
    for part in text.split(',') {
        let (kind, jobs) = part.split_once(':').unwrap_or((part, ""));
        let condition = match kind {
            "afterok" => "success",
            "afterany" => "any",
            "afternotok" => "failure",
            "singleton" => return Err("no job waits for others of its name: name them, as in afterany:12".to_owned()),
            _ => return Err(wrong(part, "afterok, afterany or afternotok with jobs, as in afterok:12")),
        };
        for job in jobs.split(':') {
            let digits = job.strip_prefix("job-").unwrap_or(job);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong(job, "a job, as in afterok:12; all that are named have to end"));
            }
            let before = after.insert(job.to_owned(), condition.to_owned());
            if before.is_some_and(|before| before != condition) {
                return Err(format!("{job} can't end in two ways"));
            }
        }
    }
    Ok(())
}

/// Parses an image of pyxis: a file, or `[docker://][USER@][REGISTRY#]IMAGE[:TAG]` (enroot's import).
pub(super) fn image(text: &str) -> Result<String, String> {
    if text.starts_with("/") || text.starts_with("./") || text.starts_with("../") {
        return Ok(text.to_owned());
    }
    let name = text.strip_prefix("docker://").unwrap_or(text);
    if name.contains("://") {
        return Err("images come from a registry (docker://) or a file (/images/torch.sqsh) here".to_owned());
    }
    Ok(name.replacen('#', "/", 1))
}

/// Parses `200G`, `200GB`, `512M`, `4096` (MiB), `1T`, `2048K`; returns MiB.
pub(super) fn mebibytes(text: &str) -> Result<u64, String> {
    let refused = || wrong(text, "a size such as 200G");
    // Slurm looks at a unit's first letter only.
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text[digits.len()..].chars().next().map_or('M', |letter| letter.to_ascii_uppercase());
    let number = digits;
    let number: u64 = number.parse().map_err(|_| refused())?;
    match unit {
        'K' => Some(number.div_ceil(1_024)),
        'M' => Some(number),
        'G' => number.checked_mul(1 << 10),
        'T' => number.checked_mul(1 << 20),
        _ => None,
    }
    .ok_or_else(refused)
}

/// Parses `1-10:3,20%2`; returns the tasks' numbers, and how many may run at once.
pub(super) fn array(text: &str) -> Result<(Vec<u64>, Option<u32>), String> {
    let refused = || wrong(text, "a list of tasks such as 1-10%2");
    let (list, parallel) = match text.split_once('%') {
        Some((list, parallel)) => (list, Some(count(parallel)?)),
        None => (text, None),
    };
    let mut ids = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u64>().map_err(|_| refused());
        let (from, to, step) = (number(from)?, number(to)?, number(step)?.max(1));
        if from > to {
            return Err(refused());
        }
        if (to - from) / step >= ARRAY_MAX || ids.len() >= 1_000 {
            return Err(format!("it has more than {ARRAY_MAX} tasks, the most that a sweep may have"));
        }
        ids.extend((from..=to).filter(|id| (id - from).is_multiple_of(step)));
    }
    Ok((ids, parallel))
}

/// Splits a line into words as a shell does, with respect to quotes only; ` #` begins a comment.
pub(super) fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() { Err("a quote is open to its end".to_owned()) } else { Ok(words) }
}
