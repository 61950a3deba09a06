-- The job that an archive of checkpoints is charged to; null for folders, which are looked up by their names.
ALTER TABLE storage ADD COLUMN archived_by INTEGER;
CREATE INDEX storage_archives ON storage (archived_by, folder) WHERE archived_by IS NOT NULL;
