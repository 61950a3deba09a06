//! `runs import`: runs of other trackers. It can be interrupted and started again: a run that is here whole is left alone.

mod database;
mod folders;
pub(super) mod mlflow;
pub(super) mod run;
mod sink;
mod tensorboard;
mod wandb;

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use mlflow::Server;
use run::{ImportedRun, VERSION};
use sink::Sink;

/// What an MLflow database is named by.
const DATABASE: &str = "sqlite:";

/// Where from.
#[derive(Args, Debug)]
pub(super) struct ImportArgs {
    /// An MLflow server's URL, or its SQLite database as sqlite:PATH
    #[arg(long, value_name = "URL", group = "source")]
    mlflow: Option<String>,
    /// A folder with TensorBoard's event files; each folder with some is a run
    #[arg(long, value_name = "DIR", group = "source")]
    tensorboard: Option<PathBuf>,
    /// A folder with runs of W&B that was offline
    #[arg(long, value_name = "DIR", group = "source")]
    wandb: Option<PathBuf>,
    /// A file that runs export wrote
    #[arg(long, value_name = "FILE", group = "source")]
    file: Option<PathBuf>,
    /// Only this experiment; of TensorBoard and W&B, the experiment that they become [default: the folder's name, the project]
    #[arg(long, value_name = "NAME")]
    experiment: Option<String>,
    /// A file with the token of that MLflow server, if it asks for one
    #[arg(long, value_name = "FILE", requires = "mlflow")]
    source_token_file: Option<PathBuf>,
}

pub(super) fn run(client: &Client, args: &ImportArgs, is_json: bool) -> Result<(), Failure> {
    let mut sink = Sink::into(client)?;
    let only = args.experiment.as_deref();
    let wanted = |run: &ImportedRun| only.is_none_or(|only| only == run.experiment);
    match (&args.mlflow, &args.tensorboard, &args.wandb, &args.file) {
        (Some(url), ..) => match url.strip_prefix(DATABASE) {
            Some(path) => {
                database::each(database::file_of(path), |run| if wanted(&run) { sink.take(&run) } else { Ok(()) })?
            }
            None => mlflow::each(&Server::at(url, token(args)?)?, only, |run| sink.take(&run))?,
        },
        (_, Some(folder), ..) => tensorboard::each(folder, only, |run| sink.take(run))?,
        (_, _, Some(folder), _) => wandb::each(folder, only, |run| sink.take(run))?,
        (.., Some(file)) => each_of_file(file, |run| if wanted(&run) { sink.take(&run) } else { Ok(()) })?,
        _ => {
            let hint = "name a source with --mlflow, --tensorboard, --wandb or --file";
            return Err(Failure::local("there is nothing to import from", hint));
        }
    }
    tell(&sink, is_json)
}

fn token(args: &ImportArgs) -> Result<Option<String>, Failure> {
    let Some(file) = &args.source_token_file else { return Ok(None) };
    let failed = |error| Failure::local(format!("the token in {} can't be read: {error}", file.display()), "");
    Ok(Some(std::fs::read_to_string(file).map_err(failed)?.trim().to_owned()))
}

/// Hands over the runs of an export.
fn each_of_file(file: &Path, mut take: impl FnMut(ImportedRun) -> Result<(), Failure>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::local(format!("{} can't be read: {error}", file.display()), "");
    let lines = std::io::BufReader::new(std::fs::File::open(file).map_err(failed)?).lines();
    for (number, line) in (1..).zip(lines) {
        let line = line.map_err(failed)?;
        let refused = |why: String| {
            Failure::local(
                format!("{}:{number}: {why}", file.display()),
                "gangline runs export --format jsonl writes such files",
            )
        };
        let run: ImportedRun =
            serde_json::from_str(&line).map_err(|error| refused(format!("it is no run: {error}")))?;
        if run.version != VERSION {
            return Err(refused(format!("it is of version {}, and version {VERSION} is known", run.version)));
        }
        take(run)?;
    }
    Ok(())
}

/// Says what was imported; fails if something wasn't.
fn tell(sink: &Sink<'_>, is_json: bool) -> Result<(), Failure> {
    let Sink { imported, known, points, params, problems, .. } = sink;
    if is_json {
        output::json(
            &json!({"imported": imported, "known": known, "points": points, "params": params, "problems": problems}),
        )?;
    } else {
        output::say(&format!(
            "{imported} run(s) imported with {params} parameters and {points} points of metrics, counted here and there; \
             {known} were here already"
        ))?;
        problems.iter().for_each(|problem| output::tell(problem));
    }
    if problems.is_empty() {
        return Ok(());
    }
    let hint = "what is said above keeps them; the same command goes on with them, and leaves the others alone";
    Err(Failure::local(format!("{} run(s) aren't here whole", problems.len()), hint))
}

fn unreadable(what: &str, error: &serde_json::Error) -> Failure {
    Failure::local(format!("the answer about {what} isn't MLflow's: {error}"), "is it an MLflow server?")
}
