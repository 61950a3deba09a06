//! Parts of the gate that run beside another part, which mostly waits: one after another, each a process of its own whose output
//! is kept until the other part is over.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::parts::Part;
use super::steps::Steps;

/// Beside which part another one runs.
#[derive(Clone, Copy)]
pub(super) struct Companion {
    /// The other part.
    pub(super) part: &'static str,
    /// How far it stands back, as `nice` counts: 0 not at all, 10 so that it gets a tenth where the other takes all it can.
    pub(super) niceness: &'static str,
}

/// This program, and where the logs of its processes are.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) logs: PathBuf,
}

/// The parts that run beside another one.
pub(super) struct Companions {
    thread: JoinHandle<Vec<Ended>>,
}

/// A part that ran.
struct Ended {
    name: &'static str,
    took: Duration,
    output: String,
    result: anyhow::Result<bool>,
}

impl Companions {
    /// Starts them, each as a process of the program with the project's commands.
    pub(super) fn start(program: &Program, parts: Vec<&'static Part>) -> Companions {
        let program = program.clone();
        let run_all = move || parts.into_iter().filter_map(|part| run(&program, part)).collect();
        Companions { thread: std::thread::spawn(run_all) }
    }

    /// Waits for them, shows what they said, and adds them to the steps.
    pub(super) fn finish(self, steps: &mut Steps) {
        for Ended { name, took, output, result } in self.thread.join().expect("nothing in the thread panics") {
            eprintln!("\n== {name}, which ran beside");
            println!("{output}");
            steps.add(name, took, result);
        }
    }
}

/// Runs a part that may run beside another.
fn run(program: &Program, part: &'static Part) -> Option<Ended> {
    let niceness = part.beside?.niceness;
    let started = Instant::now();
    let (output, result) = match process(program, part.name, niceness) {
        Ok((output, has_passed)) => (output, Ok(has_passed)),
        Err(error) => (String::new(), Err(error)),
    };
    Some(Ended { name: part.name, took: started.elapsed(), output, result })
}

/// What the program says when it runs the part, and whether that passed.
fn process(program: &Program, name: &str, niceness: &str) -> anyhow::Result<(String, bool)> {
    let path = program.logs.join(format!("ci-{name}.log"));
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let mut command = Command::new("nice");
    command.args(["-n", niceness]).arg(&program.path).args(["part", name]);
    let errors = file.try_clone().context("share the log")?;
    let status = command.stdout(file).stderr(errors).status().context("start nice")?;
    let output = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok((String::from_utf8_lossy(&output).into_owned(), status.success()))
}
