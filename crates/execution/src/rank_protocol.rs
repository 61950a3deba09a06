//! The messages between a rank and its supervisor: JSON lines over the Unix socket `GANGLINE_SOCKET`. Public
//! and documented for users in `docs/reference/rank-protocol.md`. Each rank has its own socket, so it needn't
//! (and can't) say which rank it is. Everything is optional: a rank that never connects runs just as well.
//!
//! Keeps A-9 (wire types at the border) and A-10 (lines are bounded); invalid input is dropped and counted,
//! and never harms the supervisor.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use gangline_base::{Bytes, MetricValue, Phase, Step, Tokens};

/// Maximum length of a rank's line, including its line end.
pub const RANK_LINE_BYTES_MAX: usize = 64 << 10;
/// Steps, bytes and tokens beyond this are taken for mistakes (and would not survive every JSON parser).
pub const COUNT_MAX: u64 = 1 << 53;

/// Maximum number of metrics in one line; further ones are dropped.
pub const METRICS_MAX: usize = 64;
/// The metric that has a key of its own.
pub(crate) const LOSS: &str = "loss";
/// The tokens of a step, among the readings.
const TOKENS: &str = "tokens";
/// Stand for the numbers that JSON can't express; no real metric is so large. The longest word comes first.
const STAND_INS: [(&str, &str); 3] = [("-Infinity", "-1.7e308"), ("Infinity", "1.7e308"), ("NaN", "1.5e308")];
/// From here on, in size, a value stands for an infinity.
const INFINITE_FROM: f64 = 1.6e308;
/// From here on a value stands for NaN.
const NAN_FROM: f64 = 1.4e308;

/// One line of a rank, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankMessage {
    /// When the rank said it, on the machine's monotonic clock, if it tells.
    pub said_at: Option<Duration>,
    /// How long before it was read the rank said it, as far as that is known.
    pub delay: Duration,
    /// The phase that it enters.
    pub phase: Option<Phase>,
    /// The step that it finished.
    pub step: Option<Step>,
    /// The step's loss, if finite.
    pub loss: Option<f64>,
    /// The step's metrics by name, including the loss and values that aren't finite.
    pub metrics: BTreeMap<String, MetricValue>,
    /// The same and the tokens as floating-point numbers, as they were reported.
    pub readings: Vec<(String, f64)>,
    /// Tokens of the step.
    pub tokens: Option<Tokens>,
    /// Time since its last step that it spent in phases without entering them.
    pub phase_times: Vec<(Phase, Duration)>,
    /// A checkpoint that became durable.
    pub checkpoint: Option<CheckpointSaved>,
    /// The step at which it will end.
    pub total_steps: Option<Step>,
    /// Number of keys whose value this version doesn't understand; the rest of the message counts.
    pub refused_values: u64,
}

/// A durable checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSaved {
    /// Its step.
    pub step: Step,
    /// Its bytes, all ranks together.
    pub bytes: Bytes,
}

/// The reason a rank's whole line was refused.
#[derive(Debug, thiserror::Error)]
pub enum RefusedLine {
    /// Not a JSON object with values of the right types.
    #[error("the line is not a message of the rank protocol")]
    Malformed(#[source] serde_json::Error),
    /// A number that is too large to be meant.
    #[error("{key} is {value}, beyond 2^53")]
    Absurd {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The wire form of [`RankMessage`]. `rank` and `pid` (of the greeting) are among the keys that are ignored.
#[derive(Deserialize)]
struct Wire {
    at: Option<f64>,
    phase: Option<String>,
    step: Option<u64>,
    loss: Option<f64>,
    #[serde(default)]
    metrics: BTreeMap<String, Option<f64>>,
    tokens: Option<u64>,
    #[serde(default)]
    phase_seconds: BTreeMap<String, Option<f64>>,
    checkpoint: Option<WireCheckpoint>,
    total_steps: Option<u64>,
}

#[derive(Deserialize)]
struct WireCheckpoint {
    step: u64,
    bytes: u64,
}

impl RankMessage {
    /// Parses one line. Python writes a diverged loss as `NaN` or `Infinity`, which isn't JSON: the loss is
    /// then absent, because losing a step's loss is better than losing the step.
    ///
    /// # Errors
    /// [`RefusedLine`] if it isn't a message or has an absurd number.
    pub fn parse(line: &[u8]) -> Result<Self, RefusedLine> {
        let wire: Wire = match serde_json::from_slice(line) {
            Ok(wire) => wire,
            Err(error) => without_non_numbers(line)
                .and_then(|text| serde_json::from_str(&text).ok())
                .ok_or(RefusedLine::Malformed(error))?,
        };
        let phase = wire.phase.as_deref().map(phase_named);
        let (phase_times, refused_times) = phase_times(&wire.phase_seconds);
        let refused_values = u64::from(phase == Some(None)) + refused_times;
        let checkpoint = match wire.checkpoint {
            None => None,
            Some(saved) => Some(CheckpointSaved {
                step: Step(bounded("checkpoint.step", saved.step)?),
                bytes: Bytes(bounded("checkpoint.bytes", saved.bytes)?),
            }),
        };
        let others = wire.metrics.into_iter().filter_map(|(name, value)| Some((name, meant(value?)))).take(METRICS_MAX);
        let loss = wire.loss.map(meant);
        let values: BTreeMap<String, f64> = others.chain(loss.map(|loss| (LOSS.to_owned(), loss))).collect();
        let tokens = wire.tokens.map(|tokens| bounded("tokens", tokens)).transpose()?.map(Tokens);
        Ok(RankMessage {
            said_at: wire.at.and_then(|seconds| Duration::try_from_secs_f64(meant(seconds)).ok()),
            metrics: values.iter().map(|(name, value)| (name.clone(), MetricValue::from_reported(*value))).collect(),
            readings: values.into_iter().chain(tokens.map(|tokens| (TOKENS.to_owned(), count(tokens)))).collect(),
            phase: phase.flatten(),
            step: wire.step.map(|step| bounded("step", step)).transpose()?.map(Step),
            loss: loss.filter(|loss| loss.is_finite()),
            tokens,
            phase_times,
            checkpoint,
            total_steps: wire.total_steps.map(|steps| bounded("total_steps", steps)).transpose()?.map(Step),
            refused_values,
            delay: Duration::ZERO,
        })
    }
}

fn bounded(key: &'static str, value: u64) -> Result<u64, RefusedLine> {
    if value <= COUNT_MAX { Ok(value) } else { Err(RefusedLine::Absurd { key, value }) }
}

/// Returns the times in phases, and the number of those that can't be meant.
fn phase_times(seconds: &BTreeMap<String, Option<f64>>) -> (Vec<(Phase, Duration)>, u64) {
    let given = seconds.iter().filter_map(|(name, seconds)| Some((name, (*seconds)?)));
    let read = |(name, seconds): (&String, f64)| {
        // NaN and infinities stand for no time.
        Some((phase_named(name)?, Duration::try_from_secs_f64(meant(seconds)).ok()?))
    };
    let all: Vec<Option<(Phase, Duration)>> = given.map(read).collect();
    let refused = all.iter().filter(|time| time.is_none()).count();
    (all.into_iter().flatten().collect(), u64::try_from(refused).expect("a line is limited"))
}

fn phase_named(name: &str) -> Option<Phase> {
    serde_json::from_value(serde_json::Value::from(name)).ok()
}

#[expect(clippy::cast_precision_loss, reason = "counts are at most 2^53")]
fn count(tokens: Tokens) -> f64 {
    tokens.0 as f64
}

/// Replaces numbers that JSON doesn't allow by those that stand for them; none if the line has no such number.
fn without_non_numbers(line: &[u8]) -> Option<String> {
    let text = str::from_utf8(line).ok()?;
    let clean = STAND_INS.iter().fold(text.to_owned(), |text, (word, stand_in)| text.replace(word, stand_in));
    (clean != text).then_some(clean)
}

/// Returns the number that a value stands for.
fn meant(value: f64) -> f64 {
    match value.abs() {
        size if size >= INFINITE_FROM => f64::INFINITY.copysign(value),
        size if size >= NAN_FROM => f64::NAN,
        _ => value,
    }
}

/// An order of a supervisor to a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "order")]
pub enum RankOrder {
    /// Save a checkpoint and exit with 94 (or 0 if the work is done).
    SaveAndStop {
        /// Time from now to SIGKILL; SIGTERM comes before.
        grace_ms: u64,
        /// The reason.
        reason: String,
    },
}

impl RankOrder {
    /// Returns the line that is sent.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("an order of numbers and text is always JSON");
        line.push('\n');
        line
    }
}

/// Splits a rank's bytes into lines of at most [`RANK_LINE_BYTES_MAX`].
#[derive(Debug, Default)]
pub struct LineCutter {
    line: Vec<u8>,
    is_oversize: bool,
    oversize: u64,
}

impl LineCutter {
    /// Takes bytes as they arrived and passes each whole line to `found`. Longer lines are skipped and
    /// counted.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            if self.line.len() + part.len() > RANK_LINE_BYTES_MAX {
                self.is_oversize = true;
                self.line.clear();
            }
            if !self.is_oversize {
                self.line.extend_from_slice(part);
            }
            if is_whole {
                if std::mem::take(&mut self.is_oversize) {
                    self.oversize += 1;
                } else if !self.line.trim_ascii().is_empty() {
                    found(&self.line);
                }
                self.line.clear();
            }
        }
    }

    /// Returns the number of lines that were too long since the last call.
    pub fn take_oversize(&mut self) -> u64 {
        std::mem::take(&mut self.oversize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_times_of_phases_are_read_and_those_that_cant_be_meant_are_counted() {
        let line = br#"{"step":7,"phase_seconds":{"data":0.25,"communication":2,"napping":1,"compute":-1,"restore":NaN,"init":null}}"#;
        let message = RankMessage::parse(line).expect("a message");
        let times = [(Phase::Communication, Duration::from_secs(2)), (Phase::Data, Duration::from_millis(250))];
        assert_eq!((message.phase_times, message.refused_values), (times.to_vec(), 3));
    }

    #[test]
    fn a_time_that_is_none_costs_only_itself() {
        let said = |line: &str| RankMessage::parse(line.as_bytes()).expect(line);
        assert_eq!(said(r#"{"at":12.5,"step":1}"#).said_at, Some(Duration::from_millis(12_500)));
        for at in ["-1", "NaN", "Infinity", "1e300", "null"] {
            let message = said(&format!(r#"{{"at":{at},"step":1}}"#));
            assert_eq!((message.said_at, message.step), (None, Some(Step(1))), "{at}");
        }
    }

    #[test]
    fn messages_are_read_with_unknown_keys_ignored() {
        let check = |line: &str, expected: RankMessage| {
            assert_eq!(RankMessage::parse(line.as_bytes()).expect(line), expected, "{line}");
        };
        let nothing = RankMessage::default();
        check(r#"{"rank":3,"pid":77}"#, nothing.clone());
        check(r#"{"phase":"straggler_wait"}"#, RankMessage { phase: Some(Phase::StragglerWait), ..nothing.clone() });
        let step = RankMessage {
            step: Some(Step(7)),
            loss: Some(2.5),
            metrics: [("loss".to_owned(), MetricValue::Nanos(2_500_000_000))].into(),
            readings: vec![("loss".to_owned(), 2.5), ("tokens".to_owned(), 512.0)],
            tokens: Some(Tokens(512)),
            phase: Some(Phase::Data),
            ..nothing.clone()
        };
        check(r#"{"step":7,"loss":2.5,"tokens":512,"phase":"data","grad_norm":[1]}"#, step);
        let saved = CheckpointSaved { step: Step(7), bytes: Bytes(9) };
        check(r#"{"checkpoint":{"step":7,"bytes":9}}"#, RankMessage { checkpoint: Some(saved), ..nothing.clone() });
        check(r#"{"total_steps":100}"#, RankMessage { total_steps: Some(Step(100)), ..nothing });
    }

    #[test]
    fn a_diverged_loss_or_an_unknown_phase_does_not_cost_the_step() {
        for loss in ["NaN", "Infinity", "-Infinity", "null"] {
            let message = RankMessage::parse(format!("{{\"step\":1,\"loss\":{loss}}}").as_bytes()).expect(loss);
            assert_eq!((message.step, message.loss), (Some(Step(1)), None), "{loss}");
        }
        let message = RankMessage::parse(br#"{"step":1,"phase":"napping"}"#).expect("a message");
        assert_eq!((message.step, message.phase, message.refused_values), (Some(Step(1)), None, 1));
    }

    #[test]
    fn metrics_are_read_by_name_and_those_that_are_no_numbers_are_kept_as_such() {
        let check = |line: &str, expected: &[(&str, MetricValue)]| {
            let message = RankMessage::parse(line.as_bytes()).expect(line);
            let expected = expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            assert_eq!(message.metrics, expected, "{line}");
        };
        check(r#"{"step":1,"loss":0.5}"#, &[("loss", MetricValue::Nanos(500_000_000))]);
        check(r#"{"step":1,"loss":null,"metrics":{"f1":null}}"#, &[]);
        check(
            r#"{"step":1,"loss":NaN,"metrics":{"f1":-Infinity,"em":1}}"#,
            &[
                ("loss", MetricValue::Diverged),
                ("f1", MetricValue::Diverged),
                ("em", MetricValue::Nanos(1_000_000_000)),
            ],
        );
        let many: Vec<String> = (0..METRICS_MAX + 9).map(|number| format!("\"m{number}\":1")).collect();
        let line = format!("{{\"step\":1,\"metrics\":{{{}}}}}", many.join(","));
        assert_eq!(RankMessage::parse(line.as_bytes()).expect("a message").metrics.len(), METRICS_MAX);
    }

    #[test]
    fn readings_keep_small_numbers_and_tell_nan_from_the_infinities() {
        let line = br#"{"step":1,"loss":NaN,"tokens":7,"metrics":{"a":-Infinity,"b":Infinity,"lr":3e-11,"none":null}}"#;
        let readings = RankMessage::parse(line).expect("a message").readings;
        let bits: Vec<(&str, u64)> = readings.iter().map(|(name, value)| (name.as_str(), value.to_bits())).collect();
        let expected =
            [("a", f64::NEG_INFINITY), ("b", f64::INFINITY), ("loss", f64::NAN), ("lr", 3e-11), ("tokens", 7.0)];
        assert_eq!(bits, expected.map(|(name, value)| (name, value.to_bits())));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            "",
            "{",
            "[1]",
            "hello",
            r#"{"step":-1}"#,
            r#"{"step":1.5}"#,
            r#"{"step":"1"}"#,
            r#"{"loss":1e999}"#,
            r#"{"step":9007199254740993}"#,
            r#"{"tokens":18446744073709551615}"#,
            r#"{"checkpoint":{"step":1}}"#,
            "{\"step\":1,\"phase\":\"\u{0}",
        ] {
            assert!(RankMessage::parse(line.as_bytes()).is_err(), "{line:?} was accepted");
        }
    }

    #[test]
    fn orders_are_one_line_of_json() {
        let order = RankOrder::SaveAndStop { grace_ms: 60_000, reason: "drained\nby ops".to_owned() };
        let expected = "{\"order\":\"save_and_stop\",\"grace_ms\":60000,\"reason\":\"drained\\nby ops\"}\n";
        assert_eq!(order.line(), expected);
    }

    #[test]
    fn lines_are_cut_at_any_split_and_oversize_ones_are_skipped() {
        let long = "x".repeat(RANK_LINE_BYTES_MAX);
        let text = format!("one\n\n{long}\ntwo\n{}\nthree\nunfinished", &long[1..]);
        for chunk in [1, 7, 4_096, text.len()] {
            let (mut cutter, mut lines) = (LineCutter::default(), Vec::new());
            for part in text.as_bytes().chunks(chunk) {
                cutter.feed(part, |line| lines.push(line.len()));
            }
            assert_eq!(lines, [4, 4, RANK_LINE_BYTES_MAX, 6], "chunks of {chunk}");
            assert_eq!((cutter.take_oversize(), cutter.take_oversize()), (1, 0));
        }
    }
}
