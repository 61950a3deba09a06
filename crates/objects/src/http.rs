//! Objects behind HTTP or HTTPS, which are only read; behind the feature `s3`, which builds what it needs.
//!
//! A server has to say what state an object is in, by an ETag or the time of its last change, and to answer ranges, unless the
//! object is read whole. What a request's address has behind a `?`, such as a signature, is sent and never shown.

use std::ops::Range;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_MATCH, LAST_MODIFIED, RANGE,
};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};
use tokio::runtime::Runtime;

use crate::remote::append;
use crate::requests::Kind;
use crate::{Error, Fault, Meter, Object, Remote, State, Tag, shown};

/// The longest that one request may take: 64 MiB at less than 2 Mbit/s are given up, and tried again.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(300);
/// The longest that connecting may take, and that a server may be silent.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The most redirections of a request.
const REDIRECTIONS_MAX: usize = 5;

/// A folder of a server.
pub(crate) struct Site {
    runtime: Runtime,
    client: Client,
    folder: Url,
    meter: Meter,
}

impl Site {
    /// Opens `https://host/folder` without looking at it.
    pub(crate) fn open(url: &str, meter: Meter) -> Result<Site, Error> {
        let refused = |why: String| Error::Address { url: shown(url), why };
        let mut folder = Url::parse(url).map_err(|error| refused(error.to_string()))?;
        if !matches!(folder.scheme(), "http" | "https") || !folder.has_host() {
            return Err(refused("write https://host/folder".to_owned()));
        }
        folder.set_fragment(None);
        // Another part of the program may have chosen already, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .timeout(REQUEST_TIME_MAX)
            .connect_timeout(CONNECT_TIME_MAX)
            .read_timeout(SILENCE_MAX)
            .redirect(redirect::Policy::custom(redirection))
            .build()
            .map_err(|error| refused(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(format!("its runtime can't be started: {error}")))?;
        Ok(Site { runtime, client, folder, meter })
    }

    /// The address of an object; what is behind the folder's `?` is behind each.
    fn address(&self, key: &str) -> Result<Url, Fault> {
        let mut address = self.folder.clone();
        let mut parts = address.path_segments_mut().map_err(|()| Fault::Lasting("the address has no path".into()))?;
        parts.pop_if_empty().extend(key.split('/').filter(|part| !part.is_empty()));
        drop(parts);
        Ok(address)
    }

    /// Sends a request; its answer's status is one of success, or a fault.
    async fn send(&self, kind: Kind, key: &str, headers: HeaderMap) -> Result<Response, Fault> {
        let method = if kind == Kind::Head { Method::HEAD } else { Method::GET };
        let mut request = self.client.request(method, self.address(key)?).headers(headers);
        // Bytes are wanted as they lie.
        request = request.header(ACCEPT_ENCODING, "identity");
        self.meter.begin(kind);
        let answer = request.send().await;
        self.meter.end(kind, answer.as_ref().ok().map(|answer| answer.status().as_u16()));
        let answer = answer.map_err(passing)?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(Fault::Missing),
            StatusCode::PRECONDITION_FAILED => Err(Fault::Changed),
            status => {
                let said = format!("the server said {status}").into();
                let passes = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
                    || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS);
                Err(if passes { Fault::Passing(said) } else { Fault::Lasting(said) })
            }
        }
    }

    /// Reads a range; of an object in this state if one is said.
    async fn read(&self, key: &str, range: Range<u64>, mark: Option<&Tag>, into: &mut Vec<u8>) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        let bytes = format!("bytes={}-{}", range.start, range.end - 1);
        headers.insert(RANGE, bytes.parse().expect("digits are a header"));
        // Only a strong tag can be a condition.
        let strong = mark.filter(|mark| mark.0.starts_with('"')).and_then(|mark| mark.0.parse().ok());
        if let Some(tag) = strong {
            headers.insert(IF_MATCH, tag);
        }
        let answer = self.send(Kind::Get, key, headers).await?;
        let found = mark_of(&answer);
        if mark.is_some_and(|mark| found.is_some_and(|found| found != *mark)) {
            return Err(Fault::Changed);
        }
        let whole = length_of(&answer);
        let is_partial = answer.status() == StatusCode::PARTIAL_CONTENT;
        if is_partial && !starts_at(&answer, range.start) {
            return Err(Fault::Lasting("the server answers another range than the one asked for".into()));
        }
        if !is_partial && (range.start != 0 || whole != Some(range.end)) {
            let why =
                "the server ignores ranges: fetch the data to a disk, or serve it from a server that knows `Range`";
            return Err(Fault::Unable(why.into()));
        }
        self.body(answer, range.end - range.start, into).await
    }

    /// Reads a body of so many bytes at most.
    async fn body(&self, mut answer: Response, most: u64, into: &mut Vec<u8>) -> Result<(), Fault> {
        while let Some(more) = answer.chunk().await.map_err(passing)? {
            self.meter.receive(more.len());
            append(into, &more, most)?;
        }
        Ok(())
    }

    async fn look(&self, key: &str) -> Result<Option<State>, Fault> {
        let answer = match self.send(Kind::Head, key, HeaderMap::new()).await {
            Err(Fault::Missing) => return Ok(None),
            answer => answer?,
        };
        let tag = mark_of(&answer).ok_or_else(|| {
            let why = "the server says neither an ETag nor a time of the last change, so a change couldn't be noticed";
            Fault::Unable(why.into())
        })?;
        let bytes =
            length_of(&answer).ok_or_else(|| Fault::Unable("the server doesn't say the object's length".into()))?;
        Ok(Some(State { tag, bytes }))
    }
}

impl Remote for Site {
    fn put(&self, _: &str, _: &[u8]) -> Result<(), Fault> {
        Err(read_only())
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut bytes = Vec::new();
        self.runtime.block_on(self.read(key, range, None, &mut bytes)).map(|()| bytes)
    }

    fn get_of(&self, key: &str, range: Range<u64>, mark: &Tag, into: &mut Vec<u8>) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        self.runtime.block_on(self.read(key, range, Some(mark), into))
    }

    fn list(&self, _: &str) -> Result<Vec<Object>, Fault> {
        Err(Fault::Unable("HTTP has no listings: name the objects".into()))
    }

    fn delete(&self, _: &str) -> Result<(), Fault> {
        Err(read_only())
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        self.runtime.block_on(self.look(key))
    }

    fn put_if(&self, _: &str, _: &[u8], _: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        Err(read_only())
    }

    fn delete_if(&self, _: &str, _: &dyn Fn() -> bool) -> Result<bool, Fault> {
        Err(read_only())
    }

    fn meter(&self) -> Option<&Meter> {
        Some(&self.meter)
    }
}

/// Follows a redirection, but none that leaves TLS.
fn redirection(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let leaves_tls = attempt.url().scheme() != "https" && attempt.previous().iter().any(|url| url.scheme() == "https");
    if leaves_tls {
        return attempt.error("it redirects from HTTPS to HTTP");
    }
    if attempt.previous().len() > REDIRECTIONS_MAX { attempt.error("it redirects too often") } else { attempt.follow() }
}

/// An address may have a signature, and must not be shown.
fn passing(error: reqwest::Error) -> Fault {
    let is_lasting = error.is_redirect() || error.is_builder();
    let error = error.without_url();
    if is_lasting { Fault::Lasting(error.into()) } else { Fault::Passing(error.into()) }
}

fn read_only() -> Fault {
    Fault::Unable("objects behind HTTP are only read".into())
}

fn header<'a>(answer: &'a Response, name: &HeaderName) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// What tells an object's state: its ETag, or else when it was changed last.
fn mark_of(answer: &Response) -> Option<Tag> {
    header(answer, &ETAG).or_else(|| header(answer, &LAST_MODIFIED)).map(|mark| Tag(mark.to_owned()))
}

/// The object's length.
fn length_of(answer: &Response) -> Option<u64> {
    let whole = header(answer, &CONTENT_RANGE).and_then(|range| range.rsplit_once('/')).map(|(_, whole)| whole);
    whole.or_else(|| header(answer, &CONTENT_LENGTH))?.parse().ok()
}

fn starts_at(answer: &Response, start: u64) -> bool {
    let range = header(answer, &CONTENT_RANGE).and_then(|range| range.strip_prefix("bytes "));
    range.and_then(|range| range.split_once('-')).and_then(|(first, _)| first.parse().ok()) == Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_host_is_refused_and_no_signature_is_shown() {
        for url in ["https://", "ftp://host/x", "https:host?", "http:///x?secret"] {
            let refused = Site::open(url, Meter::default()).map(drop);
            let is_shown = refused.as_ref().is_err_and(|error| error.to_string().contains("secret"));
            assert!(!is_shown, "{url}");
        }
        assert!(matches!(Site::open("ftp://host/x", Meter::default()).map(drop), Err(Error::Address { .. })));
        assert_eq!(shown("https://me:word@host/a?b=c"), "https://host/a");
    }

    #[test]
    fn an_objects_address_keeps_what_is_behind_the_folders() {
        let site = Site::open("https://host/a%20b/?sig=1", Meter::default()).unwrap();
        assert_eq!(site.address("x y.bin").unwrap().as_str(), "https://host/a%20b/x%20y.bin?sig=1");
    }
}
