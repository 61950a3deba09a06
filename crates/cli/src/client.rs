//! The command line's side of the API. It knows what anybody with the token knows, and nothing more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_control::secret::TOKEN_FILE;
use gangline_control::wire;
use gangline_execution::endpoint::{CERTIFICATE_FILE, ENDPOINT_FILE, agent, certificates, is_untrusted};
use gangline_execution::files::read_bounded;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Global;
use crate::failure::Failure;
use crate::retry::{KEY_HEADER, Loss, Unanswered, request_key, until_answered};

/// The longest one request may take.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(40);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What to do about a control plane that isn't trusted.
const TRUST: &str =
    "certificate.pem in the control plane's data folder is what to trust: give it with --certificate FILE";

/// A connection to a control plane.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
}

impl Client {
    /// Finds the control plane by the options, the environment, or the data folder.
    pub(crate) fn connect(global: &Global) -> Result<Client, Failure> {
        let folder = data_folder(global)?;
        let hint = || "start it with \"gangline up\", or name its folder with --data".to_owned();
        let from_folder = |file: &str| {
            let path = folder.join(file);
            std::fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|error| Failure::Unreachable {
                message: format!("no control plane has run in {}: {}: {error}", folder.display(), path.display()),
                hint: hint(),
            })
        };
        let url = global.url.clone().map_or_else(|| from_folder(ENDPOINT_FILE), Ok)?;
        let token = global.token.clone().map_or_else(|| from_folder(TOKEN_FILE), Ok)?;
        let certificates = match &global.certificate {
            Some(file) => read_bounded(file).map(Some).map_err(|error| untrusted(file, &error)),
            None => certificates(&folder.join(ENDPOINT_FILE), &url)
                .map_err(|error| untrusted(&folder.join(CERTIFICATE_FILE), &error)),
        };
        Client::new(&url, &token, certificates?.as_deref())
    }

    /// A client of the control plane at `url` that trusts these certificates.
    pub(crate) fn new(url: &str, token: &str, certificates: Option<&[u8]>) -> Result<Client, Failure> {
        let made = agent(REQUEST_TIME_MAX, certificates);
        let agent = made.map_err(|error| Failure::local(format!("the certificates for {url}: {error}"), TRUST))?;
        Ok(Client { agent, url: url.trim_end_matches('/').to_owned(), token: token.to_owned() })
    }

    /// GET below `/api/v1`.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let request = self.agent.get(self.full(path)).header("authorization", self.bearer());
        self.read(request.call())
    }

    /// POST below `/api/v1`: a change, which is made once. If its answer is lost it is sent again.
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

    /// One job.
    pub(crate) fn job(&self, id: &str) -> Result<wire::Job, Failure> {
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
            message: format!("the control plane at {} can't be reached: {error}", self.url),
            hint: "is \"gangline up\" running? Jobs that run go on without it".to_owned(),
        }
    }

    /// The status and the whole body.
    fn receive(
        &self,
        outcome: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(u16, String), Failure> {
        let mut response = outcome.map_err(|error| {
            if !is_untrusted(&error) {
                return self.unreachable(&error);
            }
            Failure::Unreachable {
                message: format!("what answers at {} isn't the control plane that is trusted: {error}", self.url),
                hint: TRUST.to_owned(),
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
                message: format!("{} answered with something else than this gangline expects: {error}", self.url),
                hint: "use the same version of gangline on both sides".to_owned(),
            });
        }
        match serde_json::from_str::<wire::ErrorBody>(text) {
            Ok(body) => Err(Failure::Api { status, detail: body.error, file: None }),
            Err(_) => Err(self.unreachable(&format!("HTTP status {status} from something that isn't gangline"))),
        }
    }
}

fn untrusted(file: &Path, error: &std::io::Error) -> Failure {
    Failure::local(format!("{} can't be read: {error}", file.display()), TRUST)
}

/// A user's text as one segment of a path.
pub(crate) fn path_segment(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// The data folder that the options and the environment name.
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

/// An absolute form of a path that may not exist yet.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::local(format!("{}: {error}", path.display()), ""))
}
