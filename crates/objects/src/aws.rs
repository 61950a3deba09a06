//! Settings for S3, read as AWS's own tools do: from the environment, then from `~/.aws/credentials` and
//! `~/.aws/config` with their profiles (the AWS SDKs and Tools Reference Guide, "Shared config and
//! credentials files"). The environment takes precedence over the files.
//!
//! Keys that a tool would have to fetch (single sign-on, a role, another program) are not fetched here: the
//! error names the command that puts them into the environment.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Settings that a profile may have, each with its name in the environment.
const SETTINGS: [(&str, &str); 5] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    ("aws_session_token", "AWS_SESSION_TOKEN"),
    ("region", "AWS_REGION"),
    ("endpoint_url", "AWS_ENDPOINT_URL"),
];
/// Settings of a profile whose keys have to be fetched.
const FETCHED: [&str; 5] = ["sso_session", "sso_start_url", "role_arn", "credential_process", "login_session"];
/// With any of these in the environment, a profile's keys are ignored.
const OWN_KEYS: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

type Profile = BTreeMap<String, String>;

/// Completes the settings of the environment with those of the profile.
///
/// # Errors
/// The defect of the profile, in words.
pub(crate) fn completed(environment: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, String> {
    let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].iter().find_map(|name| environment.get(*name));
    let name = named.map_or("default", String::as_str);
    let profile = profile(environment, name)?;
    if let (Some(name), true) = (named, profile.is_empty()) {
        return Err(format!(
            "there is no profile {name} in the files of AWS's tools (~/.aws/credentials, ~/.aws/config)"
        ));
    }
    let has_own_keys = OWN_KEYS.iter().any(|name| environment.contains_key(*name));
    let has_keys = has_own_keys || profile.contains_key("aws_access_key_id");
    if let Some(way) = FETCHED.iter().find(|way| !has_keys && profile.contains_key(**way)) {
        return Err(format!(
            "the keys of profile {name} have to be fetched ({way}), which isn't done here; put them into the environment first: \
             eval \"$(aws configure export-credentials --profile {name} --format env)\""
        ));
    }
    let mut settings = environment.clone();
    for (own, general) in SETTINGS {
        let is_key = own.starts_with("aws_");
        let is_said = is_key && has_own_keys || said(environment, general);
        if let Some(value) = profile.get(own).filter(|_| !is_said) {
            settings.insert(general.to_owned(), value.clone());
        }
    }
    if let Some(region) = environment.get("AWS_DEFAULT_REGION").filter(|_| !environment.contains_key("AWS_REGION")) {
        settings.insert("AWS_REGION".to_owned(), region.clone());
    }
    let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = endpoints.iter().find_map(|name| settings.get(*name)).cloned();
    if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")) {
        // An http:// address is intended.
        settings.entry("AWS_ALLOW_HTTP".to_owned()).or_insert_with(|| "true".to_owned());
    }
    Ok(settings)
}

/// Reports whether the environment has a setting, under any of its names.
fn said(environment: &BTreeMap<String, String>, name: &str) -> bool {
    let others: &[&str] = match name {
        "AWS_REGION" => &["AWS_DEFAULT_REGION"],
        "AWS_ENDPOINT_URL" => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"],
        _ => &[],
    };
    others.iter().chain([&name]).any(|name| environment.contains_key(*name))
}

/// Returns the settings of a profile from both files; the credentials file takes precedence.
fn profile(environment: &BTreeMap<String, String>, name: &str) -> Result<Profile, String> {
    let file = |variable: &str, standard: &str| {
        let home = || Some(Path::new(environment.get("HOME")?).join(".aws").join(standard));
        environment.get(variable).map(PathBuf::from).or_else(home)
    };
    let in_config = if name == "default" { "default".to_owned() } else { format!("profile {name}") };
    let mut found = Profile::new();
    for (path, section) in [
        (file("AWS_CONFIG_FILE", "config"), in_config.as_str()),
        (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name),
    ] {
        let Some(path) = path else { continue };
        let text = read(&path).map_err(|error| format!("failed to read {}: {error}", path.display()))?;
        found.extend(section_of(&text, section));
    }
    Ok(found)
}

/// Returns a file's text; empty if the file is missing.
fn read(path: &Path) -> io::Result<String> {
    match fs::metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        Err(error) => Err(error),
        Ok(found) if !found.is_file() || found.len() > FILE_BYTES_MAX => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file of at most 1 MiB"))
        }
        Ok(_) => fs::read_to_string(path),
    }
}

/// Returns the settings of a section. Lines that begin with a space belong to a nested setting, and are
/// skipped.
fn section_of(text: &str, wanted: &str) -> Profile {
    let mut is_in = false;
    let mut found = Profile::new();
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(name, _)| name) {
            is_in = name.split_whitespace().eq(wanted.split_whitespace());
        } else if is_in
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((key, value)) = trimmed.split_once('=')
        {
            found.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n# a comment\n[profile lab]\nregion=us-west-2\nendpoint_url = http://minio:9000\n\
                          s3 =\n    region = nowhere\n[profile office]\nsso_session = corp\nregion = eu-west-1\n";
    const CREDENTIALS: &str = "[default]\naws_access_key_id = A\naws_secret_access_key = a=b\n\n[lab]\naws_access_key_id=L\naws_secret_access_key=l\n";

    /// Returns the settings for S3, with these files and this environment.
    fn settings(environment: &[(&str, &str)]) -> Result<BTreeMap<String, String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let [config, credentials] = ["config", "credentials"].map(|name| folder.path().join(name));
        fs::write(&config, CONFIG).unwrap();
        fs::write(&credentials, CREDENTIALS).unwrap();
        let mut all: BTreeMap<String, String> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        all.insert("AWS_CONFIG_FILE".to_owned(), config.display().to_string());
        all.insert("AWS_SHARED_CREDENTIALS_FILE".to_owned(), credentials.display().to_string());
        completed(&all)
    }

    fn check(environment: &[(&str, &str)], expected: &[(&str, Option<&str>)]) {
        let found = settings(environment).unwrap();
        for (name, value) in expected {
            assert_eq!(found.get(*name).map(String::as_str), *value, "{name} with {environment:?}");
        }
    }

    #[test]
    fn what_the_environment_lacks_comes_from_the_profile() {
        check(
            &[],
            &[
                ("AWS_ACCESS_KEY_ID", Some("A")),
                ("AWS_SECRET_ACCESS_KEY", Some("a=b")),
                ("AWS_REGION", Some("eu-west-1")),
                ("AWS_ALLOW_HTTP", None),
            ],
        );
        check(
            &[("AWS_PROFILE", "lab")],
            &[
                ("AWS_ACCESS_KEY_ID", Some("L")),
                ("AWS_REGION", Some("us-west-2")),
                ("AWS_ENDPOINT_URL", Some("http://minio:9000")),
                ("AWS_ALLOW_HTTP", Some("true")),
            ],
        );
    }

    #[test]
    fn the_environment_counts_before_the_files() {
        check(
            &[("AWS_ACCESS_KEY_ID", "E"), ("AWS_DEFAULT_REGION", "x"), ("AWS_PROFILE", "lab")],
            &[
                ("AWS_ACCESS_KEY_ID", Some("E")),
                // A secret from elsewhere would match no key.
                ("AWS_SECRET_ACCESS_KEY", None),
                ("AWS_REGION", Some("x")),
            ],
        );
        check(
            &[("AWS_ENDPOINT", "https://s3"), ("AWS_PROFILE", "lab")],
            &[("AWS_ENDPOINT_URL", None), ("AWS_ALLOW_HTTP", None)],
        );
        check(
            &[("AWS_ENDPOINT_URL_S3", "http://s3"), ("AWS_ALLOW_HTTP", "false")],
            &[("AWS_ALLOW_HTTP", Some("false"))],
        );
    }

    #[test]
    fn a_profile_that_is_not_there_or_whose_keys_are_elsewhere_is_refused_with_what_to_do() {
        let missing = settings(&[("AWS_PROFILE", "nobody")]).unwrap_err();
        assert!(missing.contains("no profile nobody"), "{missing}");
        let fetched = settings(&[("AWS_PROFILE", "office")]).unwrap_err();
        assert!(
            fetched.contains("sso_session") && fetched.contains("export-credentials --profile office"),
            "{fetched}"
        );
        assert!(settings(&[("AWS_PROFILE", "office"), ("AWS_ACCESS_KEY_ID", "E")]).is_ok());
    }
}
