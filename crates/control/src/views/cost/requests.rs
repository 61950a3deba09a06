//! What jobs asked of object storage in a period, as part of its bill. An attempt's requests are in it once it has ended.

use gangline_accounting::bill::{Biller, Period};
use gangline_base::JobId;
use gangline_store::codec::{DatasetRequests, RequestsMade};
use gangline_store::db;
use gangline_store::ports::Queries as _;

use super::super::Views;
use super::wire::{Jobs, Whose};
use super::{By, Key, Rate, RowKey};

/// The group of requests in reports whose groups they aren't in.
const REQUESTS: &str = "(requests)";

impl Views {
    /// Passes everything that was asked for in a period to `each`.
    pub(super) fn asked(
        &self,
        period: Period,
        mut each: impl FnMut(&RequestsMade, &DatasetRequests),
    ) -> Result<(), db::Error> {
        self.reader.requests((period.from, period.to), &mut |made| {
            made.reads.iter().for_each(|reads| each(&made, reads));
        })
    }

    /// Adds what a job's attempts asked for to the bill of its attempts, and what was fetched while it waited beside them.
    pub(super) fn ask_of(&self, job: JobId, biller: &mut Biller<Option<u32>>) -> Result<(), db::Error> {
        for made in self.reader.requests_of(job)? {
            let attempt = made.fetch.is_none().then_some(made.attempt);
            made.reads.iter().for_each(|reads| biller.ask(attempt, (made.from, made.to), &reads.requests()));
        }
        Ok(())
    }
}

/// Returns the group of requests in a report.
pub(super) fn group_of(made: &RequestsMade, by: By) -> Key {
    match by {
        By::Queue => Key::Named(made.queue.clone()),
        By::User => Key::Named(made.user.clone()),
        By::Name => Key::Named(made.name.clone()),
        By::Job => Key::OfJob(made.job),
        By::Node | By::Accelerator => Key::Named(REQUESTS.to_owned()),
    }
}

/// Adds requests to the rows of an export.
pub(super) fn add_row(made: &RequestsMade, reads: &DatasetRequests, biller: &mut Biller<RowKey>, jobs: &mut Jobs) {
    jobs.entry(made.job).or_insert_with(|| Whose {
        queue: made.queue.clone(),
        name_and_user: Some((made.name.clone(), made.user.clone())),
        is_running: false,
    });
    let requests = reads.requests();
    let key = RowKey { resource: reads.address.clone(), job: Some(made.job), rate: Rate::Requests(requests.rate) };
    biller.ask(key, (made.from, made.to), &requests);
}
