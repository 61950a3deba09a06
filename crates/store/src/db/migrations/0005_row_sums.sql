-- Checksums of read-model rows (db/row.rs). None in rows that an earlier release wrote.
ALTER TABLE jobs   ADD COLUMN sum BLOB;
ALTER TABLE sweeps ADD COLUMN sum BLOB;
ALTER TABLE ledger ADD COLUMN sum BLOB;
