//! The address on which `up` listens, and the name by which others reach it. Beyond loopback only with TLS,
//! since tokens and job files cross the network there.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use clap::Args;
use gangline_base::with_causes;
use gangline_server::tls::Tls;
use gangline_specs::config::{Config, TlsFiles};

use crate::configuration::beside;
use crate::failure::Failure;

/// The default address.
const LISTEN: &str = "127.0.0.1:7878";

/// Where to listen.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ListenArgs {
    /// Address and port to listen on, beyond loopback with TLS; port 0 for any free one [default: the configuration's, or 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<String>,
    /// Beyond loopback: the host's name or address by which other machines reach it [default: the configuration's, the
    /// address it listens on, or this host's name]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// A certificate to show, with those that signed it in the same file (PEM) [default: the configuration's, or one of its own making]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Where to listen, and under which name.
#[derive(Clone, Debug)]
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    /// Whether the port is the default rather than a requested one.
    pub(crate) is_default: bool,
    /// The host by which it is reached.
    host: String,
    pub(crate) tls: Option<Tls>,
}

impl Listening {
    /// Returns what options and configuration request. The configuration was read from the file at `path`.
    ///
    /// # Errors
    /// G0503 for an invalid address or name, G0506 for a certificate that can't be used.
    pub(crate) fn choose(
        folder: &Path,
        config: &Config,
        path: Option<&Path>,
        args: &ListenArgs,
    ) -> Result<Listening, Failure> {
        let asked_for = args.listen.as_deref().or(config.listen.as_deref());
        let (address, is_default) = (address(asked_for.unwrap_or(LISTEN))?, asked_for.is_none());
        let advertised = args.advertise.clone().or_else(|| config.advertise.clone());
        let files = files(config.tls.as_ref(), path, args);
        let is_open = !address.ip().is_loopback();
        if !is_open && files.is_none() {
            if args.advertise.is_some() {
                let message = format!("--advertise is for other machines, and {address} is reached from this one only");
                return Err(Failure::coded("G0503", message, "add --listen 0.0.0.0:7878"));
            }
            return Ok(Listening { address, is_default, host: address.ip().to_string(), tls: None });
        }
        let this_host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let found = || if address.ip().is_unspecified() { this_host() } else { address.ip().to_string() };
        let host = advertised.unwrap_or_else(found);
        if (host.as_str(), address.port()).to_socket_addrs().is_err() {
            let message = format!("other machines are to reach this one as \"{host}\", but nobody knows that name");
            return Err(Failure::coded("G0503", message, "name it as they do: --advertise HOST, or its address"));
        }
        let made = match files {
            Some((certificate, key)) => Tls::of_files(&certificate, &key, std::slice::from_ref(&host)),
            None => Tls::own(folder, &own_names(&host, address.ip())),
        };
        let tls = made.map_err(|error| {
            let hint = "give the certificate, then those that signed it, in one file, and a key that fits; or neither: it \
                        makes a certificate that supervisors and the command line trust";
            let message = format!("refused to listen on {address}: {}", with_causes(&error));
            Failure::coded("G0506", message, hint)
        })?;
        Ok(Listening { address, is_default, host, tls: Some(tls) })
    }

    /// Returns the same with TLS; makes a certificate if there is none yet. Without TLS a port proves
    /// nothing.
    ///
    /// # Errors
    /// G0506 if the certificate can't be made.
    pub(crate) fn with_tls(self, folder: &Path) -> Result<Listening, Failure> {
        if self.tls.is_some() {
            return Ok(self);
        }
        let made = Tls::own(folder, &own_names(&self.host, self.address.ip()));
        let tls = made.map_err(|error| {
            let message = format!("refused to listen on {}: {}", self.address, with_causes(&error));
            Failure::coded("G0506", message, "give access to the data folder")
        })?;
        Ok(Listening { tls: Some(tls), ..self })
    }

    /// Returns its URL, once its port is known.
    pub(crate) fn url(&self, port: u16) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("{scheme}://[{address}]:{port}"),
            _ => format!("{scheme}://{}:{port}", self.host),
        }
    }

    /// Returns the names besides loopback's that requests may use for it.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let own = (!self.address.ip().is_unspecified()).then(|| self.address.ip().to_string());
        if self.tls.is_some() { own.into_iter().chain([self.host.clone()]).collect() } else { Vec::new() }
    }
}

/// Returns the names for its own certificate; loopback's are included since tunnels end there.
fn own_names(host: &str, address: IpAddr) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1", host].map(str::to_owned).into();
    if !address.is_unspecified() {
        names.push(address.to_string());
    }
    names.sort();
    names.dedup();
    names
}

fn address(text: &str) -> Result<SocketAddr, Failure> {
    let found = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| {
        Failure::coded("G0503", format!("\"{text}\" is not an address and port"), "write it as 127.0.0.1:7878")
    })
}

/// Returns the certificate's and the key's files, if there are any.
fn files(config: Option<&TlsFiles>, path: Option<&Path>, args: &ListenArgs) -> Option<(PathBuf, PathBuf)> {
    if let (Some(certificate), Some(key)) = (&args.tls_certificate, &args.tls_key) {
        return Some((certificate.clone(), key.clone()));
    }
    let (TlsFiles { certificate, key }, path) = (config?, path?);
    Some((beside(path, certificate), beside(path, key)))
}
