//! Control groups of Linux: the memory limit of this process's group, the group of an attempt's processes on a
//! node, and the limits that these are held to.

mod attempt;
mod limits;
mod memory;
mod place;

pub(crate) use attempt::AttemptGroup;
pub(crate) use limits::{Asked, Limits, unenforced};
pub(crate) use memory::{Limit, limit, oom_kills};
