//! The whole product: control plane, supervisors, ranks and command line as a user has them.

mod artifacts;
mod bad_input;
mod commands;
mod containers;
mod data_folder;
mod demo;
mod disk;
mod doors;
mod environment;
mod equivalence;
mod faults;
mod fetching;
mod first_hour;
mod flood;
mod full_disk;
mod interactive;
mod kills;
mod nodes;
mod once;
mod page;
mod partition;
mod preemption;
mod remote_read;
mod remote_write;
mod retention;
mod series;
mod sweeps;
mod telemetry;
mod tls;
mod upgrade;
mod waiting;

/// A job file that trains with tinygpt.
fn training(options: &str, slots: u32, folder: &str) -> String {
    let shape = format!("queue: research\nresources: {{accelerators: \"cpu:{slots}\"}}");
    crate::fixtures::product::training(&shape, options, folder)
}
