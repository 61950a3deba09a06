//! Files that users write, parsed and checked: job files and the control plane's configuration.
//!
//! Both formats are defined here, at the border; the results are the core's own types. Every refusal
//! names the place and the defect. All input has limits. Pure: the caller reads the files.

pub mod config;
pub mod cron;
pub mod jobfile;
