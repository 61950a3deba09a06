//! `gangline plan`: estimates what a run needs before anybody pays for it. Needs no control plane.

mod books;
mod compare;
mod request;
mod show;
mod source;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use gangline_planning::layout::Layout;
use gangline_planning::plan::fleet::{self, Goal};
use gangline_planning::plan::{Plan, PlanError, make, schema};

use crate::failure::Failure;
use crate::output;
use request::RunArgs;

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    goal: GoalArgs,
}

#[derive(Subcommand, Debug)]
enum PlanCommand {
    /// Predict a given layout
    Evaluate {
        #[command(flatten)]
        run: Box<RunArgs>,
        /// The layout: tp=8,pp=2,dp=8,mbs=1, with vp, cp, ep, sp=off, recompute=full, sharding=parameters, ... as they apply
        #[arg(long, value_name = "KEY=VALUE,...")]
        layout: String,
    },
    /// Put two plans, as --json printed them, side by side
    Compare {
        /// The one
        first: PathBuf,
        /// The other
        second: PathBuf,
    },
    /// Print the JSON Schema of what --json prints
    Schema,
    /// Say where to get the accelerators: by the hour, reserved, spot, bare metal, colocation, or a mix
    Source(Box<source::SourceArgs>),
}

/// Without --gpus: what is looked for among numbers and kinds of accelerators.
#[derive(Args, Debug)]
struct GoalArgs {
    /// Find the cheapest that ends within this time: 36h, 7d
    #[arg(long, value_name = "TIME", value_parser = request::time, conflicts_with = "gpus")]
    deadline: Option<f64>,
    /// Find the fastest that costs no more than so many dollars
    #[arg(long, value_name = "DOLLARS", value_parser = request::dollars, conflicts_with_all = ["gpus", "deadline"])]
    budget: Option<gangline_base::Money>,
}

pub(crate) fn run(args: &PlanArgs, is_json: bool) -> Result<(), Failure> {
    if args.command.is_some() && args.run.is_begun() {
        let message = "failed to plan: options stand before evaluate, compare or source";
        return Err(Failure::coded("G0601", message, "write them behind it"));
    }
    match &args.command {
        Some(PlanCommand::Evaluate { run, layout }) => {
            let mut request = run.request()?;
            let wrong = |error| Failure::coded("G0601", format!("failed to read the layout: {error}"), "");
            request.layout = Some(Layout::parse(layout).map_err(wrong)?);
            print(&make(&request).map_err(|error| refused(&error))?, is_json)
        }
        Some(PlanCommand::Compare { first, second }) => compare::run(first, second, is_json),
        Some(PlanCommand::Schema) => output::json(&schema()),
        Some(PlanCommand::Source(args)) => source::run(args, is_json),
        None if args.run.is_sized() => print(&make(&args.run.request()?).map_err(|error| refused(&error))?, is_json),
        None => look_for(args, is_json),
    }
}

/// Finds the number and kind of accelerators.
fn look_for(args: &PlanArgs, is_json: bool) -> Result<(), Failure> {
    let goal = match &args.goal {
        GoalArgs { deadline: Some(seconds), .. } => Goal::Deadline { seconds: *seconds },
        GoalArgs { budget: Some(money), .. } => Goal::Budget { nano_dollars: money.nano_dollars() },
        GoalArgs { .. } => Goal::Cheapest,
    };
    let fleet = fleet::choose(args.run.requests()?.into_iter(), goal).map_err(|error| refused(&error))?;
    if is_json {
        return output::json(&show::fleet_json(&fleet));
    }
    output::print(&show::fleet(&fleet))?;
    match fleet.recommended {
        Some(_) => Ok(()),
        None => Err(Failure::coded("G0601", format!("failed to plan: {}", fleet.reason), "")),
    }
}

fn print(plan: &Plan, is_json: bool) -> Result<(), Failure> {
    if is_json { output::json(plan) } else { output::print(&show::plan(plan)) }
}

/// Converts a planning error.
fn refused(error: &PlanError) -> Failure {
    Failure::coded("G0601", format!("failed to plan: {}", gangline_base::with_causes(error)), "")
}
