-- Where an artifact's contents are: the address of a place for objects; NULL: in the data folder.
ALTER TABLE artifact ADD COLUMN place TEXT;

-- The name of this database among others that keep contents at the same place.
CREATE TABLE installation (id TEXT NOT NULL) STRICT;
INSERT INTO installation VALUES (lower(hex(randomblob(16))));
