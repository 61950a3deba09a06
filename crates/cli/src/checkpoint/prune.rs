//! `checkpoint prune`: removes checkpoints from an archive or a folder. Needs no control plane.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;

use clap::Args;
use gangline_base::{Step, with_causes};
use gangline_storage::archive::Pruned;
use gangline_storage::{Branch, Error, PrunePolicy, Rule};

use crate::checkpoint::archive::{KeyFile, Reach, is_archive, reach, refused, tell_requests, tell_unfenced};
use crate::checkpoint::{failed, open};
use crate::failure::Failure;
use crate::{Global, amount, output};

/// What of an archive, or of a folder of checkpoints, stays. What any of the options that keep names is kept, the newest save always, and
/// what belongs to abandoned branches unless they are named.
#[derive(Args, Debug)]
pub(crate) struct PruneArgs {
    /// The archive, or the folder of checkpoints
    #[arg(value_name = "ARCHIVE")]
    archive: String,
    /// Keep so many of the newest
    #[arg(long, value_name = "N")]
    keep_last: Option<u32>,
    /// Keep the first in each stretch of so many steps
    #[arg(long, value_name = "STEPS", value_parser = amount::positive::<NonZeroU64>)]
    keep_every_steps: Option<NonZeroU64>,
    /// Keep the first in each stretch of so many hours
    #[arg(long, value_name = "HOURS", value_parser = amount::positive::<NonZeroU32>)]
    keep_every_hours: Option<NonZeroU32>,
    /// Keep so many with the lowest value of a number in their metadata, such as loss=3
    #[arg(long, value_name = "METRIC=N", value_parser = best)]
    keep_lowest: Vec<(String, u32)>,
    /// Keep so many with the highest value of a number in their metadata
    #[arg(long, value_name = "METRIC=N", value_parser = best)]
    keep_highest: Vec<(String, u32)>,
    /// Keep this step
    #[arg(long, value_name = "STEP")]
    keep: Vec<u64>,
    /// Remove what is above this step on the current branch: training is to go on from there (a folder's only)
    #[arg(long, value_name = "STEP")]
    above: Option<u64>,
    /// Remove what belongs to abandoned branches (checkpoint branches lists them)
    #[arg(long)]
    abandoned: bool,
    /// Remove what belongs to this abandoned branch (a folder's only)
    #[arg(long, value_name = "NAME", conflicts_with = "abandoned")]
    branch: Option<Branch>,
    /// Of the first in each stretch of so many steps that would go, keep some tensors, as a milestone
    #[arg(long, value_name = "STEPS", value_parser = amount::positive::<NonZeroU64>)]
    milestones_every: Option<NonZeroU64>,
    /// The tensors that a milestone keeps; * stands for any part of a name
    #[arg(long, value_name = "NAME", default_value = "model.*", requires = "milestones_every")]
    milestone_keep: Vec<String>,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    key: KeyFile,
}

fn best(text: &str) -> Result<(String, u32), String> {
    let (metric, count) = text.split_once('=').ok_or("write METRIC=N, such as loss=3")?;
    Ok((metric.to_owned(), count.parse().map_err(|_| "write METRIC=N with a whole number N")?))
}

impl PruneArgs {
    fn rules(&self) -> Vec<Rule> {
        let best = |is_more_better: bool| {
            move |(metric, count): &(String, u32)| Rule::Best { metric: metric.clone(), count: *count, is_more_better }
        };
        let mut rules: Vec<Rule> = Vec::new();
        rules.extend(self.keep_last.map(Rule::Last));
        rules.extend(self.keep_every_steps.map(Rule::EverySteps));
        rules.extend(self.keep_every_hours.map(Rule::EveryHours));
        rules.extend(self.keep_lowest.iter().map(best(false)));
        rules.extend(self.keep_highest.iter().map(best(true)));
        if !self.keep.is_empty() {
            rules.push(Rule::Pinned(self.keep.iter().copied().map(Step).collect()));
        }
        let milestones = |every| Rule::Milestones { every, keep: self.milestone_keep.clone() };
        rules.extend(self.milestones_every.map(milestones));
        rules
    }
}

pub(crate) fn prune(global: &Global, args: &PruneArgs) -> Result<(), Failure> {
    let rules = args.rules();
    let removes =
        [args.above.is_some(), args.abandoned, args.branch.is_some()].iter().filter(|is_asked| **is_asked).count();
    if rules.is_empty() && removes == 0 {
        return Err(Failure::local(
            "nothing says what to keep",
            "name it, as in --keep-last 3 --keep-every-steps 10000; or what to remove: --above STEP, --abandoned",
        ));
    }
    if !is_archive(&args.archive) {
        return prune_folder(global, args);
    }
    if args.above.is_some() || args.branch.is_some() {
        return Err(Failure::local(
            format!("{} is an archive, of which --above and --branch remove nothing", args.archive),
            "name what is to stay, as in --keep-last 3; --abandoned removes what belongs to abandoned branches",
        ));
    }
    let archive = reach(&args.archive, &Reach::from(&args.key))?;
    let mut rules = rules;
    // Without any rule about the current branch, all of it stays.
    if rules.is_empty() {
        rules.push(Rule::Last(u32::MAX));
    }
    if !args.abandoned {
        rules.push(Rule::Abandoned);
    }
    let pruned = archive.prune(&rules, output::now(), args.dry_run).map_err(|error| refused(&error))?;
    tell_unfenced(&archive);
    tell_requests(&archive);
    if global.json {
        return output::json(&pruned);
    }
    output::print(&decided(&pruned, args.dry_run))
}

/// Prunes a folder of checkpoints; only one policy at a time is possible there.
fn prune_folder(global: &Global, args: &PruneArgs) -> Result<(), Failure> {
    let store = open(Path::new(&args.archive))?;
    let steps = store.list().map_err(failed)?;
    if steps.is_empty() {
        let text = format!("{} is no archive and holds no complete checkpoint", args.archive);
        return Err(Failure::local(text, "name the folder that holds step-..., or the archive's own"));
    }
    let pruned = store.prune(&folder_policy(args)?, args.dry_run).map_err(|error| match error {
        Error::NoSuchBranch { .. } => Failure::local(with_causes(&error), "gangline checkpoint branches lists them"),
        Error::LastGood { .. } => Failure::local(
            format!("failed to {}", with_causes(&error)),
            "gangline checkpoint verify shows which are good",
        ),
        error => failed(error),
    })?;
    if global.json {
        return output::json(&pruned);
    }
    let verdict = if args.dry_run { "would be removed" } else { "removed" };
    let removed = pruned.removed.iter().map(|step| (*step, verdict));
    let rows: BTreeMap<Step, &str> = removed.chain(pruned.kept.iter().map(|step| (*step, "kept"))).collect();
    let rows = rows.into_iter().map(|(step, verdict)| vec![step.to_string(), verdict.to_owned()]).collect();
    output::print(&output::table(&[">STEP", ""], rows))
}

fn folder_policy(args: &PruneArgs) -> Result<PrunePolicy, Failure> {
    let mut rules = args.rules();
    let policies = [
        args.above.map(|step| PrunePolicy::Above(Step(step))),
        args.abandoned.then_some(PrunePolicy::Abandoned(None)),
        args.branch.map(|branch| PrunePolicy::Abandoned(Some(branch))),
    ];
    let mut policies = policies.into_iter().flatten();
    let refused =
        |text: &str, hint| Err(Failure::local(format!("{} is a folder of checkpoints{text}", args.archive), hint));
    match (policies.next(), policies.next()) {
        (Some(_), Some(_)) => return refused(", pruned in one way at a time", "leave --above or --abandoned out"),
        (Some(_), None) if !rules.is_empty() => {
            return refused(", pruned in one way at a time", "run what removes by itself, then what keeps");
        }
        (Some(policy), None) => return Ok(policy),
        (None, _) => {}
    }
    if rules.iter().any(|rule| matches!(rule, Rule::Milestones { .. })) {
        return refused(", which holds no milestones", "push them to an archive to keep some of their tensors");
    }
    let last = args.keep_last.and_then(|keep| NonZeroUsize::new(keep as usize));
    let Some(last) = last else {
        return refused("; say how many of the newest good ones stay", "add --keep-last N, with N from 1 on");
    };
    rules.retain(|rule| !matches!(rule, Rule::Last(_)));
    Ok(PrunePolicy::Keep { last, rules })
}

fn decided(pruned: &Pruned, is_dry_run: bool) -> String {
    let verdict = if is_dry_run { "would be removed" } else { "removed" };
    let removed = pruned.removed.iter().map(|(step, bytes)| (*step, format!("{verdict} ({bytes} of tensors)")));
    let kept = pruned.kept.iter().map(|(step, reasons)| {
        let reasons: Vec<String> = reasons.iter().map(|reason| format!("{reason:?}").to_lowercase()).collect();
        (*step, format!("kept: {}", reasons.join(", ")))
    });
    let thinned = pruned.milestones.iter().map(|(step, bytes)| {
        let act = if is_dry_run { "would become" } else { "became" };
        (*step, format!("{act} a milestone ({bytes} of tensors, before coding)"))
    });
    let rows: BTreeMap<Step, String> = removed.chain(kept).chain(thinned).collect();
    let rows = rows.into_iter().map(|(step, verdict)| vec![step.to_string(), verdict]).collect();
    let Pruned { packs_removed, packs_compacted, rewritten, freed, stored, .. } = pruned;
    let act = if is_dry_run { "would free" } else { "freed" };
    let moved = match (packs_compacted, is_dry_run) {
        (0, _) => String::new(),
        (packs, true) => format!(", where {rewritten} of {packs} would be written anew"),
        (packs, false) => format!(", where {rewritten} of {packs} were written anew"),
    };
    let table = output::table(&[">STEP", ""], rows);
    let milestones = match (pruned.milestones.len(), is_dry_run) {
        (0, _) => String::new(),
        (_, true) => "; the milestones will take some of that".to_owned(),
        (_, false) => format!("; the milestones took {}", pruned.milestones_put),
    };
    format!("{table}{act} {freed} in {packs_removed} packs{moved}{milestones}; {stored} stay (measured)\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_and_a_count_are_read() {
        assert_eq!(best("loss=3"), Ok(("loss".to_owned(), 3)));
        assert!(best("loss").is_err() && best("loss=x").is_err());
    }
}
