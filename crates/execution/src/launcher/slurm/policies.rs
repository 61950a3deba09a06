//! How long jobs may run by the limits that administrators keep in slurmdbd, for accounts and qualities of service
//! (sacctmgr(1): MaxWall). A job that asks for more waits for ever.
//!
//! Slurm takes the first of these that is set: the partition's QOS, the job's QOS, the association of the user with the account,
//! which inherits from the accounts above it (<https://slurm.schedmd.com/resource_limits.html>).

use std::time::Duration;

use super::command::Programs;
use super::limits::{Longest, duration};
use super::script::JobOptions;
use super::settings::setting;
use crate::launcher::LaunchError;

/// The QOS of a job for which nobody named one.
const DEFAULT_QOS: &str = "normal";

/// Returns the longest that a job of these options may run by such limits, if Slurm enforces any.
///
/// # Errors
/// If Slurm or slurmdbd doesn't answer, or not as expected.
pub(super) fn longest(
    programs: &Programs,
    options: &JobOptions,
    partition: &str,
    partition_qos: Option<&str>,
) -> Result<Option<Longest>, LaunchError> {
    let ask = |program: &'static str, arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        programs.run(program, &arguments).map(|output| String::from_utf8_lossy(&output).into_owned())
    };
    let config = ask("scontrol", &["show", "config"])?;
    let enforced = setting(&config, "AccountingStorageEnforce").unwrap_or_default();
    if !enforced.split(',').any(|kind| ["limits", "safe", "all"].contains(&kind)) {
        return Ok(None);
    }
    let cluster = setting(&config, "ClusterName").unwrap_or_default();
    let user = ask("id", &["-un"])?;
    let (user, table) = (user.trim(), ["--noheader", "--parsable2", "show"]);
    let table = |words: &[&str]| ask("sacctmgr", &[&table[..], words].concat());
    let account = match &options.account {
        Some(account) => account.clone(),
        None => table(&["user", user, "format=DefaultAccount"])?.trim().to_owned(),
    };
    let wanted = [format!("user={user}"), format!("account={account}"), format!("cluster={cluster}")];
    let words = ["association", "where", &wanted[0], &wanted[1], &wanted[2], "format=Partition,MaxWall,DefaultQOS"];
    let association = Association::of(&table(&words)?, partition);
    let qos = options.qos.clone().or(association.default_qos).unwrap_or_else(|| DEFAULT_QOS.to_owned());
    for qos in partition_qos.into_iter().chain([qos.as_str()]) {
        let wall = table(&["qos", "where", &format!("name={qos}"), "format=MaxWall"])?;
        if let Some(time) = duration(wall.trim()) {
            return Ok(Some(Longest { time, why: format!("MaxWall of Slurm's QOS {qos}"), is_below_default: true }));
        }
    }
    let why = format!("MaxWall of Slurm's account {account}");
    Ok(association.max_wall.map(|time| Longest { time, why, is_below_default: true }))
}

/// What counts of a user's associations with an account.
#[derive(Debug, Default, PartialEq, Eq)]
struct Association {
    max_wall: Option<Duration>,
    default_qos: Option<String>,
}

impl Association {
    /// Reads rows of partition, limit and QOS. One for the job's partition counts before the one for all.
    fn of(text: &str, partition: &str) -> Association {
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
        let row = |of: &str| rows.iter().find(|row| row.first() == Some(&of));
        let Some(row) = row(partition).or_else(|| row("")) else { return Association::default() };
        let field = |place: usize| row.get(place).copied().filter(|field| !field.is_empty());
        Association { max_wall: field(1).and_then(duration), default_qos: field(2).map(str::to_owned) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_for_the_partition_counts_before_the_one_for_all() {
        let rows = "|1-00:00:00|normal\ngpu|02:00:00|\n";
        let of = |partition: &str| Association::of(rows, partition);
        let two_hours = Some(Duration::from_secs(7_200));
        assert_eq!(of("gpu"), Association { max_wall: two_hours, default_qos: None });
        let day = Association { max_wall: Some(Duration::from_secs(86_400)), default_qos: Some("normal".to_owned()) };
        assert_eq!((of("main"), Association::of("", "main")), (day, Association::default()));
    }
}
