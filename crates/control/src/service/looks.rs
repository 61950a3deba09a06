//! Operations that may block: requests to the launcher, and reads on a file system that all nodes share. A
//! network file system that hangs blocks its callers, so a few threads of their own make these calls and send
//! what they found to the service as a request. The service goes on meanwhile, and decides by its state when
//! the result arrives.
//!
//! Keeps A-13 (a look that never returns hurts nobody) and A-10 (looks under way are bounded).

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

/// Number of looking threads.
pub(super) const LOOKERS: usize = 4;
/// Looks that may wait for a thread; the next watch retries the rest.
pub(super) const LOOKS_MAX: usize = 4_096;
/// An order to kill that waited for longer is not carried out, since its reason may have gone.
const KILL_AGE_MAX: Duration = Duration::from_secs(10);
/// A look that takes longer is reported.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// A node's share of an attempt.
pub(super) type ShareKey = (JobId, AttemptNumber, NodeName);

/// An operation that may block.
pub(super) enum Look {
    /// Find out what became of a silent supervisor.
    After { share: ShareKey, epoch: u64, folder: PathBuf, ranks: Range<u32> },
    /// Kill a share's supervisor and everything that it started.
    Kill { share: ShareKey, folder: PathBuf, ordered_at: Instant },
    /// Answer the report that a share has ended; the launcher decides whether the supervisor is to stay.
    Stay { folder: PathBuf, is_gang_over: bool, orders: Orders, reply: Reply<Orders> },
}

/// The result of a look.
#[derive(Debug)]
pub(super) enum Found {
    /// The supervisor isn't known to be gone.
    Present(Presence),
    /// The supervisor is gone and left its final report behind.
    Ended(Box<Report>),
    /// The supervisor and everything it started are gone, and all its ranks had ended with 0.
    Succeeded,
    /// The supervisor and everything it started are gone.
    Gone,
    /// The supervisor is gone, but what it started can't be killed yet.
    Remains(String),
    /// The look failed, so nothing is known.
    Unknown(String),
    /// The outcome of an order to kill.
    Killed(Result<(), String>),
}

/// Starts the looking threads, which run until nobody sends looks any more.
///
/// # Errors
/// If a thread can't be started.
pub(super) fn start(
    launcher: &Arc<dyn Launcher>,
    looks: Receiver<Look>,
    service: &SyncSender<Request>,
) -> std::io::Result<()> {
    let looks = Arc::new(Mutex::new(looks));
    for _ in 0..LOOKERS {
        let (launcher, looks, service) = (Arc::clone(launcher), Arc::clone(&looks), service.clone());
        let run = move || {
            // One thread holds the lock while it waits for a look, and the others wait for the lock.
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

/// Carries out a look and returns the request that tells the service, if any.
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
            // The supervisor may have given up waiting.
            let _ = reply.send(Ok(Orders { stay, ..orders }));
            None
        }
    }
}

/// Returns how a vanished supervisor's share ended: by its final report, or else by the records of its ranks'
/// exits if all are 0.
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

/// Reads the report that a supervisor leaves behind when it can't deliver it. None if it is absent, damaged,
/// too large or not final.
fn final_report(folder: &std::path::Path) -> Option<Report> {
    let bytes = read_bounded(&folder.join(FINAL_REPORT_FILE)).ok()?;
    let report: Report = serde_json::from_slice(&bytes).ok()?;
    let is_final = matches!(report.state, NodeState::Ended { .. }) && is_understood(report.version);
    is_final.then_some(report)
}

/// Shares that are being looked at, with the time the look began.
#[derive(Debug, Default)]
pub(super) struct Looking(BTreeMap<ShareKey, Timestamp>);

impl Looking {
    pub(super) fn is_at(&self, share: &ShareKey) -> bool {
        self.0.contains_key(share)
    }

    pub(super) fn is_done(&mut self, share: &ShareKey) {
        self.0.remove(share);
    }

    /// Returns the nodes whose looks have taken too long, and for how long.
    pub(super) fn overdue(&self, now: Timestamp) -> Vec<(NodeName, Duration)> {
        let overdue = self.0.iter().filter(|(_, since)| now.since(**since) > TOLD_AFTER);
        overdue.map(|((_, _, node), since)| (node.clone(), now.since(*since))).collect()
    }
}

impl Actor {
    /// Queues a look at a share. If too many are under way, the next watch asks again.
    pub(super) fn look(&mut self, now: Timestamp, share: &ShareKey, look: Look) {
        if self.looks.try_send(look).is_ok() {
            self.looking.0.insert(share.clone(), now);
        } else {
            debug!(job = %share.0, node = %share.2, "too many looks are under way");
        }
    }

    /// Orders the share's supervisor to be killed.
    pub(super) fn order_kill(&mut self, now: Timestamp, share: &ShareKey) {
        let folder = self.share_folder(share.0, share.1, share.2.as_str());
        self.look(now, share, Look::Kill { share: share.clone(), folder, ordered_at: Instant::now() });
    }

    /// Answers the report of a share's end once the launcher has said whether the supervisor stays. Without
    /// an answer, the supervisor asks again.
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
