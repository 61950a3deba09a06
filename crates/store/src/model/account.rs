//! Whom a job is charged to, and the bookings of a period with it.

use std::sync::Arc;

use gangline_base::{JobId, Timestamp};
use rusqlite::{Row, Rows, Transaction, params};

use super::ledger::{Booked, read_ledger_ending_after};
use super::parts::StateRecord;
use super::record::JobRecord;
use super::store::{from_sql, read_record, to_sql, unless_damaged};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order.
pub(super) const COLUMNS: &str = "job, user, name, state, step, sum";

/// Whom a job is charged to, and what has come of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Who submitted it.
    pub user: String,
    /// The name in its job file.
    pub name: String,
    /// Its state; final unless the job is live.
    pub state: StateRecord,
    /// The highest step that any attempt reached.
    pub step: u64,
}

impl Account {
    /// Returns the account of a job.
    #[must_use]
    pub fn of(record: &JobRecord) -> Account {
        let JobRecord { submitter, name, state, high_water_step, .. } = record;
        Account { user: submitter.clone(), name: name.clone(), state: *state, step: *high_water_step }
    }

    /// Calls `with` with the columns that the checksum is of.
    fn with_columns<T>(&self, job: JobId, with: impl FnOnce(&[&[u8]]) -> T) -> T {
        let numbers = [job.0.to_le_bytes(), self.step.to_le_bytes()].concat();
        with(&[&numbers, self.user.as_bytes(), self.name.as_bytes(), self.state.name().as_bytes()])
    }
}

/// A booking with its job's id, queue and account. A job whose record was removed by an earlier release has no account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The job.
    pub job: JobId,
    /// The queue that it waited in.
    pub queue: String,
    /// The booking.
    pub booked: Booked,
    /// Its account.
    pub account: Option<Arc<Account>>,
}

/// Writes the account of a job that has ended.
pub(crate) fn write_account(transaction: &Transaction<'_>, record: &JobRecord) -> rusqlite::Result<()> {
    let account = Account::of(record);
    let sql = format!("INSERT OR REPLACE INTO accounts ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
    let Account { user, name, state, step } = &account;
    let columns =
        params![to_sql(record.id.0), user, name, state.name(), to_sql(*step), account.with_columns(record.id, row_sum)];
    transaction.prepare_cached(&sql)?.execute(columns).map(drop)
}

/// Passes every booking that overlaps a period to `each`, by job.
pub(crate) fn read_usage(
    transaction: &Transaction<'_>,
    (from, to): (Timestamp, Timestamp),
    each: &mut dyn FnMut(Usage),
) -> rusqlite::Result<()> {
    // Both are read in the order of jobs, so that no account is looked up.
    let sql = format!("SELECT {COLUMNS} FROM accounts WHERE job >= ?1 ORDER BY job");
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut statement = Some(&mut *statement);
    let mut accounts: Option<Rows<'_>> = None;
    let mut last: Option<(JobId, Arc<Account>)> = None;
    read_ledger_ending_after(transaction, from, &mut |job, queue, booked| {
        if booked.from >= to {
            return Ok(());
        }
        if let Some(statement) = statement.take() {
            accounts = Some(statement.query([to_sql(job.0)])?);
        }
        while last.as_ref().is_none_or(|(known, _)| *known < job) {
            let Some(row) = accounts.as_mut().map(Rows::next).transpose()?.flatten() else { break };
            let id = JobId(from_sql(row.get(0)?));
            if id >= job {
                last = Some((id, Arc::new(read(row, id)?)));
            }
        }
        let account = match &last {
            Some((known, account)) if *known == job => Some(Arc::clone(account)),
            // The job is live, or it ended under an earlier release.
            _ => unless_damaged(read_record(transaction, job))?.flatten().as_ref().map(Account::of).map(Arc::new),
        };
        each(Usage { job, queue, booked, account });
        Ok(())
    })
}

/// Returns the stored account of a job that has ended.
pub(crate) fn stored_account(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Option<Account>> {
    let mut statement = transaction.prepare_cached(&format!("SELECT {COLUMNS} FROM accounts WHERE job = ?1"))?;
    let mut rows = statement.query([to_sql(job.0)])?;
    rows.next()?.map(|row| read(row, job)).transpose()
}

pub(super) fn read(row: &Row<'_>, job: JobId) -> rusqlite::Result<Account> {
    let what = || format!("the account of {job}");
    let text = |column: usize| row.get::<_, String>(column).map_err(|_| damaged(what()));
    let state = text(3)?;
    let state = StateRecord::ALL.into_iter().find(|known| known.name() == state).ok_or_else(|| damaged(what()))?;
    let account = Account { user: text(1)?, name: text(2)?, state, step: from_sql(row.get(4)?) };
    account.with_columns(job, |columns| check_row(row.get_ref(5)?, columns, what))?;
    Ok(account)
}
