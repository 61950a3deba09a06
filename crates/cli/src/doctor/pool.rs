//! `doctor --pool`: submits an ordinary job, one rank on each node of a pool, that runs `doctor --rank`. So
//! it is queued, placed, watched and accounted for like any other, and works wherever jobs do.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use gangline_api as api;
use gangline_base::PoolName;
use gangline_execution::health::network::NetworkReport;

use super::gang::{REPORT_BEGINS, REPORT_ENDS};
use super::{DoctorArgs, exit_code, show};
use crate::client::{Client, absolute};
use crate::failure::Failure;
use crate::log_reader::{Line, LogKind, LogReader, Piece, Reach, Wanted};
use crate::{Global, follow, output, submit};

/// Maximum size of a rank's log, in bytes (A-10).
const LOG_BYTES_MAX: usize = 64 << 20;
/// Number of its last lines that are shown if it has no report.
const LAST_LINES: usize = 15;

pub(super) fn run(global: &Global, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let client = Client::connect(global)?;
    let pool = args.pool.as_deref().unwrap_or(PoolName::DEFAULT);
    let list: api::NodeList = client.get("/nodes")?;
    let nodes = ready(&list, pool, args)?;
    let request = api::SubmitRequest {
        job_file: job_file(&nodes, pool, args, &std::env::current_exe()?)?,
        file_name: Some("doctor.yaml".to_owned()),
        directory: absolute(Path::new("."))?.display().to_string(),
        set: Vec::new(),
        dry_run: false,
    };
    let job = match submit::submit(&client, &request, "doctor.yaml")? {
        api::Answer::Submitted(submitted) => submitted.job,
        _ => return Err(Failure::local("the control plane took the job for something else", "")),
    };
    output::tell(&format!("{job} checks {} node(s) of pool {pool}; end it with: gangline cancel {job}", nodes.len()));
    let mut last_said = String::new();
    let ended = follow::watch(
        || client.job(&job),
        |job| {
            let said = follow::line(job);
            if said != last_said {
                output::tell(&format!("{}: {said}", job.id));
                last_said = said;
            }
            job.state.is_final()
        },
    )?;
    let log = log_of_first_rank(&client, &job)?;
    let Some(report) = report_in(&log) else {
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        let message = format!("{job} is {}, without a report; its last lines:\n{last}", ended.state.name());
        return Err(Failure::local(message, format!("gangline show {job}, gangline logs {job} --rank N")));
    };
    if global.json { output::json(&report) } else { output::print(&show::gang(&report)) }?;
    Ok(exit_code(show::problems(&report)))
}

/// Returns the nodes to check: those of the pool that take jobs, of the most common kind.
fn ready<'a>(list: &'a api::NodeList, pool: &str, args: &DoctorArgs) -> Result<Vec<&'a api::Node>, Failure> {
    if let Some(name) =
        args.nodes.iter().find(|name| !list.nodes.iter().any(|node| node.name == **name && node.pool == pool))
    {
        return Err(Failure::local(format!("pool {pool} has no node {name}"), "gangline nodes lists them"));
    }
    let mut kinds: BTreeMap<&str, Vec<&api::Node>> = BTreeMap::new();
    let is_wanted = |node: &&api::Node| match &args.accelerators {
        Some(expected) => node.accelerator == expected.kind,
        None => args.nodes.is_empty() || args.nodes.contains(&node.name),
    };
    let usable = list.nodes.iter().filter(|node| node.pool == pool && node.status == "ready");
    for node in usable.clone().filter(is_wanted) {
        kinds.entry(&node.accelerator).or_default().push(node);
    }
    let kind = kinds.into_iter().max_by_key(|(_, nodes)| nodes.len()).map(|(kind, _)| kind);
    let kind = kind.ok_or_else(|| {
        Failure::local(
            format!("pool {pool} has no node that takes jobs now"),
            "gangline nodes says why; name another with --pool",
        )
    })?;
    let nodes: Vec<&api::Node> = usable.filter(|node| node.accelerator == kind).collect();
    if let Some(name) = args.nodes.iter().find(|name| !nodes.iter().any(|node| node.name == **name)) {
        let message = format!("node {name} takes no jobs now, or isn't of kind {kind} like the others");
        return Err(Failure::local(message, "gangline nodes says how it is; check one kind at a time"));
    }
    Ok(nodes)
}

/// Returns the job file as JSON, which is YAML as well.
fn job_file(nodes: &[&api::Node], pool: &str, args: &DoctorArgs, program: &Path) -> Result<String, Failure> {
    let slots = nodes.iter().map(|node| node.slots.len()).min().unwrap_or(1).max(1);
    let kind = nodes.first().map_or("cpu", |node| &node.accelerator);
    let program = program.to_str().ok_or_else(|| Failure::local("this program's path is not UTF-8", ""))?;
    let mut words = vec![program.to_owned(), "doctor".to_owned(), "--rank".to_owned()];
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    option("--size", format!("{}B", args.size.0));
    option("--run-nodes", args.run_nodes.to_string());
    // A node may have more than the gang takes of it.
    if kind != "cpu" {
        option("--accelerators", format!("{kind}:{slots}"));
    }
    for folder in &args.folders {
        option("--folder", absolute(folder)?.display().to_string());
    }
    if let Some(size) = args.checkpoint_size {
        option("--checkpoint-size", format!("{}B", size.0));
    }
    if let Some(timeout) = args.timeout {
        option("--timeout", format!("{}s", timeout.as_secs().max(1)));
    }
    if !args.nodes.is_empty() {
        option("--nodes", args.nodes.join(","));
    }
    for name in &args.only {
        option("--only", name.clone());
    }
    if args.quick {
        words.push("--quick".to_owned());
    }
    let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
    let taken = if args.beside { 1 } else { slots };
    let job = serde_json::json!({
        "name": "doctor",
        "num_nodes": nodes.len(),
        "resources": { "accelerators": format!("{kind}:{taken}"), "pool": pool },
        "launch": "node",
        "run": format!("exec {}", quoted.join(" ")),
        "recovery": { "max_faults": 0 },
        "time_limit": "1h",
    });
    serde_json::to_string_pretty(&job).map_err(|error| Failure::local(error.to_string(), ""))
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the whole log without the time and the stream at the beginning of each line.
fn log_of_first_rank(client: &Client, job: &str) -> Result<String, Failure> {
    let wanted = Wanted { job, rank: 0, kind: LogKind::Rank, attempt: None, reach: Reach::Now };
    let (mut reader, mut text) = (LogReader::new(client, wanted), String::new());
    while text.len() < LOG_BYTES_MAX {
        match reader.next() {
            Ok(Piece::Chunk(chunk)) => {
                text.extend(chunk.text.lines().flat_map(|line| [Line::parse(line).text, "\n"]));
            }
            Ok(_) | Err(Failure::Api { status: 404, .. }) => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(text)
}

fn report_in(log: &str) -> Option<NetworkReport> {
    let (_, rest) = log.split_once(REPORT_BEGINS)?;
    let (report, _) = rest.split_once(REPORT_ENDS)?;
    serde_json::from_str(report).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_log_without_a_whole_report_has_none() {
        assert!(report_in("").is_none());
        assert!(report_in(&format!("{REPORT_BEGINS}\n{{\"nodes\":[]")).is_none());
        let whole =
            format!("x\n{REPORT_BEGINS}\n{{\"nodes\":[],\"pairs\":[],\"ring\":null,\"findings\":[]}}\n{REPORT_ENDS}\n");
        assert!(report_in(&whole).is_some_and(|report| report.nodes.is_empty()));
    }
}
