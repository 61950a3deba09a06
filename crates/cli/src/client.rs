//! The command line's client of the API. It has no privileges beyond those of the token.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_api as api;
use gangline_base::with_causes;
use gangline_execution::endpoint::{
    CERTIFICATE_FILE, ENDPOINT_FILE, SOCKET_FILE, Way, WayError, agent, certificates, is_untrusted, url,
};
use gangline_execution::files::read_bounded;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Global;
use crate::failure::Failure;
use crate::retry::{KEY_HEADER, Loss, Unanswered, request_key, until_answered};

/// Maximum time of a request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(40);
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 1_024;

/// Hint for a control plane that isn't trusted.
const TRUST: &str =
    "certificate.pem in the control plane's data folder is what to trust: give it with --certificate FILE";
/// Hint for an impostor in the control plane's place.
const IMPOSTOR: &str = "nothing was sent to it; start the control plane again as the owner of its data folder";
/// Hint for a control plane that isn't running.
const START: &str = "is \"gangline up\" running? Jobs that run go on without it";

/// A connection to a control plane.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    url: String,
    /// Address of the control plane, for messages.
    place: String,
    token: String,
    /// Hint if somebody else answers there.
    distrust: &'static str,
}

impl Client {
    /// Connects to the control plane of the options, the environment, or the data folder.
    ///
    /// A control plane found through the folder must prove to own it. A given URL is trusted as it is, except
    /// that `https` verifies the certificate.
    pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
        let folder = data_folder(global)?;
        let given = match (&global.url, &global.certificate) {
            (Some(url), _) => Some(url.trim_end_matches('/').to_owned()),
            (None, Some(_)) => Some(url(&folder).map_err(|error| never_ran(&folder, ENDPOINT_FILE, &error))?),
            (None, None) => None,
        };
        let token = token(global, &folder)?;
        let Some(url) = given else { return Client::of_folder(&folder, token) };
        refuse_in_the_clear(&url)?;
        let certificates = match &global.certificate {
            Some(file) => Some(read_bounded(file).map_err(|error| untrusted(file, &error))?),
            None if url.starts_with("https://") => {
                Some(certificates(&folder).map_err(|error| untrusted(&folder.join(CERTIFICATE_FILE), &error))?)
            }
            None => None,
        };
        let made = agent(REQUEST_TIME_MAX, certificates.as_deref());
        let agent = made.map_err(|error| Failure::local(format!("the certificates for {url}: {error}"), TRUST))?;
        Ok(Client { agent, place: url.clone(), url, token, distrust: TRUST })
    }

    /// Connects to the control plane that proves to own this data folder.
    pub(crate) fn of_folder(folder: &Path, token: String) -> Result<Client, Failure> {
        let way = Way::find(folder, REQUEST_TIME_MAX).map_err(|error| no_way(folder, &error))?;
        let place = if way.is_socket() { folder.join(SOCKET_FILE).display().to_string() } else { way.url.clone() };
        let distrust = if way.is_socket() { IMPOSTOR } else { TRUST };
        Ok(Client { agent: way.agent, url: way.url, place, token, distrust })
    }

    /// Sends a GET request below `/api/v1`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.agent.get(self.full(path)).header("authorization", self.bearer());
        self.read(request.call())
    }

    /// Sends a POST request below `/api/v1`: a change, which is made once; if its answer is lost the request
    /// is repeated.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let key = request_key()?;
        until_answered(|| {
            let request = self.agent.post(self.full(path)).header("authorization", self.bearer());
            let sent = request.header(KEY_HEADER, &key).send_json(body);
            let loss = sent.as_ref().err().map_or(Loss::Lost, Loss::of);
            let (status, text) = self.receive(sent).map_err(|failure| Unanswered::new(failure, loss))?;
            self.decode(status, &text).map_err(|failure| {
                let loss = Loss::by_answer(&failure);
                Unanswered::new(failure, loss)
            })
        })
    }

    /// Asks MLflow's API, whose paths are below `/api/2.0/mlflow`, and whose errors look otherwise.
    pub(crate) fn track<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let request = self.agent.post(self.tracked(path)).header("authorization", self.bearer());
        self.read_tracked(request.send_json(body))
    }

    /// Reads something by MLflow's API.
    pub(crate) fn tracked_by<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Result<T, Failure> {
        let request = self.agent.get(self.tracked(path)).query_pairs(query.iter().copied());
        self.read_tracked(request.header("authorization", self.bearer()).call())
    }

    /// Deletes something by MLflow's API.
    pub(crate) fn untrack<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        let request = self.agent.delete(self.tracked(path)).header("authorization", self.bearer());
        self.read_tracked(request.force_send_body().send_json(body))
    }

    fn tracked(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.url)
    }

    fn read_tracked<T: DeserializeOwned>(
        &self,
        sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        #[derive(serde::Deserialize)]
        struct Refused {
            message: String,
        }
        let (status, text) = self.receive(sent)?;
        match serde_json::from_str::<Refused>(&text) {
            Ok(Refused { message }) if status >= 400 => {
                Err(Failure::coded("G0332", message, "docs/guides/tracking.md says how filters are written"))
            }
            _ => self.decode(status, &text),
        }
    }

    /// Returns one job.
    pub(crate) fn job(&self, id: &str) -> Result<api::Job, Failure> {
        self.get(&format!("/jobs/{}", path_segment(id)))
    }

    fn full(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.url)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn read<T: DeserializeOwned>(
        &self,
        outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let (status, text) = self.receive(outcome)?;
        self.decode(status, &text)
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::Unreachable {
            message: format!("the control plane at {} can't be reached: {error}", self.place),
            hint: START.to_owned(),
        }
    }

    /// Returns the status and the whole body.
    fn receive(
        &self,
        outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(u16, String), Failure> {
        let mut response = outcome.map_err(|error| {
            if !is_untrusted(&error) {
                return self.unreachable(&error);
            }
            Failure::Untrusted {
                message: format!("what answers at {} isn't the control plane that is trusted: {error}", self.place),
                hint: self.distrust.to_owned(),
            }
        })?;
        let status = response.status().as_u16();
        let reader = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = reader.read_to_string().map_err(|error| self.unreachable(&error))?;
        Ok((status, text))
    }

    fn decode<T: DeserializeOwned>(&self, status: u16, text: &str) -> Result<T, Failure> {
        if (200..300).contains(&status) {
            return serde_json::from_str(text).map_err(|error| Failure::Unreachable {
                message: format!("{} answered with something else than this gangline expects: {error}", self.place),
                hint: "use the same version of gangline on both sides".to_owned(),
            });
        }
        match serde_json::from_str::<api::ErrorBody>(text) {
            Ok(body) => Err(Failure::Api { status, detail: body.error, file: None }),
            Err(_) => Err(self.unreachable(&format!("HTTP status {status} from something that isn't gangline"))),
        }
    }
}

/// Returns the users' token: the given one, or the data folder's.
fn token(global: &Global, folder: &Path) -> Result<String, Failure> {
    if global.token.is_some() {
        let message = "refused to take a token from the command line: every user of this machine can read it there";
        let hint = "put it into a file and say --token-file FILE, or into the variable GANGLINE_TOKEN; and replace it \
                    with gangline token rotate if others use this machine";
        return Err(Failure::coded("G0512", message, hint));
    }
    if let Some(given) = given_token(global)? {
        return Ok(given);
    }
    let own =
        read_bounded(&folder.join(api::TOKEN_FILE)).map_err(|error| never_ran(folder, api::TOKEN_FILE, &error))?;
    checked_token(own)
}

/// Returns the token that the options or the environment give.
pub(crate) fn given_token(global: &Global) -> Result<Option<String>, Failure> {
    let given = match &global.token_file {
        Some(file) => {
            let unreadable =
                |error| Failure::local(format!("the token in {} can't be read: {error}", file.display()), "");
            Some(read_bounded(file).map_err(unreadable)?)
        }
        None => std::env::var_os("GANGLINE_TOKEN").map(std::ffi::OsString::into_encoded_bytes),
    };
    given.filter(|bytes| !bytes.is_empty()).map(checked_token).transpose()
}

fn checked_token(bytes: Vec<u8>) -> Result<String, Failure> {
    let text = String::from_utf8(bytes).unwrap_or_default().trim().to_owned();
    let is_token =
        !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_token {
        Ok(text)
    } else {
        Err(Failure::local("what is given as the token isn't one", "it is a line of digits"))
    }
}

/// Refuses to send a token over a network without TLS. No control plane listens there without TLS either.
pub(crate) fn refuse_in_the_clear(url: &str) -> Result<(), Failure> {
    let Some(rest) = url.strip_prefix("http://") else { return Ok(()) };
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')).map_or(host, |(host, _)| host);
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    if host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback()) {
        return Ok(());
    }
    Err(Failure::Untrusted {
        message: format!("refused to send the token to {host} in the clear"),
        hint: format!("write https://{rest}: beyond loopback a control plane speaks TLS only"),
    })
}

fn never_ran(folder: &Path, file: &str, error: &std::io::Error) -> Failure {
    let (path, folder) = (folder.join(file), folder.display());
    Failure::Unreachable {
        message: format!("no control plane has run in {folder}: {}: {error}", path.display()),
        hint: "start it with \"gangline up\", or name its folder with --data".to_owned(),
    }
}

fn no_way(folder: &Path, error: &WayError) -> Failure {
    let message = format!("failed to {}", with_causes(error));
    match error {
        error if error.is_impostor() => Failure::Untrusted { message, hint: IMPOSTOR.to_owned() },
        WayError::Unreadable { path, source } => {
            never_ran(folder, &path.file_name().unwrap_or_default().to_string_lossy(), source)
        }
        WayError::Certificates { .. } => Failure::local(message, TRUST),
        _ => Failure::Unreachable { message, hint: START.to_owned() },
    }
}

fn untrusted(file: &Path, error: &std::io::Error) -> Failure {
    Failure::local(format!("{} can't be read: {error}", file.display()), TRUST)
}

/// Encodes a user's text as one segment of a path.
pub(crate) fn path_segment(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Returns the data folder that the options and the environment name.
pub(crate) fn data_folder(global: &Global) -> Result<PathBuf, Failure> {
    if let Some(folder) = &global.data {
        return Ok(folder.clone());
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("XDG_DATA_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("gangline"))
        .ok_or_else(|| Failure::local("no data folder: neither --data nor HOME is set", "give --data DIR"))
}

/// Returns the absolute form of a path that may not exist yet.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::local(format!("{}: {error}", path.display()), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_crosses_no_network_in_the_clear() {
        for url in ["http://127.0.0.1:7878", "http://localhost", "http://[::1]:1", "http://[::1]", "https://head:7878"]
        {
            refuse_in_the_clear(url).expect(url);
        }
        for url in ["http://head:7878", "http://10.0.0.1", "http://[fd00::1]:1", "http://localhost.evil:1", "http://"] {
            refuse_in_the_clear(url).expect_err(url);
        }
    }
}
