//! Settings for S3, which are those of AWS's own tools: variables of the environment, and the files of the home folder.

use std::collections::BTreeMap;

/// Returns the settings for S3 in the environment.
pub(crate) fn settings() -> BTreeMap<String, String> {
    // Other variables may hold bytes that aren't text.
    let texts =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| name.starts_with("AWS_") || name == "HOME").collect()
}

/// Returns the same, and the folder in which a job's requests are noted, and what its archives hold.
pub(crate) fn noted_settings() -> BTreeMap<String, String> {
    let folder = std::env::var_os(gangline_data::READS_VARIABLE).and_then(|folder| folder.into_string().ok());
    settings().into_iter().chain(folder.map(|folder| (gangline_data::READS_VARIABLE.to_owned(), folder))).collect()
}
