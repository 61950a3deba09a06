-- Checksums of the other rows that answers are made of (db/row.rs). None in rows that an earlier release wrote.
-- A sample's has four bytes: there are many of them, and one more or less in a curve does little harm.
ALTER TABLE samples ADD COLUMN sum INTEGER;
ALTER TABLE answers ADD COLUMN sum BLOB;
