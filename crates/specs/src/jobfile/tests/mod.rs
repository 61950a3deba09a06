//! Tests of job files: text in, a specification or rendered problems out.

mod accepted;
mod hostile;

use std::path::Path;

use gangline_base::{CodeCopy, CodeSource, JobSpec, Submitter, SweepSpec};

use super::{Code, Context, NotCopied, Problem, Submission, parse};

const REFUSALS: &str = include_str!("refusals.txt");

/// Parses a job file called `job.yaml` in `/work/project`, where only the folder `data` exists.
fn read(text: &str, overrides: &[String]) -> Result<JobSpec, Vec<Problem>> {
    read_any(text, overrides).map(|submission| match submission {
        Submission::Job(job) => *job,
        Submission::Sweep(sweep) => JobSpec::clone(&sweep.job),
    })
}

pub(super) fn sweep(text: &str) -> SweepSpec {
    match read_any(text, &[]) {
        Ok(Submission::Sweep(sweep)) => *sweep,
        other => panic!("{text}: {other:?}"),
    }
}

fn read_any(text: &str, overrides: &[String]) -> Result<Submission, Vec<Problem>> {
    let is_folder =
        |path: &Path| ["/", "/work/project", "/work/project/../data"].iter().any(|folder| path == Path::new(folder));
    let copy = |source: &CodeSource, left_out: Option<&Path>| match source {
        CodeSource::Git { reference: Some(name), .. } if name == "gone" => {
            Err(NotCopied { message: "has no \"gone\"".to_owned(), hint: "push it first".to_owned() })
        }
        source => Ok(CodeCopy { tree: format!("{source:?} {left_out:?}"), commit: None, changed_files: 0 }),
    };
    let template = |name: &str| match name {
        "h100" => Ok("resources: {accelerators: \"H100:8\", cpus: 64}\nenvs: {A: low, B: low}\n".to_owned()),
        "team" => Ok("queue: research\nenvs: {A: middle}\nrecovery: {max_faults: 3}\n".to_owned()),
        "wrong" => Ok("queue: research\nresources:\n  cpus: many\n".to_owned()),
        "nested" => Ok("template: team\nrun: x\n".to_owned()),
        "broken" => Ok("run: [".to_owned()),
        _ => Err("there are: broken, h100, nested, team, wrong".to_owned()),
    };
    let context = Context {
        file_name: "job.yaml",
        base: Path::new("/work/project"),
        submitter: Submitter("ann".to_owned()),
        overrides,
        is_folder: &is_folder,
        template: &template,
        copy_code: &copy,
    };
    parse(text, &context)
}

/// Returns the job file of a case and its `--set` options, without the expected result.
fn parts(case: &str) -> (String, Vec<String>) {
    let (mut text, mut overrides) = (String::new(), Vec::new());
    for line in case.lines().filter(|line| !line.starts_with("=> ")) {
        match line.strip_prefix("$ ") {
            Some(option) => overrides.push(option.to_owned()),
            None => text += &format!("{line}\n"),
        }
    }
    (text, overrides)
}

fn rendered(outcome: &Result<JobSpec, Vec<Problem>>) -> String {
    match outcome {
        Ok(_) => "=> accepted\n".to_owned(),
        Err(problems) => problems.iter().map(|problem| format!("=> {problem}\n")).collect(),
    }
}

/// The golden text is generated anew and compared as a whole, so that a failure shows the new content of the
/// file.
#[test]
fn wrong_job_files_are_refused_with_code_place_and_hint() {
    let (intro, cases) = REFUSALS.split_once('\n').expect("the first line explains the rest");
    let mut said = format!("{intro}\n");
    let mut count = 0;
    for (index, case) in cases.split("----\n").enumerate() {
        let (text, overrides) = parts(case);
        let separator = if index == 0 { "" } else { "----\n" };
        let options: String = overrides.iter().map(|option| format!("$ {option}\n")).collect();
        said += &format!("{separator}{text}{options}{}", rendered(&read(&text, &overrides)));
        count += 1;
    }
    assert!(count >= 40, "only {count} cases");
    assert!(!said.contains("=> accepted"), "a wrong job file was accepted:\n{said}");
    assert!(said == REFUSALS, "refusals.txt should be:\n{said}");
}

#[test]
fn every_code_is_met_in_a_refusal() {
    for code in Code::ALL {
        assert!(REFUSALS.contains(&format!("=> {} ", code.as_str())), "{} is never met", code.as_str());
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the pages are files")]
fn every_code_has_its_page() {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for code in Code::ALL {
        let page = pages.join(format!("{}.md", code.as_str()));
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        assert!(text.starts_with(&format!("# {}", code.as_str())), "{} is missing or has no title", page.display());
    }
}
