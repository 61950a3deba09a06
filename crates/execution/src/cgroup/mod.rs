//! Control groups of Linux: the memory limit of this process's group, and the group of an attempt's processes
//! on a node, with the limits of what they use.

mod attempt;
mod limits;
mod memory;
mod place;

pub(crate) use attempt::AttemptGroup;
pub(crate) use limits::{Enforced, Limits, prepare};
pub(crate) use memory::{Limit, limit, oom_kills};
pub(crate) use place::enter_group_of_this_process;
