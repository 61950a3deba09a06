//! The limit of attempts in a job's document, and what is said of one that shows no progress.

use super::record::AttemptRecord;

/// The most attempts in a document; the ledger has all of them.
const ATTEMPTS_KEPT: usize = 50;
/// The most shares of attempts before the newest two in a document. So a gang of thousands of nodes keeps
/// only a few attempts, and its document, which is rewritten often, stays at a few megabytes.
const OLDER_SHARES_KEPT: usize = 8_192;
const NEWEST_ATTEMPTS: usize = 2;

/// Returns how many of the oldest attempts have to go to meet the document's limits.
pub(super) fn excess_attempts(attempts: &[AttemptRecord]) -> usize {
    let mut shares = 0;
    let fits = |(age, attempt): &(usize, &AttemptRecord)| {
        shares += if *age < NEWEST_ATTEMPTS { 0 } else { attempt.shares.len() };
        *age < ATTEMPTS_KEPT && shares <= OLDER_SHARES_KEPT
    };
    attempts.len() - attempts.iter().rev().enumerate().take_while(fits).count()
}

impl AttemptRecord {
    /// Describes the rank of a live attempt that is nearest to being given up as hung, if any shows no progress.
    pub fn silence(&self) -> Option<String> {
        let live = self.shares.iter().filter(|_| self.ended_at.is_none());
        let silent = live.filter_map(|share| share.report.as_ref()?.silence);
        let nearest = silent.min_by_key(|silence| silence.limit_ms.saturating_sub(silence.silent_ms))?;
        let seconds = |millis: u64| millis / 1_000;
        let (silent, limit) = (seconds(nearest.silent_ms), seconds(nearest.limit_ms));
        Some(format!(
            "no progress of rank {} for {silent} s (measured); given up as hung after {limit} s",
            nearest.rank
        ))
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::Timestamp;

    use super::super::record::ShareRecord;
    use super::*;

    #[test]
    fn a_document_has_fewer_attempts_of_a_large_gang_and_always_the_newest_two() {
        let share = ShareRecord {
            node: "n1".to_owned(),
            devices: Vec::new(),
            report: None,
            last: None,
            samples_stored: 0,
            price: None,
        };
        let attempt = |nodes: usize| AttemptRecord {
            number: 1,
            placed_at: Timestamp::EPOCH,
            allocation: None,
            ended_at: None,
            placed_because: String::new(),
            ended_because: None,
            fault: None,
            shares: vec![share.clone(); nodes],
            stragglers: Vec::new(),
        };
        let kept = |sizes: &[usize]| {
            let attempts: Vec<AttemptRecord> = sizes.iter().map(|nodes| attempt(*nodes)).collect();
            attempts.len() - excess_attempts(&attempts)
        };
        assert_eq!((kept(&[]), kept(&[1; 50]), kept(&[1; 51]), kept(&[170; 60])), (0, 50, 50, 50));
        assert_eq!((kept(&[4_096; 50]), kept(&[16_384; 3]), kept(&[8_192; 3])), (4, 2, 3));
        assert_eq!(kept(&[1, 1, 9_000, 1, 1]), 2, "none is left out between two that are kept");
    }
}
