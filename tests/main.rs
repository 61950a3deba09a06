//! Everything that tests the product as a whole: one crate, one binary.

mod e2e;
mod fixtures;
mod guide;
mod properties;
mod scenarios;
