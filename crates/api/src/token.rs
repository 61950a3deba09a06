//! The users' token, and links to the page.

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

/// The users' token was replaced: the one before is good no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenRotated {
    /// The file of the data folder that has the new one.
    pub file: String,
}
