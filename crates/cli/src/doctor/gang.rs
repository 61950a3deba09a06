//! A rank of a gang that is checked: runs this node's own checks, then the network checks with the other
//! ranks. Rank 0 prints the results for people and then, between two marks, for the command that follows its
//! log. Problems that are found don't fail the job.

use std::process::ExitCode;
use std::time::Duration;

use gangline_base::with_causes;
use gangline_execution::health::network::{Member, NetworkReport, take_part};

use super::{DoctorArgs, check_here, host_name, show};
use crate::failure::Failure;
use crate::{Global, output};

/// Lines around the report.
pub(super) const REPORT_BEGINS: &str = "--- report ---";
pub(super) const REPORT_ENDS: &str = "--- end of report ---";
/// Maximum time for the gang to come together. Nodes' own checks take a minute or two, longer if one hangs.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) fn run(global: &Global, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let mut member = member(args)?;
    member.findings = check_here(global, args)?;
    let measured = take_part(&member);
    let report = measured.map_err(|error| Failure::local(format!("failed to {}", with_causes(&error)), ""))?;
    if let Some(report) = report {
        print(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &NetworkReport) -> Result<(), Failure> {
    output::print(&show::gang(report))?;
    output::say(REPORT_BEGINS)?;
    output::json(report)?;
    output::say(REPORT_ENDS)
}

/// Builds the network check's options from torchrun's variables.
fn member(args: &DoctorArgs) -> Result<Member, Failure> {
    let hint = "a rank is started by a job: gangline doctor --pool; or set torchrun's variables as it does";
    let variable = |name: &str| std::env::var(name).map_err(|_| Failure::local(format!("{name} is not set"), hint));
    let number = |name: &str| {
        let text = variable(name)?;
        text.parse::<u32>().map_err(|_| Failure::local(format!("{name} is \"{text}\", which is no number"), hint))
    };
    let port = number("MASTER_PORT")?;
    let port =
        u16::try_from(port).map_err(|_| Failure::local(format!("MASTER_PORT is {port}, which is no port"), hint))?;
    Ok(Member {
        rank: number("RANK")?,
        count: number("WORLD_SIZE")?,
        node: variable("GANGLINE_NODE").unwrap_or_else(|_| host_name()),
        master: (variable("MASTER_ADDR")?, port),
        run: variable("TORCHELASTIC_RUN_ID").unwrap_or_default(),
        findings: Vec::new(),
        chosen: args.nodes.clone(),
        bytes: args.size,
        patience: PATIENCE,
    })
}
