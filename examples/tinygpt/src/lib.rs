//! A small, real, byte-level GPT trained on CPU: what Gangline's demo and end-to-end tests run.
//!
//! Everything it does follows from its arguments, its text and its seed: the samples of a step from the seed and the
//! position in the data that its checkpoints keep, gradients averaged in rank order. So a run that was killed and resumed
//! ends bit for bit like one that wasn't, and one that was resized has trained on the same samples in each step.
//!
//! It shows what a trainer does to be at home in Gangline, and runs as well without it: torchrun's environment for the
//! gang, a `gangline_storage::Store` for its state, and (if `GANGLINE_SOCKET` is set) JSON lines that tell its phase,
//! steps and checkpoints. Exit codes: 0 done, 93 trying again is pointless, 94 saved and stopped on orders, 1 anything
//! else (a lost peer, a failing disk).

mod args;
mod checkpoint;
mod corpus;
mod data;
mod error;
mod gang;
mod model;
mod optimizer;
mod random;
mod report;
mod train;

pub use args::Args;

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use args::Environment;
use train::Ending;

/// Returns the files that a run without arguments learns from, up to so many bytes: Rust sources of this workspace and of what cargo has
/// downloaded, or those of this trainer.
///
/// # Errors
/// When one can't be read, saying which.
pub fn documents(bytes_max: usize) -> Result<Vec<Vec<u8>>, String> {
    let read = Environment::read().and_then(|environment| corpus::own_documents(&environment, bytes_max));
    read.map_err(|error| in_full(&error))
}

/// The exit code of a run that can't succeed however often it is tried.
const EXIT_DO_NOT_RESTART: i32 = 93;
/// The exit code of a run that has saved and wants to go on later.
const EXIT_REQUEUE: i32 = 94;

/// How many threads candle computes with.
const THREADS_VARIABLE: &str = "RAYON_NUM_THREADS";

/// Trains as `args` and the process's environment say; returns the exit code. Progress goes to stdout, the reason of a
/// failure to stderr.
///
/// Unless RAYON_NUM_THREADS is set, the process starts its own command line again (in place, with the same process id)
/// with it set to 1: candle reads nothing else, and its threads spin while they wait, so two ranks on two cores would
/// be nine times as slow with two threads each as with one. The results are the same with any number.
#[must_use]
pub fn run(args: &Args) -> i32 {
    if std::env::var_os(THREADS_VARIABLE).is_none() {
        start_again_with_one_thread();
    }
    let ended = Environment::read().and_then(|environment| train::train(args, &environment, &mut Console));
    match ended {
        Ok(Ending::Done) => 0,
        Ok(Ending::Stopped) => EXIT_REQUEUE,
        Err(error) => {
            // Without a stderr there is nobody to tell.
            let _ = writeln!(io::stderr(), "tinygpt failed to {}", in_full(&error));
            if error.is_hopeless() { EXIT_DO_NOT_RESTART } else { 1 }
        }
    }
}

/// An error and what caused it.
fn in_full(error: &error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Doesn't return if it works; if it doesn't, the run is only slower.
fn start_again_with_one_thread() {
    if let Ok(program) = std::env::current_exe() {
        let _ = Command::new(program).args(std::env::args_os().skip(1)).env(THREADS_VARIABLE, "1").exec();
    }
}

/// Standard output, whose loss must not hurt the training.
struct Console;

impl train::Console for Console {
    fn say(&mut self, line: &str) {
        let _ = writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    }
}
