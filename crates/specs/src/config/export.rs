//! The tables `[remote_write]` and `[otlp]`: where measurements of ranks, nodes and GPUs are sent as well, by Prometheus' remote write or
//! by OpenTelemetry's protocol, and the traces of jobs by the latter. And `[remote_read]`: where they are read.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The most labels and the most headers of a site's own.
const LABELS_MAX: usize = 16;
const HEADERS_MAX: usize = 16;
/// The longest value of a header.
const HEADER_BYTES_MAX: usize = 1_024;
/// Headers that requests have by themselves, in small letters, and the beginning of others.
const OWN_HEADERS: [&str; 5] = ["authorization", "content-", "host", "transfer-encoding", "x-prometheus-remote-write-"];
/// Labels that measurements have by themselves.
const OWN: [&str; 8] = ["__name__", "job_id", "attempt", "metric", "node", "rank", "gpu", "part"];
/// Attributes that all of OpenTelemetry's requests have by themselves.
const OWN_OF_OTLP: [&str; 1] = ["service.name"];

/// Where something is sent as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The receiver's URL.
    pub url: String,
    /// The file with the bearer token, or with the user's password; a relative path starts at the configuration's folder.
    pub token_file: Option<String>,
    /// Who sends, by basic authentication.
    pub user: Option<String>,
    /// Headers of all requests, such as the one that names a tenant.
    pub headers: BTreeMap<String, String>,
    /// Labels that everything gets.
    pub labels: BTreeMap<String, String>,
}

/// What is sent by OpenTelemetry's protocol, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// The receiver; its URL is the one below which `/v1/metrics` and `/v1/traces` are.
    pub receiver: Receiver,
    /// Whether measurements are sent.
    pub metrics: bool,
    /// Whether traces of jobs are sent.
    pub traces: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtlpV1 {
    url: String,
    token_file: Option<String>,
    user: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default = "yes")]
    metrics: bool,
    #[serde(default = "yes")]
    traces: bool,
}

fn yes() -> bool {
    true
}

impl OtlpV1 {
    /// Returns what to send where; an error says which value is invalid.
    pub(super) fn read(self) -> Result<Otlp, String> {
        let OtlpV1 { url, token_file, user, headers, labels, metrics, traces } = self;
        if !metrics && !traces {
            return Err("neither metrics nor traces are to be sent: leave the table out".to_owned());
        }
        let names = Names { own: &OWN_OF_OTLP, is_sound: is_attribute, letters: "letters, digits, ., _ and -" };
        let receiver = ReceiverV1 { url, token_file, user, headers, labels }.read(&names)?;
        if ["/v1/metrics", "/v1/traces"].iter().any(|end| receiver.url.ends_with(end)) {
            return Err("url ends before /v1: paths for metrics and traces are added".to_owned());
        }
        Ok(Otlp { receiver, metrics, traces })
    }
}

/// How labels may be named.
struct Names {
    /// These mean something already.
    own: &'static [&'static str],
    is_sound: fn(&str) -> bool,
    /// What names are made of, for messages.
    letters: &'static str,
}

/// Reports whether a label is named as OpenTelemetry names attributes.
fn is_attribute(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphabetic()) && name.chars().all(is_letter)
}

/// Reports whether a label is named as Prometheus allows it.
fn is_label(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    name.starts_with(is_letter) && name.chars().all(|letter| is_letter(letter) || letter.is_ascii_digit())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceiverV1 {
    url: String,
    token_file: Option<String>,
    user: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl ReceiverV1 {
    /// Returns the receiver of remote write; an error says which value is invalid.
    pub(super) fn of_remote_write(self) -> Result<Receiver, String> {
        self.read(&Names { own: &OWN, is_sound: is_label, letters: "letters, digits and _" })
    }

    /// Returns the server that answers queries in the place of the series store, which has what remote write sent; an error says
    /// which value is invalid.
    pub(super) fn of_remote_read(self, sent: Option<&Receiver>) -> Result<Receiver, String> {
        if !self.labels.is_empty() {
            return Err("labels are those of [remote_write]: leave them out here".to_owned());
        }
        let sent = sent.ok_or("what is read was sent by [remote_write], which isn't there")?;
        let read = self.of_remote_write()?;
        if read.url.contains("/api/v1") {
            return Err("url ends before /api/v1: paths of queries are added".to_owned());
        }
        Ok(Receiver { labels: sent.labels.clone(), ..read })
    }

    /// Returns a receiver whose labels have names of this form.
    fn read(self, names: &Names) -> Result<Receiver, String> {
        let ReceiverV1 { url, token_file, user, headers, labels } = self;
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
        if user.is_some() && token_file.is_none() {
            return Err("a user has a password: name its file by token_file".to_owned());
        }
        if user
            .as_ref()
            .is_some_and(|user| user.is_empty() || user.contains(|letter: char| letter == ':' || letter.is_control()))
        {
            return Err("user: a name has letters, and no colon".to_owned());
        }
        check_headers(&headers)?;
        if labels.len() > LABELS_MAX {
            return Err(format!("more than {LABELS_MAX} labels"));
        }
        match labels.keys().find(|name| !(names.is_sound)(name) || names.own.contains(&name.as_str())) {
            Some(name) => Err(format!("labels: \"{name}\" is taken, or no name of {}", names.letters)),
            None => Ok(Receiver { url, token_file, user, headers, labels }),
        }
    }
}

/// Refuses headers that no request can have, or that all have by themselves. Their values are in the configuration, so they are no secrets.
fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), String> {
    if headers.len() > HEADERS_MAX {
        return Err(format!("more than {HEADERS_MAX} headers"));
    }
    let is_own = |name: &str| {
        let name = name.to_ascii_lowercase();
        OWN_HEADERS.iter().any(|own| if own.ends_with('-') { name.starts_with(own) } else { name == *own })
    };
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let is_value =
        |value: &str| value.len() <= HEADER_BYTES_MAX && value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match headers.iter().find(|(name, value)| !is_name(name) || is_own(name) || !is_value(value)) {
        Some((name, _)) if is_own(name) => {
            Err(format!("headers: \"{name}\" is sent by itself; a token or a password goes into token_file"))
        }
        Some((name, value)) => Err(format!("headers: \"{name}\" = \"{value}\" can't be sent in a request")),
        None => Ok(()),
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
    fn opentelemetrys_receiver_gets_both_unless_one_is_left_out() {
        let read =
            |lines: &str| Config::parse(&format!("[otlp]\n{lines}")).map(|config| config.otlp.expect("it has one"));
        let both =
            read("url = 'http://localhost:4318'\nlabels = { 'deployment.environment' = 'prod' }").expect("sound");
        assert!(both.metrics && both.traces && both.receiver.labels.contains_key("deployment.environment"));
        assert!(!read("url = 'http://localhost:4318'\ntraces = false").expect("sound").traces);
        for (lines, part) in [
            ("url = 'http://localhost:4318/v1/traces'", "url ends before /v1"),
            ("url = 'http://localhost:4318'\ntraces = false\nmetrics = false", "leave the table out"),
            ("url = 'http://localhost:4318'\nlabels = { 'service.name' = 'x' }", "\"service.name\" is taken"),
            ("url = 'http://collector:4318'\ntoken_file = 't'", "without TLS"),
        ] {
            let error = read(lines).expect_err(lines).to_string();
            assert!(error.starts_with("otlp: ") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_was_sent_is_read_by_the_labels_that_it_was_sent_with() {
        let sent = "[remote_write]\nurl = 'http://localhost:9090/api/v1/write'\nlabels = { cluster = 'a' }\n";
        let read = |sent: &str, lines: &str| {
            Config::parse(&format!("{sent}[remote_read]\n{lines}")).map(|config| config.remote_read)
        };
        let server = read(sent, "url = 'http://localhost:9090'").expect("a sound file").expect("it has one");
        assert_eq!((server.url.as_str(), server.labels["cluster"].as_str()), ("http://localhost:9090", "a"));
        for (sent, lines, part) in [
            ("", "url = 'http://localhost:9090'", "sent by [remote_write]"),
            (sent, "url = 'http://localhost:9090'\nlabels = { a = 'b' }", "leave them out"),
            (sent, "url = 'http://localhost:9090/api/v1/query'", "ends before /api/v1"),
            (sent, "url = 'localhost'", "http or https"),
        ] {
            let error = read(sent, lines).expect_err(lines).to_string();
            assert!(error.starts_with("remote_read: ") && error.contains(part), "{error}");
        }
    }

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
        let grafana =
            read("url = 'https://a.example/push'\nuser = '1234'\ntoken_file = 't'\nheaders = { X-Scope-OrgID = 'ml' }");
        let grafana = grafana.expect("a sound file").expect("it has one");
        assert_eq!((grafana.user.as_deref(), grafana.headers["X-Scope-OrgID"].as_str()), (Some("1234"), "ml"));
        refused("url = 'http://mimir/'\nuser = 'a'", "name its file by token_file");
        refused("url = 'http://localhost/'\nuser = 'a:b'\ntoken_file = 't'", "no colon");
        refused("url = 'http://mimir/'\nheaders = { authorization = 'x' }", "is sent by itself");
        refused("url = 'http://mimir/'\nheaders = { Content-Type = 'x' }", "is sent by itself");
        refused("url = 'http://mimir/'\nheaders = { 'a b' = 'x' }", "can't be sent");
        refused("url = 'http://mimir/'\nheaders = { a = \"x\\ny\" }", "can't be sent");
        refused("url = 'mimir'", "http or https URL");
        refused("url = 'http://a:b@mimir/'", "use token_file");
        refused("url = 'http://mimir/'\ntoken_file = 't'", "without TLS");
        refused("url = 'http://localhost.example/'\ntoken_file = 't'", "without TLS");
        refused("url = 'http://mimir/'\nlabels = { node = 'x' }", "\"node\" is taken");
        refused("url = 'http://mimir/'\nlabels = { '1a' = 'x' }", "\"1a\" is taken");
    }
}
