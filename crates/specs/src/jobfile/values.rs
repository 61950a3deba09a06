//! Parsers of single values: text in, a value or a refusal out. A refusal's message continues after the key:
//! `"time_limit" has no unit`.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use gangline_base::{AcceleratorKind, Bytes, Launch, PoolName, Priority, QueueName};

use super::keys::nearest;
use super::problem::{Code, Refusal, shown};

/// The most accelerators of one node.
pub(super) const ACCELERATORS_MAX: u32 = 64;
/// The longest duration.
pub(super) const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);
/// The most memory of one node.
pub(super) const MEMORY_MAX: Bytes = Bytes(1 << 50);

const SECONDS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
const BYTE_UNITS: [&str; 9] = ["B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"];
const PRIORITIES: [(&str, Priority); 4] =
    [("low", Priority::LOW), ("normal", Priority::NORMAL), ("high", Priority::HIGH), ("urgent", Priority::URGENT)];

/// Parses a whole number in `range`.
pub(super) fn count(text: &str, range: &RangeInclusive<u32>) -> Result<u32, Refusal> {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let example = (*range.end()).min(2);
        let message = format!("expects a whole number such as {example}, not {}", shown(text));
        return Err(Refusal::new(Code::WrongType, message));
    }
    if minus {
        return Err(Refusal::new(Code::OutOfRange, format!("is negative: {}", bare(text))));
    }
    // A number with too many digits for a u32 is above every limit.
    let number = digits.parse().unwrap_or(u32::MAX);
    if number < *range.start() {
        Err(Refusal::new(Code::OutOfRange, format!("is {digits}, it has to be at least {}", range.start())))
    } else if number > *range.end() {
        Err(over_limit(digits, &range.end().to_string()))
    } else {
        Ok(number)
    }
}

/// Parses `60s`, `10m`, `24h`, `7d`, or several in a row as in `1h30m`, up to `max`.
pub(super) fn duration(text: &str, max: Duration) -> Result<Duration, Refusal> {
    refuse_negative(text)?;
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    loop {
        let (number, unit, after) = quantity(rest, text, "a duration such as 90s, 10m, 24h or 7d")?;
        if unit.is_empty() {
            let refusal = Refusal::new(Code::BadValue, format!("has no unit in {}", shown(text)));
            return Err(refusal.hint(format!("write {number}s, {number}m, {number}h or {number}d")));
        }
        let (_, seconds) = SECONDS.into_iter().find(|(name, _)| *name == unit).ok_or_else(|| {
            let message = format!("has the unknown unit {} in {}", shown(unit), shown(text));
            Refusal::new(Code::BadValue, message).hint("use s, m, h or d, as in 24h")
        })?;
        total = total.saturating_add(Duration::from_secs(number.saturating_mul(seconds)));
        if total > max {
            return Err(over_limit(text, &written(max)));
        }
        if after.is_empty() {
            return Ok(total);
        }
        rest = after;
    }
}

/// Parses a size such as `256GiB`.
pub(super) fn bytes(text: &str) -> Result<Bytes, Refusal> {
    refuse_negative(text)?;
    let (number, unit, after) = quantity(text.trim(), text, "a size such as 512MiB or 256GiB")?;
    if unit.is_empty() {
        let refusal = Refusal::new(Code::BadValue, format!("has no unit in {}", shown(text)));
        return Err(refusal.hint(format!("write {number}MiB or {number}GiB")));
    }
    if !BYTE_UNITS.contains(&unit) || !after.is_empty() {
        let refusal = Refusal::new(Code::BadValue, format!("has the unknown unit {} in {}", shown(unit), shown(text)));
        let meant =
            BYTE_UNITS.into_iter().find(|known| known.eq_ignore_ascii_case(unit) || known.replace("iB", "i") == unit);
        return Err(match meant {
            Some(known) => refusal.hint(format!("did you mean \"{number}{known}\"?")),
            None => refusal.hint("use MiB, GiB or TiB, as in 256GiB"),
        });
    }
    match text.parse() {
        Ok(size) if size <= MEMORY_MAX => Ok(size),
        _ => Err(over_limit(text, &MEMORY_MAX.to_string())),
    }
}

/// Parses `H100:8`, or `H100` for one.
pub(super) fn accelerators(text: &str) -> Result<(AcceleratorKind, NonZeroU32), Refusal> {
    let example = "write kind:count, as in H100:8 or cpu:2";
    let (kind, number) = text.split_once(':').unwrap_or((text, "1"));
    let has_letter = kind.bytes().any(|byte| byte.is_ascii_alphabetic());
    if !has_letter || QueueName::new(kind).is_err() {
        let message = format!("names no kind of accelerator in {}", shown(text));
        return Err(Refusal::new(Code::BadValue, message).hint(example));
    }
    let number = count(number.trim(), &(1..=ACCELERATORS_MAX)).map_err(|refusal| {
        let hint = match refusal.code {
            Code::OutOfRange => "1 to 64 for each node, num_nodes asks for more nodes",
            _ => example,
        };
        Refusal { message: format!("is {}, whose count {}", shown(text), refusal.message), ..refusal }.hint(hint)
    })?;
    let kind = if kind.eq_ignore_ascii_case(AcceleratorKind::CPU) { AcceleratorKind::CPU } else { kind };
    Ok((AcceleratorKind(kind.to_owned()), NonZeroU32::new(number).expect("the range begins at one")))
}

/// Parses one of four names, or a number.
pub(super) fn priority(text: &str) -> Result<Priority, Refusal> {
    if let Some((_, priority)) = PRIORITIES.into_iter().find(|(name, _)| *name == text) {
        return Ok(priority);
    }
    if !text.trim_start_matches('-').starts_with(|first: char| first.is_ascii_digit()) {
        return Err(unknown_word(text, &PRIORITIES.map(|(name, _)| name), "or a number from 0 to 1000"));
    }
    let number = count(text, &(0..=u32::from(Priority::MAX)))?;
    Ok(u16::try_from(number).ok().and_then(Priority::new).expect("the range ends at the highest priority"))
}

/// Parses the number of ranks per node.
pub(super) fn launch(text: &str) -> Result<Launch, Refusal> {
    match choice(text, &["accelerator", "node"])? {
        "node" => Ok(Launch::PerNode),
        _ => Ok(Launch::PerAccelerator),
    }
}

/// Parses one of the given words.
pub(super) fn choice(text: &str, words: &[&'static str]) -> Result<&'static str, Refusal> {
    words.iter().copied().find(|word| *word == text).ok_or_else(|| unknown_word(text, words, ""))
}

fn unknown_word(text: &str, words: &[&'static str], beside: &str) -> Refusal {
    let refusal = Refusal::new(Code::BadValue, format!("cannot be {}", shown(text)));
    match nearest(text, words.iter().copied()) {
        Some(word) => refusal.hint(format!("did you mean \"{word}\"?")),
        None => refusal.hint(format!("use {} {beside}", words.join(", ")).trim_end().to_owned()),
    }
}

/// Parses a job's name: the same letters as in every other name, so that it can be part of a path.
pub(super) fn name(text: &str) -> Result<String, Refusal> {
    queue(text).map(|name| name.to_string())
}

/// Parses a queue's name.
pub(super) fn queue(text: &str) -> Result<QueueName, Refusal> {
    QueueName::new(text).map_err(|_| not_a_name(text))
}

/// Parses a pool's name.
pub(super) fn pool(text: &str) -> Result<PoolName, Refusal> {
    PoolName::new(text).map_err(|_| not_a_name(text))
}

fn not_a_name(text: &str) -> Refusal {
    Refusal::new(Code::BadValue, format!("is not a valid name: {}", shown(text)))
        .hint("use 1 to 63 of a-z, A-Z, 0-9, '-', '_', '.', and start with a letter or digit")
}

/// Checks the name of a variable, which must not be one that Gangline sets.
pub(super) fn variable(name: &str) -> Result<(), Refusal> {
    const BYTES_MAX: usize = 256;
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !starts_well || name.len() > BYTES_MAX || !name.bytes().all(is_allowed) {
        return Err(Refusal::new(Code::BadValue, format!("{} is not a variable's name", shown(name)))
            .hint("use letters, digits and '_', and start with a letter"));
    }
    let is_ours = name.starts_with("GANGLINE_") && !THE_JOBS_OWN.contains(&name);
    if RESERVED.contains(&name) || is_ours || name.starts_with("TORCHELASTIC_") {
        return Err(Refusal::new(Code::BadValue, format!("{} is set by gangline for every rank", shown(name)))
            .hint("leave it out"));
    }
    Ok(())
}

/// Variables of ours that a job may set: where its data and its saves are kept on the node, and whether its stacks are looked at.
const THE_JOBS_OWN: [&str; 4] =
    ["GANGLINE_DATA_CACHE", "GANGLINE_DATA_CACHE_LIMIT", "GANGLINE_STACKS", "GANGLINE_STAGING_DIR"];

/// Variables that the supervisor sets for every rank (design, "what a rank sees"); OMP_NUM_THREADS may be the
/// user's.
const RESERVED: [&str; 10] = [
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
];

fn refuse_negative(text: &str) -> Result<(), Refusal> {
    let is_negative = text.trim().strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_negative { Err(Refusal::new(Code::OutOfRange, format!("is negative: {}", bare(text)))) } else { Ok(()) }
}

/// Splits off the leading number and its unit; returns both and the rest.
fn quantity<'t>(rest: &'t str, text: &str, expected: &str) -> Result<(u64, &'t str, &'t str), Refusal> {
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = rest.split_at(digits);
    let rest = rest.trim_start();
    let letters = rest.len() - rest.trim_start_matches(|c: char| !c.is_ascii_digit()).len();
    let (unit, after) = rest.split_at(letters);
    if number.is_empty() || unit.starts_with(['.', ',', '_']) {
        return Err(Refusal::new(Code::WrongType, format!("expects {expected}, not {}", shown(text))));
    }
    Ok((number.parse().unwrap_or(u64::MAX), unit.trim_end(), after))
}

/// Shows a short number without quotes, and anything else with them.
fn bare(text: &str) -> String {
    const CHARS_MAX: usize = 24;
    let is_harmless = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if text.len() <= CHARS_MAX && text.bytes().all(is_harmless) { text.to_owned() } else { shown(text) }
}

fn over_limit(text: &str, limit: &str) -> Refusal {
    Refusal::new(Code::OutOfRange, format!("is {}, over the limit of {limit}", bare(text)))
}

fn written(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (name, unit) = SECONDS.into_iter().rev().find(|(_, unit)| seconds.is_multiple_of(*unit)).unwrap_or(("s", 1));
    format!("{}{name}", seconds / unit)
}
