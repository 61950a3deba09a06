//! Published counts, and configurations that are refused.

mod counts;
mod flops;
mod refusals;
