//! The rows of incidents that people looked after: written once, and verified at every read.

use gangline_base::{JobId, Timestamp};
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::{from_sql, to_sql};
use crate::codec::{IncidentMet, IncidentOf, Noted, Recorded, decode_entry};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order.
pub(super) const COLUMNS: &str = "subject, at_unix_nanos, entry, sum";

/// Writes an incident; a second one of the same job or node at the same time replaces the first.
pub(crate) fn write_incident(
    transaction: &Transaction<'_>,
    at: Timestamp,
    incident: &IncidentMet,
) -> rusqlite::Result<()> {
    let sql = format!("INSERT OR REPLACE INTO incidents ({COLUMNS}) VALUES (?1, ?2, ?3, ?4)");
    let (entry, time) = (incident.encode(), at.unix_nanos().to_le_bytes());
    let columns = params![incident.subject.name(), to_sql(at.unix_nanos()), entry, row_sum(&[&time, &entry])];
    transaction.prepare_cached(&sql)?.execute(columns).map(drop)
}

/// Returns the incident of a job or a node at exactly this time, if its row is intact.
pub(crate) fn stored_incident(
    transaction: &Transaction<'_>,
    at: Timestamp,
    subject: &IncidentOf,
) -> rusqlite::Result<Option<IncidentMet>> {
    let sql = format!("SELECT {COLUMNS} FROM incidents WHERE subject = ?1 AND at_unix_nanos = ?2");
    let key = params![subject.name(), to_sql(at.unix_nanos())];
    let found = transaction.prepare_cached(&sql)?.query_row(key, read).optional();
    found.map(|found| found.map(|(_, incident)| incident))
}

/// Passes the incidents of a period to `each`, by time.
pub(crate) fn read_incidents(
    transaction: &Transaction<'_>,
    (from, to): (Timestamp, Timestamp),
    each: &mut dyn FnMut(Timestamp, IncidentMet),
) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT {COLUMNS} FROM incidents WHERE at_unix_nanos >= ?1 AND at_unix_nanos < ?2 ORDER BY at_unix_nanos, subject"
    );
    let [from, to] = [from, to].map(|at| to_sql(at.unix_nanos().min(i64::MAX.unsigned_abs())));
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query([from, to])?;
    while let Some(row) = rows.next()? {
        let (at, incident) = read(row)?;
        each(at, incident);
    }
    Ok(())
}

/// Returns the incidents of a job, by time.
pub(crate) fn read_incidents_of(
    transaction: &Transaction<'_>,
    job: JobId,
) -> rusqlite::Result<Vec<(Timestamp, IncidentMet)>> {
    let sql = format!("SELECT {COLUMNS} FROM incidents WHERE subject = ?1 ORDER BY at_unix_nanos");
    let found = transaction.prepare_cached(&sql)?.query_map([job.to_string()], read)?.collect::<Result<Vec<_>, _>>()?;
    // A node may have a job's name.
    Ok(found.into_iter().filter(|(_, incident)| incident.subject == IncidentOf::Job(job)).collect())
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<(Timestamp, IncidentMet)> {
    let subject: String = row.get(0)?;
    let what = || format!("an incident of {subject}");
    let at = Timestamp::from_unix_nanos(from_sql(row.get(1)?));
    let entry: Vec<u8> = row.get(2).map_err(|_| damaged(what()))?;
    check_row(row.get_ref(3)?, &[&at.unix_nanos().to_le_bytes(), &entry], what)?;
    match decode_entry(&entry).map(|recorded| if let Recorded::Noted(noted) = recorded { Some(*noted) } else { None }) {
        Ok(Some(Noted::Incident(incident))) if incident.subject.name() == subject => Ok((at, incident)),
        _ => Err(damaged(what())),
    }
}
