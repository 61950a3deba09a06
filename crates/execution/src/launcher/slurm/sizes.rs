//! How much a job, or all jobs of an account, a user or a quality of service together, may hold (sacctmgr(1): MaxTRES, MaxTRESPU,
//! MaxTRESPA, GrpTRES). A gang that needs more than that by itself would wait for ever.
//!
//! A limit of a QOS counts in place of the same limit of another QOS, or an association, that comes after it; the limits of a user's
//! association and of all accounts above it count together (<https://slurm.schedmd.com/resource_limits.html>).

use std::collections::BTreeMap;

use super::gres::Gpus;
use crate::launcher::{GangLimit, Limited};

/// Amounts by resource, as in `node=4,gres/gpu:h100=32`.
pub(super) type Amounts = BTreeMap<String, u64>;

/// Reads a list of amounts; those without a number are passed over, such as `mem=500G`.
pub(super) fn amounts(tres: &str) -> Amounts {
    let entry = |entry: &str| {
        let (name, count) = entry.trim().split_once('=')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    tres.split(',').filter_map(entry).collect()
}

/// A limit, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// By job rather than by all jobs together.
    pub(super) is_per_job: bool,
    pub(super) limit: GangLimit,
}

/// The limits of one kind of one QOS, or one association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Its name: `MaxTRES` is for a job, others are for all jobs together.
    pub(super) name: &'static str,
    /// Whose it is: `QOS normal`.
    pub(super) of: String,
    pub(super) amounts: Amounts,
    pub(super) is_of_qos: bool,
}

/// Returns the limits that count, of those of QOS, in the order in which they count, and of associations.
pub(super) fn counting(sources: &[Source]) -> Vec<Size> {
    let mut sizes = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        for (resource, max) in &source.amounts {
            let is_hidden = sources[..at]
                .iter()
                .any(|before| before.is_of_qos && before.name == source.name && before.amounts.contains_key(resource));
            let Some(of) = limited(resource).filter(|_| !is_hidden) else { continue };
            let why = format!("{} of Slurm's {}", source.name, source.of);
            sizes.push(Size { is_per_job: source.name == "MaxTRES", limit: GangLimit { of, max: *max, why } });
        }
    }
    sizes
}

/// Returns what a resource is to a gang; none if gangs don't say how much of it they need.
fn limited(resource: &str) -> Option<Limited> {
    match resource {
        "node" => Some(Limited::Nodes),
        "cpu" => Some(Limited::Cpus),
        "gres/gpu" => Some(Limited::Gpus(None)),
        _ => {
            let slurm_type = resource.strip_prefix("gres/gpu:")?;
            Some(Limited::Gpus(Some(Gpus { slurm_type: Some(slurm_type.to_owned()), count: 1 }.kind())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &'static str, of: &str, tres: &str) -> Source {
        Source { name, of: of.to_owned(), amounts: amounts(tres), is_of_qos: of.starts_with("QOS") }
    }

    fn counted(sources: &[Source]) -> Vec<(Limited, u64, String)> {
        counting(sources).into_iter().map(|size| (size.limit.of, size.limit.max, size.limit.why)).collect()
    }

    #[test]
    fn a_qos_replaces_what_comes_after_it_and_limits_of_associations_count_together() {
        let sources = [
            source("GrpTRES", "QOS part", "gres/gpu=16"),
            source("MaxTRESPU", "QOS part", "gres/gpu=12"),
            source("MaxTRESPU", "QOS normal", "gres/gpu=2,node=5"),
            source("GrpTRES", "user ada", "gres/gpu=8,node=4"),
            source("GrpTRES", "account lab", "node=3,cpu=64,mem=500G,billing=9"),
            source("MaxTRES", "account lab", "gres/gpu=4"),
        ];
        let of = |of, max, why: &str| (of, max, why.to_owned());
        let expected = [
            of(Limited::Gpus(None), 16, "GrpTRES of Slurm's QOS part"),
            of(Limited::Gpus(None), 12, "MaxTRESPU of Slurm's QOS part"),
            of(Limited::Nodes, 5, "MaxTRESPU of Slurm's QOS normal"),
            of(Limited::Nodes, 4, "GrpTRES of Slurm's user ada"),
            of(Limited::Cpus, 64, "GrpTRES of Slurm's account lab"),
            of(Limited::Nodes, 3, "GrpTRES of Slurm's account lab"),
            of(Limited::Gpus(None), 4, "MaxTRES of Slurm's account lab"),
        ];
        assert_eq!(counted(&sources), expected);
    }

    #[test]
    fn a_type_of_gpu_is_the_kind_that_jobs_ask_for() {
        let typed = counted(&[source("MaxTRES", "QOS normal", "gres/gpu:nvidia_h100_80gb_hbm3=8")]);
        assert_eq!(typed[0].0, Limited::Gpus(Some("H100".to_owned())));
        assert_eq!(amounts(""), Amounts::new());
        assert_eq!(amounts("node=x,gres/gpu=2"), Amounts::from([("gres/gpu".to_owned(), 2)]));
    }
}
