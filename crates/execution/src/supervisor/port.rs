//! The port at which the ranks of a gang meet.

use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use crate::protocol::Rendezvous;

/// Reserves a free port at the address by which the ranks find each other. Ranks listen on all interfaces, so
/// the port must be free on all of them, except for a loopback address.
pub(super) fn reserve_port(address: &str) -> io::Result<(TcpListener, Rendezvous)> {
    let resolved = (address, 0).to_socket_addrs()?.next();
    let is_loopback = resolved.is_some_and(|resolved| resolved.ip().is_loopback());
    let ip = match resolved {
        Some(resolved) if is_loopback => resolved.ip(),
        Some(resolved) if resolved.is_ipv6() => IpAddr::from([0_u16; 8]),
        _ => IpAddr::from([0_u8; 4]),
    };
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    Ok((listener, Rendezvous { address: address.to_owned(), port }))
}
