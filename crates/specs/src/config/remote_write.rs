//! The table `[remote_write]`: where measurements of ranks, nodes and GPUs are sent as well, by Prometheus' remote write.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The most labels of a site's own.
const LABELS_MAX: usize = 16;
/// Labels that measurements have by themselves.
const OWN: [&str; 7] = ["__name__", "job_id", "attempt", "node", "rank", "gpu", "part"];

/// Where measurements are sent as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteWrite {
    /// The receiver's URL.
    pub url: String,
    /// The file with the bearer token; a relative path starts at the configuration's folder.
    pub token_file: Option<String>,
    /// Labels that all series get.
    pub labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoteWriteV1 {
    url: String,
    token_file: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl RemoteWriteV1 {
    /// Returns where to send; an error says which value is invalid.
    pub(super) fn read(self) -> Result<RemoteWrite, String> {
        let RemoteWriteV1 { url, token_file, labels } = self;
        let has_host = ["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme));
        if !has_host || url.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
            return Err(format!("url = \"{url}\" has to be an http or https URL"));
        }
        if url.contains('@') {
            return Err("a password in the url would be shown in logs: use token_file".to_owned());
        }
        if token_file.is_some() && !url.starts_with("https://") && !is_here(&url) {
            return Err("a token isn't sent without TLS: use an https URL".to_owned());
        }
        if labels.len() > LABELS_MAX {
            return Err(format!("more than {LABELS_MAX} labels"));
        }
        let is_name = |name: &str| {
            let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
            name.starts_with(is_letter) && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
        };
        match labels.keys().find(|name| !is_name(name) || OWN.contains(&name.as_str())) {
            Some(name) => Err(format!("labels: \"{name}\" is taken, or no name of letters, digits and _")),
            None => Ok(RemoteWrite { url, token_file, labels }),
        }
    }
}

/// Reports whether a URL is of this machine.
fn is_here(url: &str) -> bool {
    let host = url.strip_prefix("http://").unwrap_or_default();
    ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|here| host.strip_prefix(here).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/'])))
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn a_receiver_is_read_and_what_would_fail_later_is_refused() {
        let read = |lines: &str| Config::parse(&format!("[remote_write]\n{lines}")).map(|config| config.remote_write);
        let full = "url = 'https://mimir.example/api/v1/push'\ntoken_file = 'push.token'\nlabels = { cluster = 'a' }";
        let receiver = read(full).expect("a sound file").expect("it has one");
        assert_eq!((receiver.labels["cluster"].as_str(), receiver.token_file.as_deref()), ("a", Some("push.token")));
        assert!(
            read("url = 'http://localhost:9090/api/v1/write'\ntoken_file = 't'").is_ok(),
            "no network is in between"
        );
        let refused = |lines: &str, part: &str| {
            let error = read(lines).expect_err(lines).to_string();
            assert!(error.starts_with("remote_write: ") && error.contains(part), "{error}");
        };
        refused("url = 'mimir'", "http or https URL");
        refused("url = 'http://a:b@mimir/'", "use token_file");
        refused("url = 'http://mimir/'\ntoken_file = 't'", "without TLS");
        refused("url = 'http://localhost.example/'\ntoken_file = 't'", "without TLS");
        refused("url = 'http://mimir/'\nlabels = { node = 'x' }", "\"node\" is taken");
        refused("url = 'http://mimir/'\nlabels = { '1a' = 'x' }", "\"1a\" is taken");
    }
}
