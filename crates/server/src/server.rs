//! Accepts connections at the TCP port and at the socket, each with limits of its own: a crowd at the port
//! doesn't keep the command line and this machine's supervisors from the socket.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, getrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::crowd::{Admission, Crowd, Limits, Peer};
use super::socket::Socket;
use super::{App, router, schedules};
use crate::tls::Tls;

/// The longest wait for pending requests at the end.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// Pause after a connection couldn't be accepted for lack of a resource.
const ACCEPT_RETRY: Duration = Duration::from_millis(20);
/// The largest head of a request, in bytes; also the most of a body that is read ahead.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The listeners of a control plane.
#[derive(Debug)]
pub struct Doors {
    /// The TCP port, for browsers and for clients that name the URL.
    pub tcp: TcpListener,
    /// TLS for the port, required beyond loopback.
    pub tls: Option<Tls>,
    /// The socket for the command line and for supervisors on this machine; none if the data folder can't
    /// hold one.
    pub socket: Option<Socket>,
}

/// Serves until `stop` is ready, then waits at most five seconds for pending requests.
///
/// # Errors
/// If the listener isn't a loopback one and there is no TLS.
pub async fn serve(doors: Doors, app: App, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    let address = doors.tcp.local_addr()?;
    if doors.tls.is_none() && !address.ip().is_loopback() {
        let message = format!("refused to serve {address}: beyond loopback TLS is needed");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let files_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let schedules = tokio::spawn(schedules::run(Arc::new(app.clone())));
    let router = TowerToHyperService::new(router(app));
    let (closing, closed) = watch::channel(false);
    let reception = |limits| Reception { router: router.clone(), closed: closed.clone(), crowd: Crowd::new(limits) };
    let tcp = reception(Limits::tcp(files_max)).receive(Door::Tcp(doors.tcp, doors.tls.as_ref().map(Tls::acceptor)));
    let local = reception(Limits::socket(files_max));
    let local = async {
        if let Some(socket) = doors.socket {
            local.receive(Door::Socket(socket)).await;
        }
    };
    let close = async {
        stop.await;
        // Fails only if no connection is served any more.
        let _ = closing.send(true);
    };
    tokio::join!(tcp, local, close);
    schedules.abort();
    Ok(())
}

enum Door {
    Tcp(TcpListener, Option<TlsAcceptor>),
    Socket(Socket),
}

enum Stream {
    Tcp(TcpStream, Option<TlsAcceptor>),
    Socket(UnixStream),
}

impl Door {
    /// Accepts the next connection; none if it was turned away.
    async fn accept(&self) -> io::Result<Option<(Stream, Peer)>> {
        match self {
            Door::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Some((Stream::Tcp(stream, tls.clone()), Peer::of(address.ip()))))
            }
            Door::Socket(socket) => Ok(socket.accept().await?.map(|stream| (Stream::Socket(stream), Peer::Here))),
        }
    }
}

/// Accepts and serves the connections of one listener.
struct Reception {
    router: TowerToHyperService<Router>,
    closed: watch::Receiver<bool>,
    crowd: Arc<Crowd>,
}

impl Reception {
    async fn receive(mut self, door: Door) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = door.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                _ = self.closed.changed() => break,
            };
            match accepted {
                Ok(Some((stream, peer))) => {
                    if let Some(admission) = self.crowd.admit(peer) {
                        connections.spawn(attend(stream, admission, self.router.clone(), self.closed.clone()));
                    }
                }
                Ok(None) => {}
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.crowd.make_room();
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
        drop(door);
        let goodbye = async { while connections.join_next().await.is_some() {} };
        // Dropping the set cuts off what takes longer.
        let _ = tokio::time::timeout(GOODBYE_MAX, goodbye).await;
    }
}

/// Reports whether an error concerns one connection only.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected,
    };
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected];
    kinds.contains(&error.kind())
}

/// Serves one connection until it ends or must go.
async fn attend(
    stream: Stream,
    admission: Arc<Admission>,
    router: TowerToHyperService<Router>,
    closed: watch::Receiver<bool>,
) {
    match stream {
        Stream::Tcp(stream, None) => attend_http(stream, admission, router, closed).await,
        Stream::Socket(stream) => attend_http(stream, admission, router, closed).await,
        Stream::Tcp(stream, Some(tls)) => {
            let shaken = tokio::select! {
                shaken = tls.accept(stream) => shaken,
                () = admission.outstayed() => return,
            };
            if let Ok(stream) = shaken {
                attend_http(stream, admission, router, closed).await;
            }
        }
    }
}

async fn attend_http<S>(
    stream: S,
    admission: Arc<Admission>,
    router: TowerToHyperService<Router>,
    mut closed: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(admission.clone());
        let (answer, admission) = (router.call(request), admission.clone());
        async move {
            let answer: Result<Response, Infallible> = answer.await;
            admission.rest();
            answer
        }
    });
    let mut http = http1::Builder::new();
    // The admission's time limits cover all phases, so hyper needs none.
    http.max_buf_size(HEAD_BYTES_MAX).header_read_timeout(None);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    loop {
        tokio::select! {
            // An error is the client's and ends this connection only.
            _ = connection.as_mut() => return,
            () = admission.outstayed() => return,
            _ = closed.changed() => connection.as_mut().graceful_shutdown(),
        }
    }
}
