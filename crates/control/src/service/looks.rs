//! What may block: questions to the launcher, and files on a file system that all nodes share. A network file system that hangs
//! hangs whoever asks, so a few threads of their own ask, and the service goes on without them: it is told by a request what they
//! found, and decides then, by what is so then.
//!
//! Keeps A-13 (a look that doesn't come back hurts nobody) and A-10 (looks under way are bounded).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gangline_base::{AttemptNumber, JobId, NodeName, Timestamp, with_causes};
use gangline_execution::files::read_bounded;
use gangline_execution::launcher::{FINAL_REPORT_FILE, Launcher, Presence, have_all_succeeded};
use gangline_execution::protocol::{NodeState, Orders, Report, is_understood};
use tracing::{debug, error};

use super::actor::Actor;
use super::handle::{Reply, Request};

/// Threads that look.
pub(super) const LOOKERS: usize = 4;
/// Looks that may wait for them; more are taken up at the next watch.
pub(super) const LOOKS_MAX: usize = 4_096;
/// An order to kill that waited for longer isn't carried out: what it was given for may have changed.
const KILL_AGE_MAX: Duration = Duration::from_secs(10);
/// A look that takes longer is told.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// A node's share of an attempt.
pub(super) type ShareKey = (JobId, AttemptNumber, NodeName);

/// Something to look at, or to do, that may block.
pub(super) enum Look {
    /// What has become of a silent supervisor.
    After { share: ShareKey, epoch: u64, folder: PathBuf, ranks: Range<u32> },
    /// Kill a share's supervisor with all that it started.
    Kill { share: ShareKey, folder: PathBuf, ordered_at: Instant },
    /// Answer a report of a share's end: whether the supervisor is to stay is the launcher's to say.
    Stay { folder: PathBuf, is_gang_over: bool, orders: Orders, reply: Reply<Orders> },
}

/// What a look found.
#[derive(Debug)]
pub(super) enum Found {
    /// The supervisor isn't gone.
    Present(Presence),
    /// It is gone, and left its final report behind.
    Ended(Box<Report>),
    /// It is gone with all that it started, and all its ranks had ended with 0.
    Succeeded,
    /// It is gone with all that it started.
    Gone,
    /// It is gone, and what it started can't be killed yet.
    Remains(String),
    /// That isn't known.
    Unknown(String),
    /// An order to kill was carried out, or couldn't be.
    Killed(Result<(), String>),
}

/// Threads that look until nobody asks any more.
///
/// # Errors
/// If there can be no thread.
pub(super) fn start(
    launcher: &Arc<dyn Launcher>,
    looks: Receiver<Look>,
    service: &SyncSender<Request>,
) -> std::io::Result<()> {
    let looks = Arc::new(Mutex::new(looks));
    for _ in 0..LOOKERS {
        let (launcher, looks, service) = (Arc::clone(launcher), Arc::clone(&looks), service.clone());
        let run = move || {
            // One waits with the lock and the others for the lock, which is the same.
            let next = || looks.lock().expect("nobody panics while it waits").recv();
            while let Ok(look) = next() {
                if carry_out(launcher.as_ref(), look).is_some_and(|found| service.send(found).is_err()) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("look".to_owned()).spawn(run)?;
    }
    Ok(())
}

/// Looks, and says what the service is to be told.
pub(super) fn carry_out(launcher: &dyn Launcher, look: Look) -> Option<Request> {
    match look {
        Look::After { share, epoch, folder, ranks } => {
            let found = match launcher.presence(&folder) {
                Ok(Presence::Gone) => what_is_left(launcher, &share, epoch, &folder, ranks),
                Ok(presence) => Found::Present(presence),
                Err(failure) => Found::Unknown(with_causes(&failure)),
            };
            Some(Request::Looked { share, found })
        }
        Look::Kill { share, folder, ordered_at } => {
            let killed = match ordered_at.elapsed() {
                age if age > KILL_AGE_MAX => Err("the order is too old".to_owned()),
                _ => launcher.kill(&folder).map_err(|failure| with_causes(&failure)),
            };
            Some(Request::Looked { share, found: Found::Killed(killed) })
        }
        Look::Stay { folder, is_gang_over, orders, reply } => {
            let stay = launcher.stays(&folder, is_gang_over);
            // The supervisor may have given up.
            let _ = reply.send(Ok(Orders { stay, ..orders }));
            None
        }
    }
}

/// The final report of a supervisor that is gone counts; otherwise the records of its ranks' ends do, if they all say 0.
fn what_is_left(
    launcher: &dyn Launcher,
    share: &ShareKey,
    epoch: u64,
    folder: &std::path::Path,
    ranks: Range<u32>,
) -> Found {
    let (job, attempt, node) = share;
    let is_its = |report: &Report| {
        (report.job, report.attempt, report.epoch, report.node.as_str()) == (job.0, attempt.0, epoch, node.as_str())
    };
    if let Some(report) = final_report(folder).filter(is_its) {
        return Found::Ended(Box::new(report));
    }
    match launcher.kill(folder) {
        Ok(()) if have_all_succeeded(folder, ranks) => Found::Succeeded,
        Ok(()) => Found::Gone,
        Err(failure) => Found::Remains(with_causes(&failure)),
    }
}

/// The report a supervisor leaves behind if it can't deliver it. Damaged, too large, not final or absent: none.
fn final_report(folder: &std::path::Path) -> Option<Report> {
    let bytes = read_bounded(&folder.join(FINAL_REPORT_FILE)).ok()?;
    let report: Report = serde_json::from_slice(&bytes).ok()?;
    let is_final = matches!(report.state, NodeState::Ended { .. }) && is_understood(report.version);
    is_final.then_some(report)
}

/// Shares that are being looked at, and since when.
#[derive(Debug, Default)]
pub(super) struct Looking(BTreeMap<ShareKey, Timestamp>);

impl Looking {
    pub(super) fn is_at(&self, share: &ShareKey) -> bool {
        self.0.contains_key(share)
    }

    pub(super) fn is_done(&mut self, share: &ShareKey) {
        self.0.remove(share);
    }

    /// Nodes that looks haven't come back from for long, and for how long.
    pub(super) fn overdue(&self, now: Timestamp) -> Vec<(NodeName, Duration)> {
        let overdue = self.0.iter().filter(|(_, since)| now.since(**since) > TOLD_AFTER);
        overdue.map(|((_, _, node), since)| (node.clone(), now.since(*since))).collect()
    }
}

impl Actor {
    /// Has a share looked at, unless that is under way. If too much is, the next watch asks again.
    pub(super) fn look(&mut self, now: Timestamp, share: &ShareKey, look: Look) {
        if self.looks.try_send(look).is_ok() {
            self.looking.0.insert(share.clone(), now);
        } else {
            debug!(job = %share.0, node = %share.2, "too many looks are under way");
        }
    }

    /// Has a share's supervisor killed.
    pub(super) fn order_kill(&mut self, now: Timestamp, share: &ShareKey) {
        let folder = self.share_folder(share.0, share.1, share.2.as_str());
        self.look(now, share, Look::Kill { share: share.clone(), folder, ordered_at: Instant::now() });
    }

    /// Answers a report of a share's end once it is known whether the supervisor is to stay. Without that answer it asks again.
    pub(super) fn answer_end(
        looks: &SyncSender<Look>,
        (folder, is_gang_over): (PathBuf, bool),
        orders: Orders,
        reply: Reply<Orders>,
    ) {
        if looks.try_send(Look::Stay { folder, is_gang_over, orders, reply }).is_err() {
            error!("too many looks are under way: the end of a share is acknowledged later");
        }
    }
}
