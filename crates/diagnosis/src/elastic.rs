//! Parses torchrun's report of the rank that failed first: the block of lines under "Root Cause (first
//! observed failure)".

use crate::line::Cleaner;
use crate::text::Text;

/// The rule that matches the block's first line.
pub(crate) const RULE: &str = "torchrun_root_cause";

/// Maximum number of lines of the block.
const LINES_MAX: usize = 12;

/// The rank and node that the block names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RootCause {
    pub(crate) rank: Option<u32>,
    pub(crate) host: Option<String>,
}

/// Reads the block whose first line begins at `start`.
pub(crate) fn read(text: &Text<'_>, start: usize, cleaner: &Cleaner) -> RootCause {
    let mut cause = RootCause::default();
    for (_, raw) in text.lines_from(start).skip(1).take(LINES_MAX) {
        let line = cleaner.clean(raw).text;
        let Some((key, value)) = line.split_once(':') else { continue };
        match (key.trim(), value.trim()) {
            ("rank", value) => cause.rank = value.split([' ', '(']).next().and_then(|rank| rank.parse().ok()),
            ("host", host) => cause.host = Some(host.to_owned()),
            _ => {}
        }
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_and_the_host_are_read() {
        let text = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-02_03:04:05\n  host      : gpu-7\n  \
                    rank      : 17 (local_rank: 1)\n  exitcode  : -9 (pid: 14750)\n";
        let cause = read(&Text::whole(text.as_bytes()), 0, &Cleaner::new().unwrap());
        assert_eq!(cause, RootCause { rank: Some(17), host: Some("gpu-7".to_owned()) });
    }
}
