//! Health checks: of a node by itself (`node/`), and of the network between the nodes of a gang (`network/`).
//!
//! Both return [`Finding`]s, which `gangline doctor` prints and the supervisor acts on.

mod finding;
pub mod network;
pub mod node;

pub(crate) use finding::Reason;
pub use finding::{Finding, Verdict};
