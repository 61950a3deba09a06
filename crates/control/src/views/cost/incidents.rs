//! Incidents that people looked after in a period, as part of its bill.

use gangline_accounting::bill::{Biller, Period};
use gangline_base::Timestamp;
use gangline_store::codec::{IncidentMet, IncidentOf};
use gangline_store::db;
use gangline_store::ports::Queries as _;

use super::super::Views;
use super::wire::{Jobs, Whose};
use super::{By, Key, PLATFORM, Rate, RowKey};

/// The group of people's time in reports whose groups it isn't in.
const PEOPLE: &str = "(people)";

impl Views {
    /// Passes the incidents of a period to `each`.
    pub(super) fn incidents(
        &self,
        period: Period,
        mut each: impl FnMut(Timestamp, &IncidentMet),
    ) -> Result<(), db::Error> {
        self.reader.incidents((period.from, period.to), &mut |at, met| each(at, &met))
    }
}

/// Returns the group of an incident in a report.
pub(super) fn group_of(met: &IncidentMet, by: By) -> Key {
    match (by, &met.owner, &met.subject) {
        (By::Node, _, IncidentOf::Node(node)) => Key::Named(node.clone()),
        (By::Node | By::Accelerator, ..) => Key::Named(PEOPLE.to_owned()),
        (_, None, _) => Key::Named(PLATFORM.to_owned()),
        (By::Queue, Some(owner), _) => Key::Named(owner.queue.clone()),
        (By::User, Some(owner), _) => Key::Named(owner.user.clone()),
        (By::Name, Some(owner), _) => Key::Named(owner.name.clone()),
        (By::Job, Some(owner), _) => Key::OfJob(owner.job),
    }
}

/// Adds an incident to the rows of an export.
pub(super) fn add_row(met: &IncidentMet, at: Timestamp, biller: &mut Biller<RowKey>, jobs: &mut Jobs) {
    if let Some(owner) = &met.owner {
        jobs.entry(owner.job).or_insert_with(|| Whose::of(owner));
    }
    let job = met.owner.as_ref().map(|owner| owner.job);
    let key = RowKey { resource: met.subject.name(), job, rate: Rate::Unit(met.per_hour) };
    biller.attend(key, at, &met.incident());
}
