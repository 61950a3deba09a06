//! Settings for S3, which are those of AWS's own tools: variables of the environment, and the files of the home folder.

use std::collections::BTreeMap;

/// Returns the settings for S3 in the environment.
pub(crate) fn settings() -> BTreeMap<String, String> {
    // Other variables may hold bytes that aren't text.
    let texts =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| name.starts_with("AWS_") || name == "HOME").collect()
}
