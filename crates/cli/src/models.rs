//! `models`: the registry of models, whose versions are checkpoints.

mod card;
mod export;
mod lineage;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gangline_api as api;
use gangline_base::Step;
use serde_json::json;

use crate::checkpoint::{self, place};
use crate::client::{Client, absolute, path_segment};
use crate::failure::Failure;
use crate::output;

/// What to do with models.
#[derive(Args, Debug)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: Option<ModelsCommand>,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the registered models; the default
    List,
    /// Show a model with its versions, or one version and what was done with it
    Show {
        /// MODEL, MODEL/NUMBER or MODEL@ALIAS
        model: String,
    },
    /// Make a checkpoint a version of a model: no byte is copied, and no retention takes it away
    Register {
        /// The model; it is made if there is none of this name
        model: String,
        /// The checkpoint: JOB or FOLDER for the newest, JOB@STEP or FOLDER@STEP
        checkpoint: String,
        /// What the version is
        #[arg(long)]
        description: Option<String>,
    },
    /// Read every byte of a version, compare it with its hashes, and note the outcome
    Verify {
        /// MODEL/NUMBER or MODEL@ALIAS; MODEL for its newest version
        version: String,
    },
    /// Point an alias at a version; it is verified first
    Promote {
        /// MODEL/NUMBER or MODEL@ALIAS; MODEL for its newest version
        version: String,
        /// The alias
        #[arg(long, default_value = "production")]
        alias: String,
    },
    /// Show where a version came from: data, code, software, jobs and nodes, runs, checkpoint, and what it cost
    Lineage {
        /// MODEL/NUMBER or MODEL@ALIAS; MODEL for its newest version
        version: String,
    },
    /// Write a version's weights to a folder that Hugging Face's libraries read, with a model card that states its lineage
    Export(export::ExportArgs),
    /// Delete a version; its checkpoint is no longer kept for it
    Delete {
        /// MODEL/NUMBER
        version: String,
    },
}

pub(crate) fn run(client: &Client, args: &ModelsArgs, is_json: bool) -> Result<ExitCode, Failure> {
    match args.command.as_ref().unwrap_or(&ModelsCommand::List) {
        ModelsCommand::List => list(client, is_json)?,
        ModelsCommand::Show { model } => show(client, model, is_json)?,
        ModelsCommand::Register { model, checkpoint, description } => {
            register(client, model, checkpoint, description.as_ref(), is_json)?;
        }
        ModelsCommand::Verify { version } => return verify(client, &find(client, version)?, is_json),
        ModelsCommand::Promote { version, alias } => return promote(client, &find(client, version)?, alias, is_json),
        ModelsCommand::Lineage { version } => lineage::show(&find(client, version)?, is_json)?,
        ModelsCommand::Export(args) => export::run(client, args, is_json)?,
        ModelsCommand::Delete { version } => delete(client, version, is_json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A version as a user names it.
#[derive(Debug, PartialEq, Eq)]
enum Selector<'a> {
    Newest(&'a str),
    Number(&'a str, u32),
    Alias(&'a str, &'a str),
}

impl<'a> Selector<'a> {
    fn parse(text: &'a str) -> Selector<'a> {
        if let Some((model, alias)) = text.split_once('@') {
            return Selector::Alias(model, alias);
        }
        match text.split_once('/').map(|(model, number)| (model, number.parse())) {
            Some((model, Ok(number))) => Selector::Number(model, number),
            _ => Selector::Newest(text),
        }
    }
}

fn model(client: &Client, name: &str) -> Result<api::Model, Failure> {
    client.get(&format!("/models/{}", path_segment(name)))
}

/// Returns the path of a version, below which things are done with it.
fn path(version: &api::ModelVersion) -> String {
    path_of(&version.model, version.number)
}

fn path_of(model: &str, number: u32) -> String {
    format!("/models/{}/versions/{number}", path_segment(model))
}

/// Finds a version, and returns it with its lineage.
fn find(client: &Client, text: &str) -> Result<api::ModelVersion, Failure> {
    let (name, number) = match Selector::parse(text) {
        Selector::Number(name, number) => (name, Some(number)),
        Selector::Newest(name) => (name, model(client, name)?.versions.first().map(|version| version.number)),
        Selector::Alias(name, alias) => (name, model(client, name)?.aliases.get(alias).copied()),
    };
    let Some(number) = number else {
        let message = format!("there is no version \"{text}\"");
        return Err(Failure::coded(
            "G0333",
            message,
            format!("gangline models show {name} lists the versions and aliases"),
        ));
    };
    client.get(&path_of(name, number))
}

fn list(client: &Client, is_json: bool) -> Result<(), Failure> {
    let list: api::ModelList = client.get("/models")?;
    if is_json {
        return output::json(&list);
    }
    if list.models.is_empty() {
        output::tell("no model; gangline models register NAME JOB makes a job's newest checkpoint a version of one");
        return Ok(());
    }
    let row = |model: &api::Model| {
        let aliases: Vec<String> = model.aliases.iter().map(|(alias, number)| format!("{alias}={number}")).collect();
        vec![
            model.name.clone(),
            model.versions.len().to_string(),
            model.versions.first().map_or_else(|| "-".to_owned(), |version| output::time(version.created_at)),
            if aliases.is_empty() { "-".to_owned() } else { aliases.join(" ") },
            output::shorten(&model.description, 40),
        ]
    };
    let rows = list.models.iter().map(row).collect();
    output::print(&output::table(&["MODEL", ">VERSIONS", "NEWEST", "ALIASES", "DESCRIPTION"], rows))
}

fn show(client: &Client, text: &str, is_json: bool) -> Result<(), Failure> {
    let Selector::Newest(name) = Selector::parse(text) else {
        let version = find(client, text)?;
        return if is_json { output::json(&version) } else { output::print(&of_version(&version)) };
    };
    let model = model(client, name)?;
    if is_json {
        return output::json(&model);
    }
    let row = |version: &api::ModelVersion| {
        vec![
            version.number.to_string(),
            output::time(version.created_at),
            version.aliases.join(" "),
            if is_verified(version) { "yes".to_owned() } else { "no".to_owned() },
            version.source.clone(),
        ]
    };
    let rows = model.versions.iter().map(row).collect();
    output::print(&output::table(&[">VERSION", "MADE", "ALIASES", "VERIFIED", "SOURCE"], rows))
}

fn is_verified(version: &api::ModelVersion) -> bool {
    version.history.iter().any(|event| event.action == "verified")
}

fn of_version(version: &api::ModelVersion) -> String {
    let mut lines =
        vec![format!("model    {}, version {}", version.model, version.number), format!("source   {}", version.source)];
    lines.extend(version.pin.as_ref().map(|pin| format!("pinned   {pin}")));
    if !version.description.is_empty() {
        lines.push(format!("what     {}", version.description));
    }
    if !version.aliases.is_empty() {
        lines.push(format!("aliases  {}", version.aliases.join(", ")));
    }
    let row = |event: &api::ModelEvent| {
        vec![output::time(event.at), event.action.clone(), event.by.clone(), event.detail.clone()]
    };
    let history = output::table(&["WHEN", "WHAT", "WHO", ""], version.history.iter().map(row).collect());
    format!("{}\n\n{history}", lines.join("\n"))
}

fn register(
    client: &Client,
    name: &str,
    checkpoint: &str,
    description: Option<&String>,
    is_json: bool,
) -> Result<(), Failure> {
    let place::Place { place, step } = place::Place::parse(checkpoint);
    let is_job = place.strip_prefix("job-").is_some_and(|number| number.parse::<u64>().is_ok());
    let mut request = api::RegisterRequest { step, description: description.cloned(), ..Default::default() };
    if is_job && !Path::new(&place).exists() {
        request.job = Some(place);
    } else {
        request.folder = Some(absolute(Path::new(&place))?.display().to_string());
    }
    let registered: api::Registered = client.post(&format!("/models/{}/versions", path_segment(name)), &request)?;
    if is_json {
        return output::json(&registered);
    }
    let api::Registered { version, is_new } = registered;
    let known = if is_new { "is" } else { "was already" };
    output::say(&format!("{} {known} version {} of {}", version.source, version.number, version.model))?;
    for unknown in version.lineage.iter().flat_map(|lineage| &lineage.unknown) {
        output::tell(&format!("not known: {unknown}"));
    }
    Ok(())
}

/// Opens the store that pins a version's checkpoint, and returns its step.
fn pinned(version: &api::ModelVersion) -> Result<(&Path, u64), Failure> {
    match (&version.pin, &version.lineage) {
        (Some(pin), Some(lineage)) => Ok((Path::new(pin), lineage.checkpoint.step)),
        _ => {
            let message = format!("version {} of {} isn't a checkpoint", version.number, version.model);
            Err(Failure::coded(
                "G0333",
                message,
                "MLflow's client downloads what it registered: mlflow artifacts download",
            ))
        }
    }
}

/// Reads every byte of a version; returns what is wrong with it, and notes it if nothing is.
fn check(client: &Client, version: &api::ModelVersion) -> Result<Vec<String>, Failure> {
    let (folder, step) = pinned(version)?;
    let store = checkpoint::open(folder)?;
    let content_hash = store.open_step(Step(step)).map_err(checkpoint::failed)?.info().content_hash.to_string();
    let report = store.verify(Step(step)).map_err(checkpoint::failed)?;
    if report.is_good() {
        let _: api::ModelVersion =
            client.post(&format!("{}/verified", path(version)), &api::VerifiedRequest { content_hash })?;
    }
    Ok(report.problems.iter().map(ToString::to_string).collect())
}

fn verify(client: &Client, version: &api::ModelVersion, is_json: bool) -> Result<ExitCode, Failure> {
    let problems = check(client, version)?;
    if is_json {
        output::json(&json!({"model": version.model, "number": version.number, "problems": problems}))?;
    } else if problems.is_empty() {
        output::say(&format!("version {} of {}: every byte is as it was saved", version.number, version.model))?;
    } else {
        output::say(&format!("version {} of {}: {}", version.number, version.model, problems.join("; ")))?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn promote(client: &Client, version: &api::ModelVersion, alias: &str, is_json: bool) -> Result<ExitCode, Failure> {
    if version.pin.is_some() {
        let problems = check(client, version)?;
        if !problems.is_empty() {
            let message =
                format!("version {} of {} is damaged: {}", version.number, version.model, problems.join("; "));
            return Err(Failure::coded("G0333", message, "register another checkpoint, and promote that one"));
        }
    }
    let request = api::PromoteRequest { alias: alias.to_owned() };
    let promoted: api::ModelVersion = client.post(&format!("{}/promote", path(version)), &request)?;
    if is_json {
        output::json(&promoted)?;
    } else {
        output::say(&format!("{alias} of {} is version {}", promoted.model, promoted.number))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn delete(client: &Client, text: &str, is_json: bool) -> Result<(), Failure> {
    let Selector::Number(name, number) = Selector::parse(text) else {
        return Err(Failure::local(format!("\"{text}\" names no single version"), "write MODEL/NUMBER, as in gpt/3"));
    };
    let version: api::ModelVersion = client.get(&path_of(name, number))?;
    if !version.aliases.is_empty() {
        let message = format!("version {number} of {name} is {}", version.aliases.join(", "));
        let hint =
            "promote another version first: deleting one that an alias points at would leave its users without a model";
        return Err(Failure::coded("G0333", message, hint));
    }
    let _: serde_json::Value =
        client.untrack("model-versions/delete", &json!({"name": name, "version": number.to_string()}))?;
    if is_json {
        return output::json(&json!({"deleted": text}));
    }
    output::say(&format!("version {number} of {name} is deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named_by_its_number_an_alias_or_as_the_newest() {
        assert_eq!(Selector::parse("gpt/3"), Selector::Number("gpt", 3));
        assert_eq!(Selector::parse("gpt@production"), Selector::Alias("gpt", "production"));
        assert_eq!(Selector::parse("gpt"), Selector::Newest("gpt"));
        assert_eq!(Selector::parse("gpt/x"), Selector::Newest("gpt/x"));
    }
}
