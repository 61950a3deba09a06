//! Tells people and programs outside when a job starts or ends, after that is durable.

use gangline_base::{JobId, Notify, Occasion, Timestamp};
use gangline_orchestration::{Decision, Fate};
use gangline_store::model::JobRecord;
use serde_json::{Value, json};
use tracing::warn;

use super::Error;
use super::actor::Actor;
use super::batch::Batch;
use crate::delivery::{Delivery, Destination, Message};

/// The version of what is posted.
const VERSION: u32 = 1;

impl Actor {
    /// Refuses an address that could never be mailed to.
    pub(super) fn refuse_unmailable(&self, notify: &Notify) -> Result<(), Error> {
        let has_mail = self.options.courier.as_ref().is_some_and(|courier| courier.has_mail());
        match &notify.email {
            Some(address) if !has_mail => Err(Error::NoMailServer(address.clone())),
            _ => Ok(()),
        }
    }

    /// Queues the notices that follow from a decision, which the job's record has followed already.
    pub(super) fn tell(&self, now: Timestamp, decision: &Decision, batch: &mut Batch) {
        if let Decision::End { job, .. } = decision {
            batch.ended.push(*job);
        }
        let occasions = occasions(decision);
        let Some(record) = self.records.get(&decision.job()).filter(|_| !occasions.is_empty()) else { return };
        let notify = record.notify();
        let Some(occasion) = occasions.iter().find(|occasion| notify.on.contains(occasion)) else { return };
        let webhook = notify.webhook.map(Destination::Webhook);
        let email = notify.email.map(Destination::Email);
        let message = message(now, *occasion, record);
        let notices = webhook.into_iter().chain(email).map(|to| Delivery { to, message: message.clone() });
        batch.notices.extend(notices);
    }

    /// Sends the ids of jobs that have ended to the channel that takes them, if there is one.
    pub(super) fn tell_ended(&self, jobs: &[JobId]) {
        let Some(asked) = &self.options.ended else { return };
        let missed = jobs.iter().filter(|job| asked.try_send(**job).is_err()).count();
        if missed > 0 {
            warn!(missed, "ends of jobs come faster than their traces can be made");
        }
    }

    pub(super) fn send(&self, notice: Delivery) {
        if let Some(courier) = &self.options.courier {
            courier.send(notice);
        }
    }
}

/// Returns what a decision is an occasion of.
fn occasions(decision: &Decision) -> &'static [Occasion] {
    match decision {
        // A later attempt goes on with what the first one began.
        Decision::Place { attempt, .. } if attempt.0 == 1 => &[Occasion::Start],
        Decision::End { fate: Fate::Succeeded | Fate::Cancelled | Fate::EarlyStop(_), .. } => &[Occasion::End],
        Decision::End { .. } => &[Occasion::End, Occasion::Failure],
        _ => &[],
    }
}

fn message(now: Timestamp, occasion: Occasion, record: &JobRecord) -> Message {
    let JobRecord { id, name, queue, submitter, state, because, .. } = record;
    let state = match occasion {
        Occasion::Start => "started",
        Occasion::End | Occasion::Failure => state.name(),
    };
    let why = if because == state { String::new() } else { format!(": {because}") };
    let line = format!("{id} {name} (queue {queue}) {state}{why}");
    let took = |since: Timestamp| std::time::Duration::from_secs(now.since(since).as_secs());
    let text = format!(
        "{line}\n\nsubmitted by {submitter}, {:?} ago\n\ngangline show {id} and gangline logs {id} say more.\n",
        took(record.submitted_at)
    );
    Message { subject: format!("{id} {name} {state}"), text, body: body(occasion, record, (state, line)) }
}

/// Returns what is posted. Receivers of chats (Slack's, Mattermost's) show `text` and ignore the rest.
fn body(occasion: Occasion, record: &JobRecord, (state, text): (&str, String)) -> Value {
    let JobRecord { id, name, queue, submitter, because, submitted_at, ended_at, .. } = record;
    let at = |time: Timestamp| gangline_api::Time(time);
    let occasion = match occasion {
        Occasion::Start => "start",
        Occasion::End | Occasion::Failure => "end",
    };
    json!({
        "v": VERSION,
        "occasion": occasion,
        "job": id.to_string(),
        "name": name,
        "queue": queue,
        "submitter": submitter,
        "state": state,
        "because": because,
        "submitted_at": at(*submitted_at),
        "ended_at": ended_at.map(at),
        "attempts": record.attempts.last().map_or(0, |attempt| attempt.number),
        "text": text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_starts_once_and_a_cancelled_one_is_no_failure() {
        let end = |fate| occasions(&Decision::End { job: JobId(1), fate }).to_vec();
        assert_eq!(end(Fate::Succeeded), [Occasion::End]);
        assert_eq!(end(Fate::Cancelled), [Occasion::End]);
        assert_eq!(end(Fate::TimedOut), [Occasion::End, Occasion::Failure]);
    }
}
