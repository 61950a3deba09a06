//! A rank of a gang that is measured: it introduces itself to rank 0, follows its orders, and reports the
//! results.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{CONNECT_MAX, Done, Hello, Order, VERSION, configure, receive, send};
use super::{Member, NetworkError, pair, ring};

/// Delay between two attempts to reach rank 0, which may start later.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Follows rank 0's orders to the end.
pub(super) fn follow(member: &Member) -> Result<(), NetworkError> {
    let (host, port) = &member.master;
    let failed = |doing| move |source| NetworkError::Master { doing, address: format!("{host}:{port}"), source };
    let mut master = connect(host, *port, member.patience).map_err(failed("reach"))?;
    let greet = || {
        let listener = TcpListener::bind((master.local_addr()?.ip(), 0))?;
        Ok((listener.local_addr()?.port(), listener))
    };
    let (port, listener) = greet().map_err(failed("listen beside"))?;
    let Member { rank, node, run, findings, .. } = member.clone();
    let hello = Hello { version: VERSION, run, rank, node, port, findings };
    send(&mut master, &hello).map_err(failed("greet"))?;
    // Other ranks are measured meanwhile.
    master.set_read_timeout(Some(member.patience)).map_err(failed("wait for"))?;
    loop {
        let order: Order = receive(&mut master).map_err(failed("take orders of"))?;
        if matches!(order, Order::Over) {
            return Ok(());
        }
        let done = obey(&listener, &order).unwrap_or_else(|error| Done::Failed(error.to_string()));
        send(&mut master, &done).map_err(failed("answer"))?;
    }
}

fn connect(host: &str, port: u16, patience: Duration) -> io::Result<TcpStream> {
    let ends_at = Instant::now() + patience;
    let connect = || {
        let address: Option<SocketAddr> = (host, port).to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
        TcpStream::connect_timeout(&address, CONNECT_MAX)
    };
    loop {
        match connect() {
            Ok(stream) => {
                configure(&stream)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() >= ends_at => return Err(error),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

fn obey(listener: &TcpListener, order: &Order) -> io::Result<Done> {
    match *order {
        Order::Measure { phase, with } => pair::measure(with, phase).map(Done::Measured),
        Order::Serve { phase } => pair::serve(listener, phase).map(|()| Done::Served),
        Order::Ring { phase, place, count, next, bytes, rounds } => {
            let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
            let place = ring::Place { place: size(place), count: size(count), next, phase };
            ring::run(listener, &place, bytes, rounds).map(Done::Ring)
        }
        Order::Over => Ok(Done::Served),
    }
}
