//! The users' token, links to the page, and the configuration that is read again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The file in the data folder that holds the users' token. Clients send the token as a bearer.
pub const TOKEN_FILE: &str = "token";

/// A link to the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PageLink {
    /// To be put after the control plane's URL. It has a code that is good once.
    pub path: String,
    /// For how long.
    pub good_for_seconds: u64,
}

/// The configuration was read again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reloaded {
    /// The parts that are in force now and were not before, as the configuration file calls them.
    pub changed: Vec<String>,
    /// The parts that differ from those with which the control plane was started, and take a restart.
    pub needs_restart: Vec<String>,
}

/// The users' token was replaced: the one before is good no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRotated {
    /// The file of the data folder that has the new one.
    pub file: String,
}
