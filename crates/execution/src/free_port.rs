//! Ports for servers that start later. From Linux's own range (32768 to 60999, `ip_local_port_range`) the kernel may give such a port
//! to any connection that a program opens meanwhile. A program that tries to reach the server may even be connected to itself.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::Range;

/// How many ports are tried; then the kernel chooses.
const TRIES_MAX: u32 = 64;

/// Holds a free port of an address, chosen at random from a range.
pub(crate) fn hold(ip: IpAddr, ports: &Range<u16>) -> io::Result<TcpListener> {
    let held = (0..TRIES_MAX).find_map(|_| TcpListener::bind((ip, any(ports))).ok());
    held.map_or_else(|| TcpListener::bind((ip, 0)), Ok)
}

fn any(ports: &Range<u16>) -> u16 {
    let offset = RandomState::new().hash_one(ports.start) % u64::try_from(ports.len()).expect("there are few ports");
    ports.start + u16::try_from(offset).expect("it is one of the ports")
}
