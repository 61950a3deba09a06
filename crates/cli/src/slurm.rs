//! `slurm`: makes the configuration of a Slurm for machines that have none. Changes nothing on them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gangline_base::{Bytes, CheckpointPolicy, with_causes};
use gangline_execution::launcher::slurm::advice::{Advice, Weight, advise};
use gangline_execution::launcher::slurm::setup::{self, Facts, Plan, SetupError, SetupOptions};

use crate::failure::Failure;
use crate::output;

/// Maximum size of a file with facts.
const FACTS_BYTES_MAX: u64 = 64 << 20;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum SlurmCommand {
    /// Make a Slurm for machines that have none: configuration, munge's key, and scripts that install and check it
    Init(InitArgs),
    /// Say what the settings of this machine's Slurm mean for gangs; exit code 1 if one is a problem
    Check(CheckArgs),
    /// Print what machines are, for `init --facts`: this one, or those of --nodes
    Facts(FactsArgs),
}

/// How machines are reached.
#[derive(Args)]
pub(crate) struct Reach {
    /// The command that runs another on a machine: it gets the machine and a command line
    #[arg(long, value_name = "COMMAND", default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10")]
    ssh: String,
}

/// Which machines.
#[derive(Args)]
pub(crate) struct FactsArgs {
    /// The machines, as ssh reaches them: gpu1,gpu2 or gpu[1-4] or root@10.0.0.5 [default: this one]
    #[arg(long, value_name = "MACHINES")]
    nodes: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// Which partition.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The partition whose settings are looked at [default: Slurm's default partition]
    #[arg(long)]
    partition: Option<String>,
}

/// What kind of cluster.
#[derive(Args)]
pub(crate) struct InitArgs {
    /// The machines, as ssh reaches them: gpu1,gpu2 or gpu[1-4] or root@10.0.0.5
    #[arg(long, value_name = "MACHINES", required_unless_present = "facts")]
    nodes: Option<String>,
    /// Ask no machine: take what `gangline slurm facts` printed on each of them; - is standard input
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    /// Where slurmctld runs; it may be none of the nodes [default: the first node]
    #[arg(long, value_name = "MACHINE")]
    controller: Option<String>,
    /// The folder for the files
    #[arg(long, value_name = "DIR", default_value = "slurm")]
    out: PathBuf,
    /// The cluster's name
    #[arg(long, value_name = "NAME", default_value = "gangline")]
    cluster: String,
    /// Nodes without GPUs are meant: their slots are CPUs
    #[arg(long)]
    without_gpus: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(crate) fn run(command: &SlurmCommand, is_json: bool) -> Result<ExitCode, Failure> {
    match command {
        SlurmCommand::Init(args) => init(args, is_json)?,
        SlurmCommand::Check(args) => return check(args, is_json),
        SlurmCommand::Facts(args) => {
            let own = || Ok(vec![rustix::system::uname().nodename().to_string_lossy().into_owned()]);
            let machines = args.nodes.as_deref().map_or_else(own, setup::machines).map_err(|error| failed(&error))?;
            output::print(&setup::ask(&machines, &args.reach.ssh).map_err(|error| failed(&error))?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs, is_json: bool) -> Result<ExitCode, Failure> {
    let asked = advise(std::env::vars_os().collect(), args.partition.as_deref(), CheckpointPolicy::GRACE_DEFAULT);
    let (partition, advice) = asked.map_err(|error| {
        let hint = "gangline slurm check asks scontrol: it is for a machine of a Slurm cluster";
        Failure::coded("G0509", with_causes(&error), hint)
    })?;
    if is_json {
        output::json(
            &serde_json::json!({ "partition": partition, "settings": advice.iter().map(json_of).collect::<Vec<_>>() }),
        )?;
    } else {
        output::say(&format!("Slurm's settings for gangs in partition {partition}:"))?;
        let row = |advice: &Advice| {
            vec![weight(advice.weight).to_owned(), format!("{}={}", advice.setting, advice.value), advice.text.clone()]
        };
        output::print(&output::table(&["", "SETTING", "WHAT IT MEANS"], advice.iter().map(row).collect()))?;
    }
    let has_problem = advice.iter().any(|advice| advice.weight == Weight::Problem);
    Ok(if has_problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn weight(weight: Weight) -> &'static str {
    match weight {
        Weight::Note => "note",
        Weight::Warning => "warning",
        Weight::Problem => "problem",
    }
}

fn json_of(advice: &Advice) -> serde_json::Value {
    serde_json::json!({
        "setting": advice.setting, "value": advice.value, "weight": weight(advice.weight), "text": advice.text,
    })
}

fn init(args: &InitArgs, is_json: bool) -> Result<(), Failure> {
    let nodes = args.nodes.as_deref().map(setup::machines).transpose().map_err(|error| failed(&error))?;
    let text = match (&args.facts, &nodes) {
        (Some(path), _) => read(path)?,
        (None, Some(nodes)) => {
            let mut machines = nodes.clone();
            machines.extend(args.controller.iter().filter(|name| !nodes.contains(name)).cloned());
            setup::ask(&machines, &args.reach.ssh).map_err(|error| failed(&error))?
        }
        (None, None) => return Err(Failure::local("no machines are named", "name them with --nodes")),
    };
    let facts = setup::read(&text).map_err(|error| failed(&error))?;
    let options = SetupOptions {
        cluster: args.cluster.clone(),
        controller: args.controller.clone(),
        nodes,
        without_gpus: args.without_gpus,
        reach: args.reach.ssh.clone(),
    };
    let plan = setup::plan(&facts, &options).map_err(|error| failed(&error))?;
    setup::write(&plan, &args.out).map_err(|error| failed(&error))?;
    for warning in &plan.warnings {
        output::tell(&format!("warning: {warning}"));
    }
    if is_json { output::json(&as_json(&plan, &args.out)) } else { output::print(&shown(&facts, &plan, &args.out)) }
}

fn read(path: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::local(format!("read {}: {error}", path.display()), "");
    let mut text = String::new();
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    source.take(FACTS_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn as_json(plan: &Plan, out: &Path) -> serde_json::Value {
    let files: Vec<String> = plan.files.iter().map(|(name, _)| out.join(name).display().to_string()).collect();
    serde_json::json!({
        "controller": plan.controller, "nodes": plan.nodes, "warnings": plan.warnings, "files": files,
    })
}

fn shown(facts: &[Facts], plan: &Plan, out: &Path) -> String {
    let rows = facts.iter().map(|facts| {
        let is_controller = facts.host_name == plan.controller;
        let role = match (is_controller, plan.nodes.contains(&facts.host_name)) {
            (true, true) => "controller, node",
            (true, false) => "controller",
            (false, true) => "node",
            (false, false) => "",
        };
        vec![
            facts.host_name.clone(),
            facts.address().to_owned(),
            role.to_owned(),
            facts.system.split(' ').next().unwrap_or_default().to_owned(),
            facts.cpus.to_string(),
            Bytes(facts.memory.0).to_string(),
            gpus(facts),
        ]
    });
    let table = output::table(&["NODE", "ADDRESS", "ROLE", "SYSTEM", ">CPUS", ">MEMORY", "GPUS"], rows.collect());
    let out = out.display();
    format!("{table}\nnothing is changed yet; read the files in {out}, then\n  sh {out}/everywhere\n  sh {out}/check\n")
}

fn gpus(facts: &Facts) -> String {
    let Some(first) = facts.gpus.first() else { return "none".to_owned() };
    let alike = facts.gpus.iter().filter(|gpu| gpu.product == first.product).count();
    let more = if alike == facts.gpus.len() { "" } else { " and others" };
    format!("{alike} x {}{more}", first.product)
}

fn failed(error: &SetupError) -> Failure {
    Failure::local(with_causes(error), error.hint())
}
