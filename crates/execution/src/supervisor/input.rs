//! Inputs and actions of an attempt's state machine.

use std::time::Duration;

use super::stacks::Stacks;
use crate::health::Finding;
use crate::protocol::{CacheReport, Orders, Rendezvous};
use crate::rank_protocol::{CheckpointSaved, RankMessage, RankOrder};
use crate::shim::{RankEnd, ShimCommand, ShimEvent};

/// The process that a shim runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// The setup command.
    Setup,
    /// The rank with this index on the node.
    Rank(u32),
}

/// An event for a supervisor.
#[derive(Debug)]
pub(super) enum Input {
    /// A shim reported an event.
    Shim(Kept, ShimEvent),
    /// A shim ended like this.
    ShimGone(Kept, RankEnd),
    /// A rank connected to its socket.
    Connected(u32),
    /// A connection of a rank ended.
    Disconnected(u32),
    /// A rank sent a message.
    Message(u32, RankMessage),
    /// This number of lines of a rank were refused.
    Refused(u32, u64),
    /// The control plane answered.
    Orders(Orders),
    /// The saves that the ranks had begun are finished or lost; the newest checkpoint that is durable now, if
    /// this node is to report it.
    StagedFinished(Option<CheckpointSaved>),
    /// Stacks of the processes of hung ranks.
    Stacks(Vec<Stacks>),
    /// The processes of a rank have used this much processor time so far.
    Worked(u32, Duration),
    /// The machine is about to be taken back.
    Notice(String),
    /// Checks of the node returned these findings.
    Checked(Vec<Finding>),
    /// What the cache of datasets holds has changed.
    Cached(CacheReport),
    /// After the end of the ranks no process of theirs is left.
    Cleared,
    /// These processes of the ranks are still there long after they were killed.
    Remaining(Vec<u32>),
    /// The supervisor got a signal to end.
    Terminated,
    /// Time has passed.
    Tick,
}

/// An effect that the supervisor carries out.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Run the setup command under a shim.
    RunSetup,
    /// Start all ranks.
    StartRanks(Rendezvous),
    /// Send a command to a shim.
    Command(Kept, ShimCommand),
    /// Send an order to all ranks over their sockets.
    Tell(RankOrder),
    /// A shim died without cleaning up: kill its remaining processes.
    KillOrphans,
    /// Finish the saves that the ranks had begun.
    FinishStaged,
    /// Collect the stacks of these ranks, by number and process id.
    LookAtStacks(Vec<(u32, u32)>),
    /// Measure the processor time of these ranks, by index and process id.
    MeasureWork(Vec<(u32, u32)>),
}
