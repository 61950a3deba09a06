//! The port at which the ranks of a gang meet.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};

use crate::protocol::Rendezvous;

/// The ports that are tried first. Until rank 0 listens, nobody holds the port. From Linux's own range (32768 to 60999,
/// `ip_local_port_range`) the kernel may give it to any connection that a program opens meanwhile, even to one of the ranks
/// that look for rank 0, which then talks to itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// How many of them are tried; then the kernel chooses.
const TRIES_MAX: u32 = 64;

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
    let listener = (0..TRIES_MAX).find_map(|_| TcpListener::bind((ip, any_port())).ok());
    let listener = listener.map_or_else(|| TcpListener::bind((ip, 0)), Ok)?;
    let port = listener.local_addr()?.port();
    Ok((listener, Rendezvous { address: address.to_owned(), port }))
}

fn any_port() -> u16 {
    let random = RandomState::new().hash_one(PORTS.start);
    let offset = random % u64::try_from(PORTS.len()).expect("there are few ports");
    PORTS.start + u16::try_from(offset).expect("it is one of the ports")
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
