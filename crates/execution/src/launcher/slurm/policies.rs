//! Limits that administrators keep in slurmdbd, for accounts and qualities of service (sacctmgr(1)): how long jobs may run (MaxWall)
//! and how much they may hold ([`sizes`]). A job that asks for more waits for ever.
//!
//! Of the limits of time, Slurm takes the first that is set: the partition's QOS, the job's QOS (first if it has the flag OverPartQOS),
//! the association of the user with the account, which inherits from the accounts above it
//! (<https://slurm.schedmd.com/resource_limits.html>).

use std::time::Duration;

use super::command::Programs;
use super::limits::{Longest, duration};
use super::script::JobOptions;
use super::settings::setting;
use super::sizes::{self, Size, Source, amounts};
use crate::launcher::LaunchError;

/// The QOS of a job for which nobody named one.
const DEFAULT_QOS: &str = "normal";
/// The most accounts above a user that are looked at.
const ACCOUNTS_MAX: usize = 16;

/// What such limits allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies {
    /// The longest that a job may run.
    pub(super) longest: Option<Longest>,
    /// The most that it may hold.
    pub(super) sizes: Vec<Size>,
}

/// Returns what jobs of these options may take by such limits, if Slurm enforces any.
///
/// # Errors
/// If Slurm or slurmdbd doesn't answer, or not as expected.
pub(super) fn read(
    programs: &Programs,
    options: &JobOptions,
    partition: &str,
    partition_qos: Option<&str>,
) -> Result<Policies, LaunchError> {
    let ask = |program: &'static str, arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        programs.run(program, &arguments).map(|output| String::from_utf8_lossy(&output).into_owned())
    };
    let config = ask("scontrol", &["show", "config"])?;
    let enforced = setting(&config, "AccountingStorageEnforce").unwrap_or_default();
    if !enforced.split(',').any(|kind| ["limits", "safe", "all"].contains(&kind)) {
        return Ok(Policies::default());
    }
    let cluster = format!("cluster={}", setting(&config, "ClusterName").unwrap_or_default());
    let user = ask("id", &["-un"])?;
    let (user, table) = (user.trim(), ["--noheader", "--parsable2", "show"]);
    let table = |words: &[&str]| ask("sacctmgr", &[&table[..], words].concat());
    let account = match &options.account {
        Some(account) => account.clone(),
        None => table(&["user", user, "format=DefaultAccount"])?.trim().to_owned(),
    };
    let association = |user: &str, account: &str| {
        let wanted = [format!("user={user}"), format!("account={account}")];
        table(&["association", "where", &wanted[0], &wanted[1], &cluster, Association::FORMAT])
    };
    let of_user = Association::of(&association(user, &account)?, partition);
    let qos = options.qos.clone().or(of_user.default_qos.clone()).unwrap_or_else(|| DEFAULT_QOS.to_owned());
    let mut qualities = Vec::new();
    for name in partition_qos.into_iter().chain([qos.as_str()]) {
        let text = table(&["qos", "where", &format!("name={name}"), Quality::FORMAT])?;
        qualities.push(Quality::of(name, &text));
    }
    if qualities.last().is_some_and(|qos| qos.is_over_partitions) {
        qualities.reverse();
    }
    let mut accounts = Vec::new();
    let mut next = Some(account.clone());
    while let Some(name) = next.take().filter(|_| accounts.len() < ACCOUNTS_MAX) {
        let found = Association::of(&association("", &name)?, partition);
        next.clone_from(&found.parent);
        accounts.push((name, found));
    }
    Ok(Policies::of(&qualities, (user, &account, &of_user), &accounts))
}

impl Policies {
    fn of(
        qualities: &[Quality],
        (user, account, of_user): (&str, &str, &Association),
        accounts: &[(String, Association)],
    ) -> Policies {
        let longest = |time, why| Longest { time, why, is_below_default: true };
        let by_qos = qualities
            .iter()
            .find_map(|qos| qos.max_wall.map(|time| longest(time, format!("MaxWall of Slurm's QOS {}", qos.name))));
        let by_account = || of_user.max_wall.map(|time| longest(time, format!("MaxWall of Slurm's account {account}")));
        let mut sources: Vec<Source> = qualities.iter().flat_map(Quality::sources).collect();
        let mut add = |name, of, tres: &str| {
            sources.push(Source { name, of, amounts: amounts(tres), is_of_qos: false });
        };
        add("MaxTRES", format!("account {account}"), &of_user.max_tres);
        add("GrpTRES", format!("user {user} in account {account}"), &of_user.grp_tres);
        for (name, account) in accounts {
            add("GrpTRES", format!("account {name}"), &account.grp_tres);
        }
        Policies { longest: by_qos.or_else(by_account), sizes: sizes::counting(&sources) }
    }
}

/// Limits of a quality of service.
#[derive(Debug, Default, PartialEq, Eq)]
struct Quality {
    name: String,
    max_wall: Option<Duration>,
    /// Lists of amounts, by the limit's name.
    tres: Vec<(&'static str, String)>,
    /// Whether its limits count before those of the partition's QOS.
    is_over_partitions: bool,
}

impl Quality {
    const FORMAT: &str = "format=MaxWall,MaxTRES,GrpTRES,MaxTRESPU,MaxTRESPA,Flags";

    fn of(name: &str, text: &str) -> Quality {
        let fields: Vec<&str> = text.trim_end().split('|').collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        let limits = ["MaxTRES", "GrpTRES", "MaxTRESPU", "MaxTRESPA"];
        Quality {
            name: name.to_owned(),
            max_wall: duration(field(0)),
            tres: limits.into_iter().zip(1..).map(|(limit, place)| (limit, field(place).to_owned())).collect(),
            is_over_partitions: field(5).split(',').any(|flag| flag == "OverPartQOS"),
        }
    }

    fn sources(&self) -> impl Iterator<Item = Source> {
        self.tres.iter().map(|(limit, tres)| Source {
            name: limit,
            of: format!("QOS {}", self.name),
            amounts: amounts(tres),
            is_of_qos: true,
        })
    }
}

/// What counts of a user's association with an account, or of an account's own.
#[derive(Debug, Default, PartialEq, Eq)]
struct Association {
    max_wall: Option<Duration>,
    default_qos: Option<String>,
    max_tres: String,
    grp_tres: String,
    /// The account above it.
    parent: Option<String>,
}

impl Association {
    const FORMAT: &str = "format=Partition,MaxWall,DefaultQOS,MaxTRES,GrpTRES,ParentName";

    /// Reads rows of this format. One for the job's partition counts before the one for all.
    fn of(text: &str, partition: &str) -> Association {
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').collect()).collect();
        let row = |of: &str| rows.iter().find(|row| row.first() == Some(&of));
        let Some(row) = row(partition).or_else(|| row("")) else { return Association::default() };
        let field = |place: usize| row.get(place).copied().filter(|field| !field.is_empty());
        let text = |place: usize| field(place).map(str::to_owned);
        Association {
            max_wall: field(1).and_then(duration),
            default_qos: text(2),
            max_tres: text(3).unwrap_or_default(),
            grp_tres: text(4).unwrap_or_default(),
            parent: text(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::Limited;

    #[test]
    fn a_row_for_the_partition_counts_before_the_one_for_all() {
        let rows = "|1-00:00:00|normal|gres/gpu=5||dept\ngpu|02:00:00||||\n";
        let of = |partition: &str| Association::of(rows, partition);
        let two_hours = Some(Duration::from_secs(7_200));
        assert_eq!(of("gpu"), Association { max_wall: two_hours, ..Association::default() });
        let day = Association {
            max_wall: Some(Duration::from_secs(86_400)),
            default_qos: Some("normal".to_owned()),
            max_tres: "gres/gpu=5".to_owned(),
            grp_tres: String::new(),
            parent: Some("dept".to_owned()),
        };
        assert_eq!((of("main"), Association::of("", "main")), (day, Association::default()));
    }

    #[test]
    fn the_first_limit_of_time_counts_and_every_limit_of_size_with_where_it_is_from() {
        let qos = Quality::of("normal", "|gres/gpu=8||||DenyOnLimit,OverPartQOS\n");
        assert!(qos.is_over_partitions);
        let user = Association::of("|1:00:00||gres/gpu=4||\n", "main");
        let accounts = [
            ("lab".to_owned(), Association::of("||||gres/gpu=16|dept\n", "main")),
            ("dept".to_owned(), Association::of("||||node=3|root\n", "main")),
        ];
        let policies = Policies::of(&[qos], ("ada", "lab", &user), &accounts);
        assert_eq!(policies.longest.map(|longest| longest.why).as_deref(), Some("MaxWall of Slurm's account lab"));
        let sizes: Vec<(bool, Limited, u64, &str)> = policies
            .sizes
            .iter()
            .map(|size| (size.is_per_job, size.limit.of.clone(), size.limit.max, size.limit.why.as_str()))
            .collect();
        let expected = [
            (true, Limited::Gpus(None), 8, "MaxTRES of Slurm's QOS normal"),
            (false, Limited::Gpus(None), 16, "GrpTRES of Slurm's account lab"),
            (false, Limited::Nodes, 3, "GrpTRES of Slurm's account dept"),
        ];
        assert_eq!(sizes, expected);
    }
}
