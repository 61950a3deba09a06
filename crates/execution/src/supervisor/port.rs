//! The port at which the ranks of a gang meet.

use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use crate::free_port;
use crate::protocol::Rendezvous;

/// The ports that are tried first. Until rank 0 listens, nobody holds the port.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

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
    let listener = free_port::hold(ip, &PORTS)?;
    let port = listener.local_addr()?.port();
    Ok((listener, Rendezvous { address: address.to_owned(), port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_of_a_node_meet_at_different_ports_that_the_kernel_gives_to_no_connection() {
        let reserved: Vec<_> = (0..200).map(|_| reserve_port("127.0.0.1").expect("there are free ports")).collect();
        let mut ports: Vec<u16> = reserved.iter().map(|(_, rendezvous)| rendezvous.port).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 200, "each is held");
        assert!(
            ports.iter().any(|port| port - PORTS.start > 1_000),
            "chosen at random, so that two nodes' gangs rarely agree"
        );
        assert!(reserve_port("no.such.host.invalid").is_err());
    }
}
