//! The control plane: journal, read models, HTTP API and page.

pub mod db;
pub mod jobfile;
