//! A supervisor, its shims and its ranks, under a control plane that does what the test says.

mod contact;
mod ends;
mod hangs;
mod kills;
mod platform;
mod ranks;
mod staging;
mod stops;
