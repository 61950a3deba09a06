//! `gangline simulate`: reads a trace or a control plane's past, and a cluster; runs the simulator; prints
//! the results.

pub(crate) mod input;
mod output;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use gangline_simulator::{
    BadRows, Charges, FaultSpec, LimitModel, MuriQuirk, Options, PolicyName, simulate, simulate_and_draw,
};

use crate::failure::Failure;
use input::{Input, Source};
use output::{as_json, as_table};

#[derive(Args)]
pub(crate) struct SimulateArgs {
    /// The trace: normalised CSV or SWF (by its name, .swf), plain or .gz
    #[arg(long, value_name = "FILE", required_unless_present = "replay", conflicts_with = "replay")]
    trace: Option<PathBuf>,
    /// Instead of a trace, the past of a control plane: the jobs of its journal, with the work they turned out to be.
    /// What it decided and what failed there is left behind. Only reads; the control plane may run meanwhile
    #[arg(long, value_name = "DATA_FOLDER")]
    replay: Option<PathBuf>,
    /// The cluster: NODESxGPUS, like 8x8, in racks like 64x8/rack=16, and blocks of racks like
    /// 64x8/rack=16/block=32 (in nodes); or a control plane's configuration file, with nodes and queues (the trace's vc
    /// names the queue) [default with --replay: the journal's]
    #[arg(long, value_name = "NODESxGPUS|FILE", required_unless_present = "replay")]
    cluster: Option<String>,
    /// The policy: fifo, sjf, srtf, srsf, las, easy-backfill, priority or gangline; sjf, srtf and srsf know true
    /// durations, priority ignores checkpoints
    #[arg(long, default_value = "gangline")]
    policy: PolicyName,
    /// What every random draw comes from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave malformed rows and gangs larger than the cluster out, and count them
    #[arg(long)]
    skip_bad: bool,
    /// What preemption costs: on (a checkpoint every 30m, save 30s, restart 60s), off, or a list like
    /// checkpoint=10m,save=20s,restart=2m
    #[arg(long, default_value = "off", value_name = "SPEC", value_parser = charges)]
    charge: Charges,
    /// What fails: none, usual, or a list like
    /// node-mttf=200d,repair=4h,app-mttf=250d,lemons=2%x10,silent=12%:30m,spot=5%:2m
    #[arg(long, default_value = "none", value_name = "SPEC")]
    faults: FaultSpec,
    /// Time limits where the trace has none: users (a seeded model of what people type) or none
    #[arg(long, default_value = "users", value_name = "MODEL", value_parser = limits)]
    limits: LimitModel,
    /// The share of jobs of high priority, drawn at random, like 10%; only priority and gangline look at it
    #[arg(long, default_value = "0%", value_name = "PERCENT", value_parser = percent)]
    high: f64,
    /// Reproduce the published figures of Muri's simulator, start-up overheads at every event included
    #[arg(long)]
    muri_quirk: bool,
    /// What a GPU-hour costs, for the bill
    #[arg(long, value_name = "PRICE")]
    price: Option<f64>,
    /// Draw who ran where into this SVG file
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

impl SimulateArgs {
    fn source(&self) -> Source<'_> {
        let (replay, trace) = (self.replay.as_deref(), self.trace.as_deref());
        Source { replay, trace, cluster: self.cluster.as_deref(), accelerator: None }
    }
}

pub(crate) fn run(args: &SimulateArgs, is_json: bool) -> Result<(), Failure> {
    let bad_rows = if args.skip_bad { BadRows::Skip } else { BadRows::Refuse };
    let Input { workload, cluster, name } = input::read(args.source(), bad_rows)?;
    let options = Options {
        policy: args.policy,
        charges: args.charge,
        limits: args.limits,
        high_share: args.high,
        faults: args.faults,
        seed: args.seed,
        oversized: bad_rows,
        quirk: if args.muri_quirk { MuriQuirk::AsPublished } else { MuriQuirk::Without },
        sharing: cluster.sharing,
    };
    let begun = Instant::now();
    let summary = match &args.timeline {
        None => simulate(&workload, &cluster.nodes, &options).map_err(|error| input::failed(&error))?,
        Some(path) => {
            let title = format!("{} on {} under {}, seed {}", name, cluster.name, args.policy.name(), args.seed);
            let drawn = simulate_and_draw(&workload, &cluster.nodes, &options, &title);
            let (summary, picture) = drawn.map_err(|error| input::failed(&error))?;
            let refused = |error| Failure::local(format!("failed to write {}: {error}", path.display()), "");
            std::fs::write(path, picture).map_err(refused)?;
            summary
        }
    };
    let took = begun.elapsed();
    let text = if is_json {
        return crate::output::json(&as_json(args, &summary));
    } else {
        as_table(args, &with_rules(&cluster.name, &options), &summary, took)
    };
    crate::output::print(&text)
}

/// Describes the cluster, and the engine's rules there.
fn with_rules(cluster: &str, options: &Options) -> String {
    match options.policy {
        PolicyName::Gangline => format!("{cluster}; order {}", options.sharing.order.name()),
        _ => cluster.to_owned(),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let share = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok()).map(|percent| percent / 100.0);
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "expected a percentage like 10%".to_owned())
}

fn limits(text: &str) -> Result<LimitModel, String> {
    match text {
        "users" => Ok(LimitModel::Users),
        "none" => Ok(LimitModel::Trace),
        _ => Err("there are users and none".to_owned()),
    }
}

fn charges(text: &str) -> Result<Charges, String> {
    match text {
        "off" => return Ok(Charges::FREE),
        "on" => return Ok(Charges::USUAL),
        _ => {}
    }
    let mut charges = Charges::USUAL;
    for part in text.split(',') {
        let wrong = || format!("{part:?} is none of checkpoint=30m, save=30s and restart=60s");
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        let slot = match name {
            "checkpoint" => &mut charges.checkpoint_every,
            "save" => &mut charges.save,
            "restart" => &mut charges.restart,
            _ => return Err(wrong()),
        };
        *slot = gangline_simulator::parse_span(value).ok_or_else(wrong)?;
    }
    Ok(charges)
}
