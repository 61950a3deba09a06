//! A plan: what a run needs and what it will be like, as one value that can be kept, compared and attached to a job.
//!
//! [`make`] takes a request apart (`request`), finds or takes its layout (`search`), and adds up what follows. A plan is also its own
//! document (`document`): version 1, units in the names of its numbers, all of them estimated.

mod advice;
mod class;
mod document;
pub mod fleet;
mod make;
mod request;
mod serving;
mod validation;
pub mod words;

pub use class::{Class, classify};
pub use document::*;
pub use make::{PlanError, make};
pub use request::{Price, Request, StorageChoice};
pub use validation::{MEMORY, REGIONS, Region};

#[cfg(test)]
mod tests;
