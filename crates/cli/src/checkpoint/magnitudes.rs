//! `checkpoint diff --magnitudes`: measures by how much tensors have changed.

use std::collections::BTreeMap;

use gangline_storage::{Compared, Magnitude, Snapshot, Verdict};
use serde::Serialize;

use crate::checkpoint::failed;
use crate::failure::Failure;

/// Headings of the columns in a table.
pub(crate) const HEADINGS: [&str; 5] = [">CHANGED", ">MAX ABS", ">RMS", ">REL L2", "NAN AND INF"];

/// Magnitudes of change, by tensor.
pub(crate) type Magnitudes = BTreeMap<String, Magnitude>;

/// The magnitude of a tensor's change as it is printed in JSON.
#[derive(Serialize)]
pub(crate) struct Row {
    elements: u64,
    changed: u64,
    max_abs: f64,
    rms: Option<f64>,
    relative_l2: Option<f64>,
    nan_before: u64,
    nan_after: u64,
    infinite_before: u64,
    infinite_after: u64,
}

impl Row {
    pub(crate) fn of(magnitude: &Magnitude) -> Row {
        let Magnitude { elements, changed, max_abs, nan_before, nan_after, .. } = *magnitude;
        let Magnitude { infinite_before, infinite_after, .. } = *magnitude;
        let (rms, relative_l2) = (magnitude.rms(), magnitude.relative_l2());
        Row { elements, changed, max_abs, rms, relative_l2, nan_before, nan_after, infinite_before, infinite_after }
    }
}

/// Measures the tensors that have changed, or may have.
pub(crate) fn measure(compared: &[Compared<'_>], before: &Snapshot, after: &Snapshot) -> Result<Magnitudes, Failure> {
    let may_differ = |one: &&Compared<'_>| matches!(one.verdict, Verdict::Changed | Verdict::Recut);
    let names: Vec<&str> = compared.iter().filter(may_differ).map(|one| one.tensor().name.as_str()).collect();
    let measured = before.measure(after, &names).map_err(failed)?;
    let named = names.iter().zip(measured).filter_map(|(name, found)| Some(((*name).to_owned(), found?)));
    Ok(named.collect())
}

/// Formats the columns of a table's line: all its measured tensors together.
pub(crate) fn cells(magnitudes: &Magnitudes, group: &[&Compared<'_>]) -> [String; 5] {
    let measured = group.iter().filter_map(|one| magnitudes.get(&one.tensor().name));
    let Some(sum) = measured.copied().reduce(|sum, one| sum.and(&one)) else { return Default::default() };
    let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| format!("{number:.3e}"));
    let odd = [(sum.nan_before, sum.nan_after, "NaN"), (sum.infinite_before, sum.infinite_after, "inf")];
    let odd: Vec<String> = (odd.iter().filter(|(before, after, _)| before + after > 0))
        .map(|(before, after, what)| format!("{before} -> {after} {what}"))
        .collect();
    [
        format!("{} of {}", sum.changed, sum.elements),
        number(Some(sum.max_abs)),
        number(sum.rms()),
        number(sum.relative_l2()),
        odd.join(", "),
    ]
}
