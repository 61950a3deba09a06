//! Collectors: what a node's kernel and its GPUs' drivers say, as readings of named metrics.
//!
//! A [`Source`] returns [`Sample`]s: gauges as they are, counters as they stand. [`Rates`] makes [`Reading`]s of them. A
//! [`WithDeadline`] source is read on a thread of its own with a deadline, since a driver or a file server may hang; that it
//! hangs is then what is known of it. [`METRICS`] is the table of everything that is collected.
//!
//! Keeps A-10: files, devices and samples of a source have limits.

pub mod gpu;
mod host;
mod metric;
mod own;
mod rates;
mod source;
mod with_deadline;

pub use host::Host;
pub use metric::{Kind, METRICS, Metric, Unit, metric_named, reference};
pub use own::OwnCost;
pub use rates::{Rates, Reading};
pub use source::{Sample, Source, SourceError, Value};
pub use with_deadline::{Trouble, WithDeadline};
