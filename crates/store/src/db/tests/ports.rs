//! SQLite keeps the promises of the ports.

use super::*;
use crate::db::Reader;
use crate::ports::conformance::{Opened, Subject, check};

struct Sqlite(TempDir);

impl Subject for Sqlite {
    type Journal = Journal;
    type Reader = Reader;

    fn open(&self) -> Result<Opened<Journal, Reader>, Error> {
        let (journal, recovered) = Journal::open(self.0.path(), Options::default())?;
        let reader = journal.reader();
        let snapshot = recovered.snapshot.map(|snapshot| (snapshot.sequence, snapshot.body));
        Ok(Opened { journal, reader, snapshot, records: recovered.records })
    }
}

/// Proves for SQLite, by the promises that every store makes.
#[test]
fn sqlite_conforms_to_the_ports() {
    check(|| Sqlite(folder()));
}
