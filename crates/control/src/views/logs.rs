//! Finds the log of a rank by the job's record.

use std::path::{Path, PathBuf};

use gangline_api::Time;
use gangline_base::AttemptNumber;

use crate::folders::share_folder;
use gangline_store::model::JobRecord;

/// The log of a rank in one attempt.
#[derive(Debug)]
pub struct RankLog {
    /// The attempt.
    pub attempt: u32,
    /// The global rank.
    pub rank: u32,
    /// The log's current file, which doesn't exist before the rank writes something.
    pub path: PathBuf,
    /// Whether the attempt has ended, so that nothing more is written.
    pub has_ended: bool,
}

/// Why there is no such log, in words.
#[derive(Debug)]
pub enum NoLog {
    /// The job has no such attempt or rank.
    Unknown(String),
    /// Retention removed the log.
    Removed(String),
}

/// What a log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// What the rank wrote.
    Rank,
    /// What the setup command wrote on the rank's node.
    Setup,
    /// The stacks of the ranks of the rank's node when they hung.
    Stacks,
}

pub(super) fn find(
    data: &Path,
    record: &JobRecord,
    attempt: Option<u32>,
    (rank, kind): (u32, LogKind),
) -> Result<RankLog, NoLog> {
    let wanted = attempt.or_else(|| record.last_attempt().map(|attempt| attempt.number));
    let found = record.attempts.iter().find(|attempt| Some(attempt.number) == wanted);
    let attempt = found.ok_or_else(|| {
        let id = record.id;
        NoLog::Unknown(
            wanted
                .map_or_else(|| format!("{id} has not started yet"), |number| format!("{id} has no attempt {number}")),
        )
    })?;
    let node = usize::try_from(rank / record.gang.ranks_per_node.max(1)).unwrap_or(usize::MAX);
    let share = attempt.shares.get(node);
    let share = share.ok_or_else(|| NoLog::Unknown(format!("{} has no rank {rank}", record.id)))?;
    if let Some(removed) = record.removed.logs_of(attempt.number) {
        let (id, number, at, because) = (record.id, attempt.number, Time(removed.at), &removed.because);
        return Err(NoLog::Removed(format!("the logs of attempt {number} of {id} were removed at {at}: {because}")));
    }
    let folder = share_folder(data, record.id, AttemptNumber(attempt.number), &share.node);
    let logs = folder.join("logs");
    let path = match kind {
        LogKind::Rank => logs.join(format!("rank-{rank}.log")),
        LogKind::Setup => logs.join("setup.log"),
        LogKind::Stacks => folder.join("stacks.txt"),
    };
    Ok(RankLog { attempt: attempt.number, rank, path, has_ended: attempt.ended_at.is_some() })
}
