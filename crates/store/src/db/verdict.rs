//! SQLite's own checks of the file.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use rusqlite::{ErrorCode, Transaction};

use super::{Error, Reader};

impl Reader {
    /// Returns SQLite's first complaint about the file, without a comparison of tables and indexes.
    ///
    /// # Errors
    /// Those of a query.
    pub fn quick_verdict(&self) -> Result<Option<String>, Error> {
        let verdict: String =
            self.read(|transaction| transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)))?;
        Ok(Some(verdict).filter(|verdict| verdict != "ok"))
    }

    /// Returns the names of the tables.
    ///
    /// # Errors
    /// Those of a query.
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        self.read(|transaction| transaction.prepare(sql)?.query_map([], |row| row.get(0))?.collect())
    }

    /// Returns SQLite's first verdict on a table and its indexes, or none if the check takes longer than
    /// `within`.
    ///
    /// # Errors
    /// Those of a query.
    pub fn verdict_on(&self, table: &str, within: Duration) -> Result<Option<String>, Error> {
        self.read(|transaction| verdict_on(transaction, table, within))
    }
}

fn verdict_on(transaction: &Transaction<'_>, table: &str, within: Duration) -> rusqlite::Result<Option<String>> {
    let interrupt = transaction.get_interrupt_handle();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(within) == Err(RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let sql = format!("PRAGMA integrity_check(\"{table}\")");
        let verdict = transaction.query_row(&sql, [], |row| row.get(0));
        drop(done);
        match verdict {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(None),
            verdict => verdict.map(Some),
        }
    })
}
