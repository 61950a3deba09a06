//! Stored answers to changes that came with an `Idempotency-Key`, so that a client whose answer was lost gets
//! the same one again. An answer becomes durable in the transaction of its change. Age, number and bytes of
//! answers are limited.

use std::time::Duration;

use gangline_base::Timestamp;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use super::store::to_sql;
use crate::db::{Sequence, check_row, row_sum};

/// How long an answer is kept, unless newer ones need the room.
const AGE_MAX: Duration = Duration::from_hours(24);
/// The most answers that are kept.
pub const ANSWERS_MAX: usize = 100_000;
/// The most bytes of answer bodies that are kept.
const BYTES_MAX: i64 = 64 << 20;
/// Old answers that one commit examines, in addition to as many as it adds, so that removal is always quick.
const LOOKED_AT: usize = 64;

/// The identity of a change that is made only once, however often it is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// The key's owner: equal keys of different users are different.
    pub user: String,
    /// The key that the client sent.
    pub key: String,
    /// The hash of the request.
    pub request: blake3::Hash,
}

/// The answer to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// The hash of the request.
    pub request: blake3::Hash,
    /// The answer's body, as sent.
    pub body: String,
    /// Whether the answer is intact. If not, only the fact is known that a change with its key was made.
    pub is_whole: bool,
}

/// Why a stored answer isn't sent. The change under its key was made and is never repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The answer under this key is damaged on disk.
    Damaged(String),
    /// The key was used for another request.
    OtherRequest(String),
}

impl KeptAnswer {
    /// Returns the answer's body, if it belongs to the same request and is intact.
    ///
    /// # Errors
    /// [`Refused`] otherwise.
    pub fn for_request(&self, key: &RequestKey) -> Result<&str, Refused> {
        if !self.is_whole {
            return Err(Refused::Damaged(key.key.clone()));
        }
        if self.request == key.request { Ok(&self.body) } else { Err(Refused::OtherRequest(key.key.clone())) }
    }
}

/// Stores the answers to the changes up to record `last`, and removes old answers.
pub(crate) fn keep_answers(
    transaction: &Transaction<'_>,
    answers: &[(RequestKey, KeptAnswer)],
    now: Timestamp,
    last: Sequence,
) -> rusqlite::Result<()> {
    if answers.is_empty() {
        return Ok(());
    }
    let newest = "SELECT number, bytes_through FROM answers ORDER BY number DESC LIMIT 1";
    let newest = transaction.prepare_cached(newest)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (mut number, mut bytes): (i64, i64) = newest.unwrap_or((0, 0));
    let sql = "INSERT INTO answers (number, user, key, request, at_unix_nanos, sequence, bytes_through, body, sum)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let mut insert = transaction.prepare_cached(sql)?;
    for (key, answer) in answers {
        number += 1;
        bytes += i64::try_from(answer.body.len()).unwrap_or(i64::MAX);
        let (request, at, sequence) = (answer.request.as_bytes(), to_sql(now.unix_nanos()), to_sql(last.0));
        let numbers = [at.to_le_bytes(), sequence.to_le_bytes()];
        let (user, body) = (key.user.as_bytes(), answer.body.as_bytes());
        let sum = row_sum(&[user, key.key.as_bytes(), request, &numbers[0], &numbers[1], body]);
        insert.execute(params![number, key.user, key.key, request, at, sequence, bytes, answer.body, sum])?;
    }
    let last_forgotten = number - i64::try_from(ANSWERS_MAX).unwrap_or(i64::MAX);
    let too_old = now.unix_nanos().saturating_sub(u64::try_from(AGE_MAX.as_nanos()).unwrap_or(u64::MAX));
    let limits = params![to_sql(too_old), last_forgotten, bytes - BYTES_MAX];
    // Usually the oldest answer may stay, and then so may all others.
    let oldest =
        "SELECT at_unix_nanos < ?1 OR number <= ?2 OR bytes_through <= ?3 FROM answers ORDER BY number LIMIT 1";
    if !transaction.prepare_cached(oldest)?.query_row(limits, |row| row.get(0))? {
        return Ok(());
    }
    let looked_at = i64::try_from(LOOKED_AT + answers.len()).unwrap_or(i64::MAX);
    let sql = "DELETE FROM answers WHERE number IN (SELECT number FROM answers ORDER BY number LIMIT ?4)
               AND (at_unix_nanos < ?1 OR number <= ?2 OR bytes_through <= ?3)";
    let limits = params![to_sql(too_old), last_forgotten, bytes - BYTES_MAX, looked_at];
    transaction.prepare_cached(sql)?.execute(limits)?;
    Ok(())
}

/// Returns the stored answer for a user's key.
pub(crate) fn read_answer(
    transaction: &Transaction<'_>,
    user: &str,
    key: &str,
) -> rusqlite::Result<Option<KeptAnswer>> {
    let sql = "SELECT request, body, at_unix_nanos, sequence, sum FROM answers WHERE user = ?1 AND key = ?2";
    let read = |row: &Row<'_>| {
        let bytes = |column: usize| row.get_ref(column)?.as_bytes().map_err(rusqlite::Error::from);
        let (request, body) = (bytes(0).unwrap_or_default(), bytes(1).unwrap_or_default());
        let is_same = is_intact(row, (user.as_bytes(), key.as_bytes())).unwrap_or(false);
        let body_text = String::from_utf8(body.to_vec());
        let hash: Option<[u8; 32]> = request.try_into().ok();
        let is_whole = is_same && hash.is_some() && body_text.is_ok();
        let request = blake3::Hash::from_bytes(hash.unwrap_or_default());
        Ok(KeptAnswer { request, body: body_text.unwrap_or_default(), is_whole })
    };
    transaction.prepare_cached(sql)?.query_row([user, key], read).optional()
}

/// Reports whether a row is intact that begins with request, body, time, record and checksum.
pub(super) fn is_intact(row: &Row<'_>, (user, key): (&[u8], &[u8])) -> rusqlite::Result<bool> {
    let (request, body) = (row.get_ref(0)?.as_bytes()?, row.get_ref(1)?.as_bytes()?);
    let numbers = [row.get::<_, i64>(2)?.to_le_bytes(), row.get::<_, i64>(3)?.to_le_bytes()];
    let columns = [user, key, request, &numbers[0], &numbers[1], body];
    Ok(check_row(row.get_ref(4)?, &columns, || "an answer".to_owned()).is_ok())
}

/// Passes the user and the key of each stored answer to `each`.
pub(crate) fn read_keys(transaction: &Transaction<'_>, mut each: impl FnMut(&str, &str)) -> rusqlite::Result<()> {
    // An index has both, so the answers themselves aren't read.
    let mut statement = transaction.prepare("SELECT user, key FROM answers ORDER BY user, key")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?);
    }
    Ok(())
}

/// Removes answers to changes after record `last`, which a damaged journal has lost.
pub(super) fn forget_answers(transaction: &Transaction<'_>, last: Sequence) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM answers WHERE sequence > ?1", [to_sql(last.0)]).map(drop)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn database() -> Connection {
        let connection = Connection::open_in_memory().expect("memory is there");
        connection.execute_batch(include_str!("../db/migrations/0003_answers.sql")).expect("the table is made");
        connection.execute_batch("ALTER TABLE answers ADD COLUMN sum BLOB").expect("the column is made");
        connection
    }

    fn answer(number: u32, bytes: usize) -> (RequestKey, KeptAnswer) {
        let request = blake3::hash(&number.to_le_bytes());
        let key = RequestKey { user: "ada".to_owned(), key: format!("key-{number}"), request };
        (key, KeptAnswer { request, body: "x".repeat(bytes), is_whole: true })
    }

    fn keep(connection: &mut Connection, answers: &[(RequestKey, KeptAnswer)], seconds: u64) {
        let transaction = connection.transaction().expect("one at a time");
        let now = Timestamp::EPOCH + Duration::from_secs(seconds);
        keep_answers(&transaction, answers, now, Sequence(1)).expect("they are kept");
        transaction.commit().expect("committed");
    }

    fn kept(connection: &Connection) -> (i64, i64) {
        let sql = "SELECT count(*), coalesce(min(number), 0) FROM answers";
        connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("counted")
    }

    /// Proves A-10 for stored answers.
    #[test]
    fn answers_are_bounded_in_age_number_and_bytes_and_the_oldest_go_first() {
        let mut connection = database();
        for from in (0..100_100).step_by(1_000) {
            let answers: Vec<_> = (from..from + 1_000).map(|number| answer(number, 1)).collect();
            keep(&mut connection, &answers, 1);
        }
        assert_eq!(kept(&connection), (100_000, 1_001), "of 101,000 the oldest are gone");
        for number in 0..66 {
            keep(&mut connection, &[answer(200_000 + number, 1 << 20)], 2);
        }
        for number in 0..2_000 {
            keep(&mut connection, &[answer(300_000 + number, 0)], 3);
        }
        let sum: i64 =
            connection.query_row("SELECT sum(length(body)) FROM answers", [], |row| row.get(0)).expect("a sum");
        assert!(sum <= BYTES_MAX || kept(&connection).0 > 2_064, "{sum} bytes are kept");
        let day_later = 3 + AGE_MAX.as_secs() + 1;
        for number in 0..2_000 {
            keep(&mut connection, &[answer(400_000 + number, 0)], day_later);
        }
        let old = "SELECT count(*) FROM answers WHERE at_unix_nanos < 4000000000";
        let before: i64 = connection.query_row(old, [], |row| row.get(0)).expect("counted");
        for number in 0..2_000 {
            keep(&mut connection, &[answer(500_000 + number, 0)], day_later);
        }
        let after: i64 = connection.query_row(old, [], |row| row.get(0)).expect("counted");
        assert!(after == 0 || after <= before - 64_000, "{after} of {before} are left");
    }

    #[test]
    fn a_key_is_its_users_own() {
        let mut connection = database();
        let (key, first) = answer(1, 3);
        let (other, second) = (RequestKey { user: "eve".to_owned(), ..key.clone() }, answer(2, 4).1);
        keep(&mut connection, &[(key, first.clone()), (other, second.clone())], 1);
        let transaction = connection.transaction().expect("one at a time");
        assert_eq!(read_answer(&transaction, "ada", "key-1").expect("read"), Some(first));
        assert_eq!(read_answer(&transaction, "eve", "key-1").expect("read"), Some(second));
        assert_eq!(read_answer(&transaction, "ada", "key-2").expect("read"), None);
    }

    #[test]
    fn a_changed_answer_is_known_as_one_and_an_old_one_is_believed() {
        for change in ["body = 'y'", "request = x'00'", "sequence = 2", "at_unix_nanos = 7", "body = 7"] {
            let mut connection = database();
            keep(&mut connection, &[answer(1, 3)], 1);
            connection.execute(&format!("UPDATE OR IGNORE answers SET {change}"), []).expect("the statement is sound");
            let transaction = connection.transaction().expect("one at a time");
            let found = read_answer(&transaction, "ada", "key-1").expect("read").expect("it is there");
            assert!(!found.is_whole, "{change}");
            transaction.execute("UPDATE answers SET sum = NULL, request = zeroblob(32)", []).expect("sound");
            assert!(read_answer(&transaction, "ada", "key-1").expect("read").expect("it is there").is_whole);
        }
    }
}
