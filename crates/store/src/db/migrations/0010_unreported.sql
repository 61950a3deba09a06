-- Time of ranks that report nothing. Ledger rows of earlier releases have booked it as compute, and keep it there.
ALTER TABLE ledger ADD COLUMN unreported INTEGER NOT NULL DEFAULT 0;
