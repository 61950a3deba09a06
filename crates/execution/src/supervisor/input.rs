//! What goes into the course of an attempt, and what comes out.

use std::time::Duration;

use super::stacks::Stacks;
use crate::checks::Finding;
use crate::keeper::{KeeperCommand, KeeperEvent, RankEnd};
use crate::protocol::{Orders, Rendezvous};
use crate::rank_protocol::{CheckpointSaved, RankMessage, RankOrder};

/// Whom a keeper keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kept {
    /// The setup command.
    Setup,
    /// The rank in this place on the node.
    Rank(u32),
}

/// What happens to a supervisor.
#[derive(Debug)]
pub(super) enum Input {
    /// A keeper says something.
    Keeper(Kept, KeeperEvent),
    /// A keeper ended like this.
    KeeperGone(Kept, RankEnd),
    /// A rank connected to its socket.
    Connected(u32),
    /// A connection of a rank ended.
    Disconnected(u32),
    /// A rank says something.
    Message(u32, RankMessage),
    /// So many lines of a rank were refused.
    Refused(u32, u64),
    /// The control plane answered.
    Orders(Orders),
    /// What the ranks had begun to save is saved or lost, and this is the newest checkpoint by that, if it is this node's to tell.
    StagedFinished(Option<CheckpointSaved>),
    /// What the processes of ranks that came to a stand wait for.
    Stacks(Vec<Stacks>),
    /// The processes of a rank have used so much processor time so far.
    Worked(u32, Duration),
    /// The machine is about to go.
    Notice(String),
    /// Checks of the node found this.
    Checked(Vec<Finding>),
    /// After the end of the ranks no process of them is left.
    Cleared,
    /// These processes of the ranks are still there long after they were killed.
    Remaining(Vec<u32>),
    /// The supervisor got a signal to end.
    Terminated,
    /// Time has passed.
    Tick,
}

/// What a supervisor does.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Run the setup command under a keeper.
    RunSetup,
    /// Start all ranks.
    StartRanks(Rendezvous),
    /// Tell a keeper.
    Command(Kept, KeeperCommand),
    /// Tell all ranks over their sockets.
    Tell(RankOrder),
    /// A keeper died without cleaning up: kill what it left behind.
    KillOrphans,
    /// Finish the saves that the ranks had begun.
    FinishStaged,
    /// Look what these ranks, by number and process, wait for.
    LookAtStacks(Vec<(u32, u32)>),
    /// Look how much processor time these ranks, by place and process, have used.
    MeasureWork(Vec<(u32, u32)>),
}
