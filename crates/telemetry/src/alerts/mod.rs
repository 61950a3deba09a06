//! Alerts: rules over readings, and what is firing.
//!
//! [`Rules`] come from a file ([`Rules::read`]) on top of built-in ones. The [`Engine`] is pure: readings and a time
//! come in, and what began or ended comes out. An alert is one rule about one subject, so an error that all ranks of a job
//! have is one alert with the ranks as its parts. [`message`] writes alerts as the services expect them.
//!
//! What holds: the same readings at the same times give the same alerts; an alert fires only after its rule was broken
//! at every evaluation for as long as the rule says, and ends only after it was clear for as long; numbers of rules,
//! alerts, parts and silences have limits.

mod alert;
mod engine;
mod file;
pub mod message;
mod rule;
mod saved;
#[cfg(test)]
mod tests;

pub use alert::{Alert, Silence, State, Wish};
pub use engine::{Engine, Overview};
pub use file::{Invalid, Receiver, Rules, Way};
pub use rule::{Bound, Measure, Reading, Rule, Severity, Signal, Subject, Unit};
pub use saved::Unreadable;
