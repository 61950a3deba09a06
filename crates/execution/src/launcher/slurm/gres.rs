//! Parses GPUs among Slurm's generic resources (gres.conf(5)): `gpu:h100:8(S:0-1)`, `gpu:2(IDX:0,3)`,
//! `gres/gpu:a100:4`.

use crate::inventory::short_kind;

/// The kind of GPUs without a type.
const UNTYPED: &str = "gpu";
/// Words of product names that don't distinguish GPUs.
const BRANDS: [&str; 5] = ["nvidia", "tesla", "geforce", "quadro", "amd"];

/// GPUs of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpus {
    /// Type in Slurm's spelling, for requests.
    pub(super) slurm_type: Option<String>,
    pub(super) count: u32,
}

impl Gpus {
    /// Returns the kind that jobs ask for: `h100` and `nvidia_h100_80gb_hbm3` are an `H100`.
    pub(super) fn kind(&self) -> String {
        let Some(slurm_type) = &self.slurm_type else { return UNTYPED.to_owned() };
        let words = slurm_type.split(['_', '-', ' ']).filter(|word| !word.is_empty());
        let telling = words.filter(|word| !BRANDS.contains(&word.to_lowercase().as_str()));
        short_kind(&telling.map(str::to_uppercase).collect::<Vec<_>>().join(" "))
    }

    /// Returns a request for this number of GPUs, for `--gres`.
    pub(super) fn request(slurm_type: Option<&str>, count: usize) -> String {
        match slurm_type {
            Some(slurm_type) => format!("gpu:{slurm_type}:{count}"),
            None => format!("gpu:{count}"),
        }
    }
}

/// Returns the GPUs in a list of resources, by type, in the list's order.
pub(super) fn read(list: &str) -> Vec<Gpus> {
    let mut found: Vec<Gpus> = Vec::new();
    for entry in split(list) {
        let Some((slurm_type, count)) = read_one(entry) else { continue };
        match found.iter_mut().find(|gpus| gpus.slurm_type.as_deref() == slurm_type) {
            Some(gpus) => gpus.count = gpus.count.saturating_add(count),
            None => found.push(Gpus { slurm_type: slurm_type.map(str::to_owned), count }),
        }
    }
    found
}

/// Returns the number of GPUs in a list, of any type.
pub(super) fn count(list: &str) -> u32 {
    read(list).iter().fold(0, |sum, gpus| sum.saturating_add(gpus.count))
}

/// Splits at commas outside parentheses.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    list.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

/// Returns an entry's type, if it has one, and count; none if it isn't about GPUs.
fn read_one(entry: &str) -> Option<(Option<&str>, u32)> {
    let entry = entry.split_once('(').map_or(entry, |(entry, _)| entry).trim();
    let entry = entry.strip_prefix("gres:").or(entry.strip_prefix("gres/")).unwrap_or(entry);
    let mut words = entry.split([':', '=']);
    if words.next() != Some("gpu") {
        return None;
    }
    match (words.next(), words.next()) {
        (None, _) => Some((None, 1)),
        (Some(word), None) => match word.parse() {
            Ok(count) => Some((None, count)),
            Err(_) => Some((Some(word), 1)),
        },
        (Some(slurm_type), Some(count)) => Some((Some(slurm_type), count.parse().ok()?)),
    }
}

/// Returns the first GPUs in a list of generic resources: their kind, if they have a type, and their number;
/// none if the list has no GPUs.
#[must_use]
pub fn gpus(list: &str) -> Option<(Option<String>, u32)> {
    let first = read(list).into_iter().next()?;
    Some((first.slurm_type.is_some().then(|| first.kind()), first.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_by_type() {
        let check = |list: &str, expected: &[(Option<&str>, u32)]| {
            let found = read(list);
            let found: Vec<_> = found.iter().map(|gpus| (gpus.slurm_type.as_deref(), gpus.count)).collect();
            assert_eq!(found, expected, "{list}");
        };
        check("gpu:h100:8(S:0-1)", &[(Some("h100"), 8)]);
        check("gpu:8", &[(None, 8)]);
        check("gpu", &[(None, 1)]);
        check("gres:gpu:h100:2", &[(Some("h100"), 2)]);
        check("gres/gpu:2,gres/gpu:a100=2", &[(None, 2), (Some("a100"), 2)]);
        check("gpu:h100:0(IDX:N/A)", &[(Some("h100"), 0)]);
        check("gpu:a100:4(IDX:0,2-3),gpu:v100:2(IDX:1),nvme:1", &[(Some("a100"), 4), (Some("v100"), 2)]);
        check("gpu:a100:4(S:0),gpu:a100:4(S:1)", &[(Some("a100"), 8)]);
        check("shard:16,mps:400,(null)", &[]);
        check("gpu:h100:many", &[]);
        assert_eq!(count("gpu:a100:4(IDX:0,2-4),gpu:v100:2(IDX:1)"), 6);
    }

    #[test]
    fn types_become_the_kinds_that_jobs_ask_for() {
        let kind = |list: &str| read(list).first().expect("a type").kind();
        assert_eq!(kind("gpu:h100:8"), "H100");
        assert_eq!(kind("gpu:nvidia_h100_80gb_hbm3:8"), "H100");
        assert_eq!(kind("gpu:a100-sxm4-80gb:8"), "A100");
        assert_eq!(kind("gpu:nvidia_geforce_rtx_4090:2"), "RTX4090");
        assert_eq!(kind("gpu:8"), "gpu");
    }
}
