//! Bundles of logs: one text file for each category, named after it (`user_code.logs`).
//!
//! A line `%%% NAME SOURCE` opens a log: its name, and where the form of its messages is from. Every line up to the next
//! such line belongs to the log, byte for byte.

/// Prefix of the line that opens a log.
const OPENING: &str = "%%% ";

/// Returns the logs of a bundle: name, source and text of each.
pub(crate) fn logs(bundle: &str) -> Vec<(&str, &str, &str)> {
    let openings = bundle.match_indices(OPENING).map(|(at, _)| at);
    let openings = openings.filter(|at| *at == 0 || bundle[..*at].ends_with('\n'));
    let bounds: Vec<usize> = openings.chain([bundle.len()]).collect();
    let log = |bounds: &[usize]| {
        let log = &bundle[bounds[0] + OPENING.len()..bounds[1]];
        let (opening, text) = log.split_once('\n').unwrap_or((log, ""));
        let (name, source) = opening.split_once(' ').unwrap_or((opening, ""));
        (name, source, text)
    };
    bounds.windows(2).map(log).collect()
}
