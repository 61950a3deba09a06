//! Objects in S3, or in a store that speaks its protocol, through the `object_store` crate; behind the
//! feature `s3`.
//!
//! That crate is asynchronous and this one is not, so each bucket has a small runtime of its own, driven by
//! its caller; a bucket must not be used from within another runtime. An object is put whole, by one request
//! with a SHA-256 of its body, so no part of it can be lost or flipped on the way.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use gangline_base::Timestamp;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::multipart::{MultipartStore as _, PartId};
use object_store::path::Path;
use object_store::signer::Signer as _;
use object_store::{
    ClientConfigKey, ClientOptions, GetOptions, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, PutPayload,
    RetryConfig, UpdateVersion,
};
use reqwest::Method;
use tokio::runtime::Runtime;

use crate::remote::{OBJECTS_MAX, append};
use crate::requests::Kind;
use crate::{Error, Fault, Meter, Object, Part, Remote, Source, State, Tag, aws};

/// The longest that one request may take: 64 MiB at less than 2 Mbit/s are given up, and tried again.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(300);
/// The longest that connecting may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a signed request to delete an object is valid; afterwards the server refuses it.
const SIGNATURE_TIME: Duration = Duration::from_secs(60);

/// A bucket, and a prefix in it.
pub(crate) struct Bucket {
    /// None only while this is dropped.
    runtime: Option<Runtime>,
    store: AmazonS3,
    /// Sends requests whose signature expires.
    client: Option<reqwest::Client>,
    prefix: Path,
    meter: Arc<Meter>,
}

impl Bucket {
    /// Opens `s3://bucket/prefix` without looking at it. Settings are named as in the environment of AWS's
    /// own tools (`AWS_REGION`, `AWS_ENDPOINT_URL`, ...) and completed from the files of these tools; unknown
    /// ones are ignored.
    pub(crate) fn open(url: &str, settings: &BTreeMap<String, String>, meter: Meter) -> Result<Bucket, Error> {
        let refused = |why: String| Error::Address { url: url.to_owned(), why };
        let place = url.strip_prefix("s3://").ok_or_else(|| refused("write s3://bucket/prefix".to_owned()))?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.is_empty() {
            return Err(refused("write s3://bucket/prefix: the bucket is missing".to_owned()));
        }
        let settings = &aws::completed(settings).map_err(refused)?;
        // Another part of the program may have chosen already, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The link above retries: a failure is returned at once.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let client = ClientOptions::new().with_timeout(REQUEST_TIME_MAX).with_connect_timeout(CONNECT_TIME_MAX);
        let meter = Arc::new(meter);
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_http_connector(Metering(Arc::clone(&meter)))
            .with_retry(retry)
            .with_checksum_algorithm(Checksum::SHA256);
        for (name, value) in settings {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        let store = builder.with_bucket_name(bucket).build().map_err(|error| refused(error.to_string()))?;
        let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|error| refused(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refused(format!("its runtime can't be started: {error}")))?;
        Ok(Bucket { runtime: Some(runtime), store, client: plain_client(settings), prefix, meter })
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it is there until the drop").block_on(future)
    }

    fn path(&self, key: &str) -> Path {
        // A prefix of nothing is no part.
        let parts = self.prefix.parts().map(|part| part.as_ref().to_owned()).collect::<Vec<_>>();
        Path::from_iter(parts.into_iter().chain(key.split('/').filter(|part| !part.is_empty()).map(str::to_owned)))
    }
}

impl Drop for Bucket {
    /// Waits for nothing: a runtime that is dropped within another one would.
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Sorts an error by what helps: an unknown one may pass. Its text alone is kept, since it includes that of
/// its sources.
fn fault(error: object_store::Error) -> Fault {
    use object_store::Error as E;
    let text = error.to_string();
    match error {
        // Of listings the crate tells no more than the server's own text.
        _ if text.contains("NoSuchBucket") => no_bucket(&text),
        E::NotFound { .. } => Fault::Missing,
        E::Generic { .. } | E::JoinError { .. } if !is_refusal(&text) => Fault::Passing(text.into()),
        _ => Fault::Lasting(text.into()),
    }
}

/// Whether a server rejected the request (4xx), except for time-outs and too many requests. For listings the
/// crate says so only in its text; if that text ever changes, they are retried for some seconds first.
fn is_refusal(text: &str) -> bool {
    let code = text.split_once("status code: ").map_or("", |(_, rest)| rest.get(..3).unwrap_or(rest));
    code.starts_with('4') && !["408", "429"].contains(&code)
}

/// Returns the fault of a put or a listing, which finds nothing only if the bucket is missing.
fn bucket_fault(error: object_store::Error) -> Fault {
    match error {
        object_store::Error::NotFound { .. } => no_bucket(&error.to_string()),
        error => fault(error),
    }
}

fn no_bucket(text: &str) -> Fault {
    Fault::Lasting(format!("there is no such bucket: {text}").into())
}

impl Remote for Bucket {
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Fault> {
        let payload = PutPayload::from(bytes.to_vec());
        self.block_on(self.store.put(&self.path(key), payload)).map(drop).map_err(bucket_fault)
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = self.block_on(self.store.get_range(&self.path(key), range)).map_err(fault)?;
        Ok(bytes.to_vec())
    }

    fn get_of(&self, key: &str, range: Range<u64>, mark: &Tag, into: &mut Vec<u8>) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        let most = range.end - range.start;
        let options = GetOptions { if_match: Some(mark.0.clone()), range: Some(range.into()), ..GetOptions::default() };
        self.block_on(async {
            let answer = match self.store.get_opts(&self.path(key), options).await {
                Err(object_store::Error::Precondition { .. }) => return Err(Fault::Changed),
                answer => answer.map_err(fault)?,
            };
            // Some servers ignore the condition.
            if answer.meta.e_tag.as_ref().is_some_and(|tag| *tag != mark.0) {
                return Err(Fault::Changed);
            }
            let mut body = answer.into_stream();
            while let Some(more) = body.try_next().await.map_err(fault)? {
                self.meter.receive(more.len());
                append(into, &more, most)?;
            }
            Ok(())
        })
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>, Fault> {
        let within = self.path(prefix);
        let mut objects = Vec::new();
        self.block_on(async {
            let mut listing = self.store.list(Some(&within));
            while let Some(found) = listing.try_next().await.map_err(bucket_fault)? {
                if objects.len() == OBJECTS_MAX {
                    return Err(Fault::Lasting("there are more objects than can be listed".into()));
                }
                let nanos = found.last_modified.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
                let name = found.location.filename().unwrap_or_default();
                objects.push(Object {
                    key: format!("{prefix}{name}"),
                    bytes: found.size,
                    modified: Timestamp::from_unix_nanos(nanos.unwrap_or(0)),
                    tag: found.e_tag.map(Tag),
                });
            }
            Ok(())
        })?;
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn delete(&self, key: &str) -> Result<(), Fault> {
        match self.block_on(self.store.delete(&self.path(key))) {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            deleted => deleted.map_err(fault),
        }
    }

    fn state(&self, key: &str) -> Result<Option<State>, Fault> {
        match self.block_on(self.store.head(&self.path(key))) {
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(fault(error)),
            Ok(ObjectMeta { e_tag, size, .. }) => Ok(Some(State { tag: Tag(e_tag.ok_or_else(no_tag)?), bytes: size })),
        }
    }

    fn put_if(&self, key: &str, bytes: &[u8], tag: Option<&Tag>) -> Result<Option<Tag>, Fault> {
        use object_store::Error as E;
        let mode = tag.map_or(PutMode::Create, |tag| {
            PutMode::Update(UpdateVersion { e_tag: Some(tag.0.clone()), version: None })
        });
        let payload = PutPayload::from(bytes.to_vec());
        match self.block_on(self.store.put_opts(&self.path(key), payload, mode.into())) {
            Ok(put) => Ok(Some(Tag(put.e_tag.ok_or_else(no_tag)?))),
            Err(E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. }) => Ok(None),
            Err(error) if is_unknown(&error) => Err(Fault::Unable(error.to_string().into())),
            Err(error) => Err(bucket_fault(error)),
        }
    }

    fn begin_parts(&self, key: &str) -> Result<String, Fault> {
        self.block_on(self.store.create_multipart(&self.path(key))).map_err(bucket_fault)
    }

    fn put_part(&self, key: &str, part: Part<'_>, bytes: &[u8]) -> Result<Tag, Fault> {
        let (path, upload) = (self.path(key), part.upload.to_owned());
        let payload = PutPayload::from(bytes.to_vec());
        let put = self.block_on(self.store.put_part(&path, &upload, part.number, payload));
        Ok(Tag(put.map_err(fault)?.content_id))
    }

    fn finish_parts(&self, key: &str, upload: &str, parts: &[Tag]) -> Result<(), Fault> {
        let parts = parts.iter().map(|tag| PartId { content_id: tag.0.clone() }).collect();
        let (path, upload) = (self.path(key), upload.to_owned());
        self.block_on(self.store.complete_multipart(&path, &upload, parts)).map(drop).map_err(fault)
    }

    fn abandon_parts(&self, key: &str, upload: &str) -> Result<(), Fault> {
        let (path, upload) = (self.path(key), upload.to_owned());
        self.block_on(self.store.abort_multipart(&path, &upload)).map_err(fault)
    }

    fn signed_url(&self, key: &str, lifetime: Duration) -> Result<String, Fault> {
        let signed = self.block_on(self.store.signed_url(Method::GET, &self.path(key), lifetime));
        Ok(signed.map_err(fault)?.to_string())
    }

    fn delete_if(&self, key: &str, may: &dyn Fn() -> bool) -> Result<bool, Fault> {
        let path = self.path(key);
        let signed = self.store.signed_url(Method::DELETE, &path, SIGNATURE_TIME);
        let url = self.client.as_ref().and_then(|_| self.block_on(signed).ok());
        let signed_at = Instant::now();
        if !may() {
            return Ok(false);
        }
        let (Some(url), Some(client)) = (url, &self.client) else { return self.delete(key).map(|()| true) };
        // The client needs the runtime from its first step on.
        self.meter.begin(Kind::Delete);
        let sent = self.block_on(async { client.delete(url).send().await });
        self.meter.end(Kind::Delete, sent.as_ref().ok().map(|answer| answer.status().as_u16()));
        // An address that is signed must not be shown.
        let status = sent.map_err(|error| Fault::Passing(error.without_url().into()))?.status();
        let said = || -> Source { format!("the server said {status}").into() };
        match status.as_u16() {
            200..300 | 404 => Ok(true),
            // It came too late.
            403 if signed_at.elapsed() >= SIGNATURE_TIME => Err(Fault::Passing(said())),
            408 | 429 | 500.. => Err(Fault::Passing(said())),
            _ => Err(Fault::Lasting(said())),
        }
    }

    fn meter(&self) -> Option<&Meter> {
        Some(&self.meter)
    }
}

/// Makes HTTP clients that count the requests they send.
#[derive(Debug)]
struct Metering(Arc<Meter>);

impl HttpConnector for Metering {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(MeteredClient { client, meter: Arc::clone(&self.0) }))
    }
}

/// An HTTP client below all retries: every request of the library passes it.
#[derive(Debug)]
struct MeteredClient {
    client: HttpClient,
    meter: Arc<Meter>,
}

impl HttpService for MeteredClient {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (kind, answer) = (billed_kind(&request), self.client.execute(request));
        Box::pin(async move {
            kind.into_iter().for_each(|kind| self.meter.begin(kind));
            let answer = answer.await;
            if let Some(kind) = kind {
                self.meter.end(kind, answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            }
            answer
        })
    }
}

/// Returns the kind of a request; none for requests for credentials.
fn billed_kind(request: &HttpRequest) -> Option<Kind> {
    // The addresses at which machines and containers of AWS get their credentials.
    if request.uri().host().is_some_and(|host| host.starts_with("169.254.") || host.starts_with("[fd00:")) {
        return None;
    }
    let query = request.uri().query().unwrap_or_default();
    match request.method().as_str() {
        "PUT" => Some(Kind::Put),
        "GET" if query.contains("list-type=") => Some(Kind::List),
        "GET" => Some(Kind::Get),
        "HEAD" => Some(Kind::Head),
        "DELETE" => Some(Kind::Delete),
        // The beginning and the end of an upload in parts.
        "POST" if query.contains("upload") => Some(Kind::Put),
        "POST" if query.starts_with("delete") => Some(Kind::Delete),
        _ => None,
    }
}

fn no_tag() -> Fault {
    Fault::Unable("the server tells no ETag".into())
}

/// Reports whether the server doesn't support conditional requests.
fn is_unknown(error: &object_store::Error) -> bool {
    let text = error.to_string();
    matches!(error, object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. })
        || ["400", "405", "501"].iter().any(|code| text.contains(&format!("status code: {code}")))
}

/// Returns a client for requests that are signed here; none if the settings configure a client, which it
/// would not follow.
fn plain_client(settings: &BTreeMap<String, String>) -> Option<reqwest::Client> {
    let key = |name: &String| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok();
    let is_special = |key| matches!(key, AmazonS3ConfigKey::Client(key) if key != ClientConfigKey::AllowHttp);
    if settings.keys().filter_map(key).any(is_special) {
        return None;
    }
    reqwest::Client::builder().timeout(SIGNATURE_TIME).connect_timeout(CONNECT_TIME_MAX).build().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;
    use crate::{Link, Policy, Requests};

    #[test]
    fn what_a_server_refuses_is_told_from_what_passes() {
        let check = |code: &str, is: bool| {
            assert_eq!(is_refusal(&format!("Server returned non-2xx status code: {code}")), is, "{code}");
        };
        check("403 Forbidden", true);
        check("404 Not Found", true);
        check("429 Too Many Requests", false);
        check("503 Slow Down", false);
        check("4", true);
        assert!(!is_refusal("connection reset by peer"));
    }

    /// A server that gives these answers, one a connection, and a link to a bucket on it that doesn't pause.
    fn served(answers: Vec<String>) -> (Link, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            for answer in answers {
                let mut stream = listener.accept().unwrap().0;
                let mut request = BufReader::new(&stream);
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    request.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                }
                request.read_exact(&mut vec![0; length]).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let settings = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let bucket = Bucket::open("s3://bucket/prefix", &settings, Meter::default()).unwrap();
        (Link::new(Box::new(bucket), Policy { bytes_per_second_max: None, first_pause: Duration::ZERO }), server)
    }

    fn answer(status: &str, headers: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n{body}")
    }

    #[test]
    fn a_request_that_is_refused_and_retried_is_counted_as_often_as_it_was_sent() {
        let refused = || answer("503 Slow Down", "", "");
        let (link, server) = served(vec![refused(), refused(), answer("200 OK", "ETag: \"1\"\r\n", "")]);
        link.put("packs/a", b"bytes").unwrap();
        server.join().unwrap();
        assert_eq!(link.requests(), Requests { put: 1, failed: 2, ..Requests::default() });
    }

    #[test]
    fn requests_that_fail_and_pages_of_a_listing_are_counted_by_kind() {
        let page = |next: &str| {
            let body = format!("<ListBucketResult>{next}</ListBucketResult>");
            answer("200 OK", "Content-Type: application/xml\r\n", &body)
        };
        let next = "<IsTruncated>true</IsTruncated><NextContinuationToken>2</NextContinuationToken>";
        let missing = || answer("404 Not Found", "", "");
        let (link, server) = served(vec![page(next), page(""), missing(), missing()]);
        assert_eq!(link.list("packs/").unwrap(), []);
        assert!(matches!(link.get("packs/a", 0..9), Err(Error::Missing { .. })));
        assert_eq!(link.state("packs/a").unwrap(), None);
        server.join().unwrap();
        assert_eq!(link.requests(), Requests { get: 1, list: 2, head: 1, ..Requests::default() });
    }

    #[test]
    fn an_address_without_a_bucket_is_refused() {
        for url in ["s3://", "s3:///x", "gopher://x"] {
            let refused = Bucket::open(url, &BTreeMap::new(), Meter::default()).map(drop);
            assert!(matches!(refused, Err(Error::Address { .. })), "{url}");
        }
    }
}
