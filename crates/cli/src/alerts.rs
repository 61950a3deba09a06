//! `alerts`: what fires, acknowledgements, silences, and a check of a file of rules.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use gangline_api as api;
use gangline_control::delivery::MailServer;
use gangline_control::service::Service;
use gangline_server::alerts as alerting;
use gangline_server::budgets::Budgets;
use gangline_specs::config::Config;
use gangline_telemetry::alerts::{Rules, Way};
use gangline_telemetry::series;
use serde_json::json;
use tracing::warn;

use crate::client::{Client, path_segment};
use crate::failure::Failure;
use crate::{Global, configuration, courier, output};

/// Name of the file of alert rules in the data folder.
const FILE: &str = "alerts.toml";

/// What to do with alerts.
#[derive(Args, Debug)]
pub(crate) struct AlertsArgs {
    /// Show pending ones and those that ended too
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    command: Option<AlertsCommand>,
}

#[derive(Debug, Subcommand)]
enum AlertsCommand {
    /// Say that you take care of an alert: receivers aren't told of it again
    Ack {
        /// Its number
        alert: u64,
    },
    /// Tell nobody of some alerts for a time
    Silence(SilenceArgs),
    /// End a silence
    Unsilence {
        /// Its number
        silence: u64,
    },
    /// Check a file of rules; needs no control plane
    Check {
        /// The file
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
struct SilenceArgs {
    /// Only alerts of this rule
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Only alerts about this, as gangline alerts shows it: job-3, "node n1", "queue research"
    #[arg(long, value_name = "SUBJECT")]
    about: Option<String>,
    /// For how long, as 90m, 2h or 3d
    #[arg(long = "for", value_name = "TIME", default_value = "2h", value_parser = length)]
    length: Duration,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "")]
    comment: String,
}

fn length(text: &str) -> Result<Duration, String> {
    gangline_specs::jobfile::parse_age(text).map_err(|message| format!("the time {message}"))
}

pub(crate) fn run(global: &Global, args: &AlertsArgs) -> Result<(), Failure> {
    let client = || Client::connect(global);
    match &args.command {
        None => list(&client()?, args.all, global.json),
        Some(AlertsCommand::Check { file }) => check(file, global.json),
        Some(AlertsCommand::Ack { alert }) => {
            let alert: api::Alert = client()?.post(&format!("/alerts/{alert}/acknowledge"), &json!({}))?;
            let text = format!("{} takes care of alert {}", alert.acknowledged_by.as_deref().unwrap_or("-"), alert.id);
            answer(&alert, global.json, &text)
        }
        Some(AlertsCommand::Silence(silence)) => {
            let request = api::SilenceRequest {
                rule: silence.rule.clone(),
                subject: silence.about.clone(),
                for_seconds: silence.length.as_secs(),
                comment: silence.comment.clone(),
            };
            let made: api::Silence = client()?.post("/silences", &request)?;
            let text = format!("silence {}: {} until {}", made.id, covers(&made), output::time(made.until));
            answer(&made, global.json, &text)
        }
        Some(AlertsCommand::Unsilence { silence }) => {
            let path = format!("/silences/{}/end", path_segment(&silence.to_string()));
            let list: api::AlertList = client()?.post(&path, &json!({}))?;
            answer(&list, global.json, &format!("silence {silence} is over"))
        }
    }
}

fn answer(value: &impl serde::Serialize, is_json: bool, text: &str) -> Result<(), Failure> {
    if is_json { output::json(value) } else { output::say(text) }
}

fn list(client: &Client, is_all: bool, is_json: bool) -> Result<(), Failure> {
    let mut list: api::AlertList = client.get("/alerts")?;
    list.alerts.retain(|alert| is_all || alert.state == "firing");
    if is_json {
        return output::json(&list);
    }
    if list.alerts.is_empty() {
        let all = if is_all { "" } else { "; --all shows pending and ended ones" };
        output::tell(&format!("nothing fires ({} rules hold){all}", list.rules.len()));
    } else {
        let headings = [">ID", "STATE", "SEVERITY", "RULE", "ABOUT", "SINCE", "WHAT"];
        output::print(&output::table(&headings, list.alerts.iter().map(row).collect()))?;
    }
    for silence in &list.silences {
        let why = if silence.comment.is_empty() { String::new() } else { format!(": {}", silence.comment) };
        let until = output::time(silence.until);
        output::tell(&format!("silence {} by {}: {} until {until}{why}", silence.id, silence.by, covers(silence)));
    }
    for receiver in list.receivers.iter().filter(|receiver| receiver.failure.is_some()) {
        let failure = receiver.failure.as_deref().unwrap_or_default();
        let (kind, name) = (&receiver.kind, &receiver.name);
        let waiting = format!("{} message(s) wait, {} were given up", receiver.waiting, receiver.given_up);
        output::tell(&format!("the {kind} \"{name}\" can't be reached: {failure} ({waiting})"));
    }
    if list.left_out > 0 {
        output::tell(&format!("{} more alerts than there may be are left out", list.left_out));
    }
    if let Some(failure) = &list.failure {
        output::tell(&format!("alerts aren't complete: {failure}"));
    }
    Ok(())
}

fn row(alert: &api::Alert) -> Vec<String> {
    let state = match (&alert.acknowledged_by, alert.is_silenced) {
        (Some(by), _) => format!("{}, {by} takes care", alert.state),
        (None, true) => format!("{}, silenced", alert.state),
        (None, false) => alert.state.clone(),
    };
    let since = output::time(alert.fired_at.unwrap_or(alert.since));
    let (rule, subject, summary) = (alert.rule.clone(), alert.subject.clone(), alert.summary.clone());
    vec![alert.id.to_string(), state, alert.severity.clone(), rule, subject, since, summary]
}

fn covers(silence: &api::Silence) -> String {
    match (&silence.rule, &silence.subject) {
        (None, None) => "all alerts".to_owned(),
        (Some(rule), None) => format!("alerts of rule {rule}"),
        (None, Some(subject)) => format!("alerts about {subject}"),
        (Some(rule), Some(subject)) => format!("alerts of rule {rule} about {subject}"),
    }
}

fn check(file: &Path, is_json: bool) -> Result<(), Failure> {
    let rules = read(file)?;
    let receivers: Vec<&str> = rules.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    let names: Vec<&str> = rules.rules.iter().map(|rule| rule.name.as_str()).collect();
    let text = format!("{} rules hold, and {} receivers are told", names.len(), receivers.len());
    answer(&json!({ "rules": names, "receivers": receivers }), is_json, &text)
}

/// Reads a file of rules.
///
/// # Errors
/// G0651, with line and column.
pub(crate) fn read(file: &Path) -> Result<Rules, Failure> {
    let refused = |message: String| {
        let hint = "docs/guides/alerts.md describes every key; gangline alerts check FILE looks at it alone";
        Failure::coded("G0651", format!("failed to read {}:{message}", file.display()), hint)
    };
    let text = std::fs::read_to_string(file).map_err(|error| refused(format!(" {error}")))?;
    Rules::read(&text).map_err(|invalid| refused(invalid.to_string()))
}

/// What alerts of a control plane need from its configuration.
pub(crate) struct Setup {
    pub(crate) rules: Rules,
    mail: Option<MailServer>,
    pub(crate) budgets: Budgets,
}

/// Reads the rules of a control plane: those of the file that its configuration names, or else of the one in its data
/// folder, or else the built-in ones.
///
/// # Errors
/// G0651 if they can't be read, or if somebody is to be mailed to without a mail server.
pub(crate) fn setup(folder: &Path, config: &Config, config_path: Option<&Path>) -> Result<Setup, Failure> {
    let own = folder.join(FILE);
    let rules = match config.alerts_file.as_deref().zip(config_path) {
        Some((file, path)) => read(&configuration::beside(path, file))?,
        None if own.exists() => read(&own)?,
        None => Rules::built_in(),
    };
    let mail = config.smtp.as_ref().map(|smtp| courier::mail_server(smtp, config_path)).transpose()?;
    let mailed = rules.receivers.iter().find(|receiver| matches!(receiver.way, Way::Email(_)));
    if let Some(receiver) = mailed.filter(|_| mail.is_none()) {
        let message =
            format!("the receiver {:?} of alerts is mailed to, but no mail server is configured", receiver.name);
        return Err(Failure::coded("G0651", message, "docs/reference/configuration.md describes the table [smtp]"));
    }
    Ok(Setup { rules, mail, budgets: Budgets::new(config.budgets.clone()) })
}

/// Starts alerts. Without them everything else goes on.
pub(crate) fn start(
    setup: Setup,
    [folder, journal_folder]: [&Path; 2],
    service: &Service,
    series: &series::Handle,
) -> Option<alerting::Service> {
    let options = alerting::Options {
        rules: setup.rules,
        mail: setup.mail,
        folder: folder.to_owned(),
        journal_folder: journal_folder.to_owned(),
        handle: service.handle(),
        views: service.views(),
        budgets: setup.budgets,
        series: series.clone(),
        clock: output::now,
    };
    alerting::Service::start(options)
        .map_err(|error| warn!(%error, "no thread for alerts: nobody is told of anything"))
        .ok()
}
