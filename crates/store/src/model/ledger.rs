//! The ledger's rows: written once, and verified at every read.

use gangline_accounting::LedgerEntry;
use gangline_base::{Bucket, JobId, Money, Timestamp};
use rusqlite::{Row, Transaction, params};

use super::store::{from_sql, to_sql};
use crate::db::{check_row, damaged, row_sum};

/// The columns in the table's order; the buckets come last, in the order of [`Bucket::ALL`].
const COLUMNS: &str = "job, attempt, node, queue, devices, from_unix_nanos, to_unix_nanos, price_nano_dollars_per_hour,
     cost_nano_dollars, compute, data_stall, checkpoint_stall, communication, straggler_wait, restart, lost_work, idle,
     unreported";

/// The index is used for less than one booking in so many.
const INDEX_PAYS_AT: i64 = 8;

/// Number of buckets in the table's first version.
const BUCKETS_AT_FIRST: usize = 8;

/// A row of the ledger, as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booked {
    /// The number of the attempt within its job.
    pub attempt: u32,
    /// The name of the node.
    pub node: String,
    /// How many devices of the node the attempt held.
    pub devices: u32,
    /// When the devices were allocated.
    pub from: Timestamp,
    /// When they were released.
    pub to: Timestamp,
    /// The price of one device for one hour.
    pub price: Money,
    /// In the order of [`Bucket::ALL`].
    pub nanos: [u64; Bucket::ALL.len()],
}

impl Booked {
    /// Returns the booking that an entry would be.
    #[must_use]
    pub fn of(entry: &LedgerEntry) -> Booked {
        let allocation = &entry.allocation;
        Booked {
            attempt: allocation.attempt.0,
            node: allocation.node.to_string(),
            devices: allocation.devices,
            from: allocation.from,
            to: allocation.to,
            price: allocation.price,
            nanos: Bucket::ALL.map(|bucket| u64::try_from(entry.buckets[bucket].nanos()).unwrap_or(u64::MAX)),
        }
    }
}

/// The columns of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LedgerRow {
    node: String,
    queue: String,
    /// Job, attempt, devices, from, to, price and cost.
    numbers: [i64; 7],
    buckets: [i64; Bucket::ALL.len()],
}

impl LedgerRow {
    /// Returns the row of an entry.
    pub(crate) fn of(queue: &str, entry: &LedgerEntry) -> LedgerRow {
        let allocation = &entry.allocation;
        let nanos = |bucket| i64::try_from(entry.buckets[bucket].nanos()).unwrap_or(i64::MAX);
        LedgerRow {
            node: allocation.node.to_string(),
            queue: queue.to_owned(),
            numbers: [
                to_sql(allocation.job.0),
                i64::from(allocation.attempt.0),
                i64::from(allocation.devices),
                to_sql(allocation.from.unix_nanos()),
                to_sql(allocation.to.unix_nanos()),
                allocation.price.nano_dollars(),
                entry.cost.nano_dollars(),
            ],
            buckets: Bucket::ALL.map(nanos),
        }
    }

    /// Returns the share's attempt number and node.
    pub(crate) fn share(&self) -> (i64, &str) {
        (self.numbers[1], &self.node)
    }

    /// Returns the bytes of all numbers. Zero buckets that rows of earlier releases didn't have add nothing, so that
    /// checksums of those rows stay right.
    fn bytes(&self) -> Vec<u8> {
        let (first, later) = self.buckets.split_at(BUCKETS_AT_FIRST);
        let later = later.iter().filter(|nanos| **nanos != 0);
        let mut bytes = Vec::with_capacity(size_of::<i64>() * (self.numbers.len() + self.buckets.len()));
        self.numbers.iter().chain(first).chain(later).for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes
    }

    /// Reads [`COLUMNS`].
    fn read(row: &Row<'_>) -> rusqlite::Result<LedgerRow> {
        let mut numbers = [0; 7];
        for (number, column) in numbers.iter_mut().zip([0, 1, 4, 5, 6, 7, 8]) {
            *number = row.get(column)?;
        }
        let mut buckets = [0; Bucket::ALL.len()];
        for (column, bucket) in buckets.iter_mut().enumerate() {
            *bucket = row.get(9 + column)?;
        }
        Ok(LedgerRow { node: row.get(2)?, queue: row.get(3)?, numbers, buckets })
    }

    /// Reads [`COLUMNS`] and the checksum, and verifies them.
    fn read_checked(row: &Row<'_>, job: JobId) -> rusqlite::Result<LedgerRow> {
        let what = || format!("what the ledger has of {job}");
        let read = LedgerRow::read(row).map_err(|_| damaged(what()))?;
        check_row(row.get_ref(18)?, &[&read.bytes(), read.node.as_bytes(), read.queue.as_bytes()], what)?;
        Ok(read)
    }

    fn booked(self, job: JobId) -> rusqlite::Result<Booked> {
        let [_, attempt, devices, from, to, price, _] = self.numbers;
        let small = |number: i64| u32::try_from(number).map_err(|_| damaged(format!("what the ledger has of {job}")));
        Ok(Booked {
            node: self.node,
            devices: small(devices)?,
            from: Timestamp::from_unix_nanos(from_sql(from)),
            to: Timestamp::from_unix_nanos(from_sql(to)),
            price: Money::from_nano_dollars(price),
            nanos: self.buckets.map(from_sql),
            attempt: small(attempt)?,
        })
    }

    /// Writes the row. A second booking of the same share fails the transaction.
    pub(crate) fn write(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let sum = row_sum(&[&self.bytes(), self.node.as_bytes(), self.queue.as_bytes()]);
        let [job, attempt, devices, from, to, price, cost] = self.numbers;
        let [b0, b1, b2, b3, b4, b5, b6, b7, b8] = self.buckets;
        let sql = format!(
            "INSERT INTO ledger ({COLUMNS}, sum) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19)"
        );
        transaction.prepare_cached(&sql)?.execute(params![
            job, attempt, self.node, self.queue, devices, from, to, price, cost, b0, b1, b2, b3, b4, b5, b6, b7, b8,
            sum
        ])?;
        Ok(())
    }
}

/// Writes the row of an entry.
pub(crate) fn write_ledger(transaction: &Transaction<'_>, queue: &str, entry: &LedgerEntry) -> rusqlite::Result<()> {
    LedgerRow::of(queue, entry).write(transaction)
}

/// Returns the intact rows of a job, and the number of damaged ones.
pub(crate) fn stored_ledger(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<(Vec<LedgerRow>, u64)> {
    let sql = format!("SELECT {COLUMNS}, sum FROM ledger WHERE job = ?1 ORDER BY attempt, node");
    let mut statement = transaction.prepare_cached(&sql)?;
    let (mut intact, mut damaged) = (Vec::new(), 0);
    let mut rows = statement.query([to_sql(job.0)])?;
    while let Some(row) = rows.next()? {
        match LedgerRow::read_checked(row, job) {
            Ok(row) => intact.push(row),
            Err(_) => damaged += 1,
        }
    }
    Ok((intact, damaged))
}

/// Returns the bookings of a job, by attempt and node.
pub(crate) fn read_ledger(transaction: &Transaction<'_>, job: JobId) -> rusqlite::Result<Vec<Booked>> {
    let sql = format!("SELECT {COLUMNS}, sum FROM ledger WHERE job = ?1 ORDER BY attempt, node");
    let mut statement = transaction.prepare_cached(&sql)?;
    let rows = statement.query_map([to_sql(job.0)], |row| LedgerRow::read_checked(row, job)?.booked(job))?;
    rows.collect()
}

/// Passes the bookings that end after a time to `each`, by job, attempt and node, each with its job's queue.
pub(crate) fn read_ledger_ending_after(
    transaction: &Transaction<'_>,
    at: Timestamp,
    each: &mut dyn FnMut(JobId, String, Booked) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    let at = to_sql(at.unix_nanos());
    // The index pays where it leaves out most bookings: each of its rows is looked up in the table and sorted.
    let all: i64 = transaction.prepare_cached("SELECT count(*) FROM ledger")?.query_row([], |row| row.get(0))?;
    let some = "SELECT count(*) FROM (SELECT 1 FROM ledger INDEXED BY ledger_ends WHERE to_unix_nanos > ?1 LIMIT ?2)";
    let most = all / INDEX_PAYS_AT;
    let late: i64 = transaction.prepare_cached(some)?.query_row([at, most], |row| row.get(0))?;
    let way = if late < most { "INDEXED BY ledger_ends" } else { "NOT INDEXED" };
    let sql = format!("SELECT {COLUMNS}, sum FROM ledger {way} WHERE to_unix_nanos > ?1 ORDER BY job, attempt, node");
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query([at])?;
    while let Some(row) = rows.next()? {
        let job = JobId(from_sql(row.get(0)?));
        let mut read = LedgerRow::read_checked(row, job)?;
        let queue = std::mem::take(&mut read.queue);
        each(job, queue, read.booked(job)?)?;
    }
    Ok(())
}
