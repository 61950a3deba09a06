//! The whole product: control plane, supervisors, ranks and command line as a user has them.

mod bad_input;
mod commands;
mod demo;
mod disk;
mod equivalence;
mod faults;
mod kills;
mod nodes;
mod page;
mod partition;
mod preemption;
mod sweeps;
mod tls;

/// Options of tinygpt for a small job.
const SMALL: &str = "--width 16 --layers 1 --heads 2 --context 16 --batch 2 --corpus-bytes-max 200000 --log-every 10";

/// A job file that trains with tinygpt.
fn training(options: &str, slots: u32, folder: &str) -> String {
    let program = crate::fixtures::gangline();
    format!(
        "name: tiny\nqueue: research\nresources: {{accelerators: \"cpu:{slots}\"}}\n\
         run: exec '{}' tinygpt {SMALL} {options}\ncheckpoint: {{path: \"{folder}\", grace: 5s}}\n",
        program.display()
    )
}
