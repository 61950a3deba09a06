//! Rank 0: gathers the gang, orders the measurements of pairs and then of the ring, and makes the report. A
//! rank that doesn't answer is left out from then on, and reported.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::ring::{RingFigures, bus_bandwidth};
use super::rounds::rounds;
use super::wire::{Done, Hello, Order, VERSION, accept_until, receive, send};
use super::{Member, NetworkError, NetworkReport, NodeReport, PairFigures, PairReport, RingReport, judge};

/// Maximum time for one order; waits on silent connections end sooner.
const ORDER_MAX: Duration = Duration::from_secs(120);
/// Maximum time until a new connection introduces itself.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// With at most this many rounds of pairs, each is measured twice.
const ROUNDS_TWICE_MAX: usize = 8;
/// Target for the total time of the all-reduce's rounds, and their maximum number.
const RING_SECONDS: f64 = 3.0;
const RING_ROUNDS_MAX: u32 = 9;

/// Listens where the ranks will look for it: like rank 0 of a framework, on all addresses unless the address
/// is loopback.
pub(super) fn listen((host, port): &(String, u16)) -> Result<TcpListener, NetworkError> {
    let bind = || {
        let address = (host.as_str(), *port).to_socket_addrs()?.next();
        let ip = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
        let all = match ip {
            ip if ip.is_loopback() => ip,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        TcpListener::bind((all, *port))
    };
    bind().map_err(|source| NetworkError::Listen { address: format!("{host}:{port}"), source })
}

/// A rank that has connected.
struct Guest {
    stream: TcpStream,
    /// Address at which it accepts connections of other ranks.
    address: SocketAddr,
    hello: Hello,
    is_alive: bool,
}

/// Measures the gang.
pub(super) fn lead(listener: &TcpListener, member: &Member) -> Result<NetworkReport, NetworkError> {
    let mut gang = Gang { guests: gather(listener, member)?, phase: 0 };
    let chosen = gang.chosen(&member.chosen);
    let pairs = gang.measure_pairs(&chosen);
    let ring = gang.measure_ring(&chosen, member.bytes.0);
    gang.dismiss();
    let nodes: Vec<NodeReport> = gang
        .guests
        .into_iter()
        .enumerate()
        .filter(|(at, _)| chosen.contains(at))
        .map(|(_, guest)| guest.report())
        .collect();
    let (ring, ring_error) = match ring {
        Ok(ring) => (ring, None),
        Err(error) => (None, Some(error)),
    };
    let findings = judge::findings(&nodes, &pairs, ring.as_ref(), ring_error.as_deref());
    Ok(NetworkReport { nodes, pairs, ring, findings })
}

/// Waits for every rank.
fn gather(listener: &TcpListener, member: &Member) -> Result<Vec<Guest>, NetworkError> {
    let ends_at = Instant::now() + member.patience;
    let mut guests: BTreeMap<u32, Guest> = BTreeMap::new();
    let count = member.count;
    while guests.len() < usize::try_from(count).unwrap_or(usize::MAX) {
        match accept_until(listener, ends_at) {
            // A connection that isn't of this gang is closed.
            Ok((stream, from)) => guests.extend(welcome(stream, from, member).map(|guest| (guest.hello.rank, guest))),
            Err(_) if Instant::now() < ends_at => {}
            Err(_) => {
                let missing = (0..count).filter(|rank| !guests.contains_key(rank)).collect();
                return Err(NetworkError::Missing { count, missing, waited: member.patience });
            }
        }
    }
    Ok(guests.into_values().collect())
}

fn welcome(mut stream: TcpStream, from: SocketAddr, member: &Member) -> Option<Guest> {
    stream.set_read_timeout(Some(HELLO_MAX)).ok()?;
    let hello: Hello = receive(&mut stream).ok()?;
    if hello.version != VERSION || hello.run != member.run || hello.rank >= member.count {
        return None;
    }
    stream.set_read_timeout(Some(ORDER_MAX)).ok()?;
    Some(Guest { stream, address: SocketAddr::new(from.ip(), hello.port), hello, is_alive: true })
}

impl Guest {
    fn report(self) -> NodeReport {
        let Hello { rank, node, findings, .. } = self.hello;
        NodeReport { rank, node, address: self.address.ip(), findings }
    }

    fn order(&mut self, order: &Order) {
        self.is_alive &= send(&mut self.stream, order).is_ok();
    }

    fn answer(&mut self) -> Done {
        if !self.is_alive {
            return Done::Failed("it is gone".to_owned());
        }
        receive(&mut self.stream).unwrap_or_else(|error: io::Error| {
            self.is_alive = false;
            Done::Failed(format!("it doesn't answer: {error}"))
        })
    }
}

struct Gang {
    guests: Vec<Guest>,
    /// Number of the last measurement.
    phase: u32,
}

impl Gang {
    /// Returns the indices of the named nodes; all if no names are given. A gang has one rank for each node,
    /// so indices are ranks.
    fn chosen(&self, names: &[String]) -> Vec<usize> {
        let is_chosen = |guest: &Guest| names.is_empty() || names.contains(&guest.hello.node);
        (0..self.guests.len()).filter(|at| is_chosen(&self.guests[*at])).collect()
    }

    fn next_phase(&mut self) -> u32 {
        self.phase += 1;
        self.phase
    }

    /// Measures all rounds; for a small gang twice, and the better figure counts, so that momentary noise
    /// makes no node slow.
    fn measure_pairs(&mut self, chosen: &[usize]) -> Vec<PairReport> {
        let place = |at: u32| usize::try_from(at).map_or(0, |at| chosen[at]);
        let rounds = rounds(u32::try_from(chosen.len()).unwrap_or(0));
        let passes = if rounds.len() <= ROUNDS_TWICE_MAX { 2 } else { 1 };
        let mut pairs: BTreeMap<(u32, u32), PairReport> = BTreeMap::new();
        for round in std::iter::repeat_n(&rounds, passes).flatten() {
            let round: Vec<(usize, usize)> = round.iter().map(|(one, other)| (place(*one), place(*other))).collect();
            for report in self.measure_round(&round) {
                let better = match pairs.remove(&(report.from, report.to)) {
                    Some(earlier) => better(earlier, report),
                    None => report,
                };
                pairs.insert((better.from, better.to), better);
            }
        }
        pairs.into_values().collect()
    }

    /// Measures all pairs of a round at once.
    fn measure_round(&mut self, round: &[(usize, usize)]) -> Vec<PairReport> {
        let alive =
            |gang: &Gang, (one, other): (usize, usize)| gang.guests[one].is_alive && gang.guests[other].is_alive;
        let (able, gone): (Vec<_>, Vec<_>) = round.iter().copied().partition(|pair| alive(self, *pair));
        for (from, to) in &able {
            let (phase, with) = (self.next_phase(), self.guests[*to].address);
            self.guests[*to].order(&Order::Serve { phase });
            self.guests[*from].order(&Order::Measure { phase, with });
        }
        let measured = able.into_iter().map(|(from, to)| (from, to, self.measured(from, to))).collect::<Vec<_>>();
        let gone = gone.into_iter().map(|(from, to)| (from, to, Err("one of them is gone".to_owned())));
        let rank = |at: usize| self.guests[at].hello.rank;
        let report = |(from, to, figures): (usize, usize, Result<PairFigures, String>)| PairReport {
            from: rank(from),
            to: rank(to),
            error: figures.as_ref().err().cloned(),
            figures: figures.ok(),
        };
        measured.into_iter().chain(gone).map(report).collect()
    }

    fn measured(&mut self, from: usize, to: usize) -> Result<PairFigures, String> {
        let (measured, served) = (self.guests[from].answer(), self.guests[to].answer());
        match (measured, served) {
            (Done::Measured(figures), _) => Ok(figures),
            (Done::Failed(error), _) => Err(error),
            _ => Err("it answered something else".to_owned()),
        }
    }

    /// Measures the all-reduce of the remaining ranks: one round to estimate its duration, then as many as
    /// fit the time.
    fn measure_ring(&mut self, chosen: &[usize], bytes: u64) -> Result<Option<RingReport>, String> {
        let members: Vec<usize> = chosen.iter().copied().filter(|at| self.guests[*at].is_alive).collect();
        if members.len() < 2 {
            return Ok(None);
        }
        let first = self.ring_rounds(&members, bytes, 1)?;
        let rounds = (2..=RING_ROUNDS_MAX).rev().find(|rounds| f64::from(*rounds) * first[0] <= RING_SECONDS);
        let mut seconds = match rounds {
            Some(rounds) => self.ring_rounds(&members, bytes, rounds)?,
            None => first,
        };
        seconds.sort_by(f64::total_cmp);
        let ranks = u32::try_from(members.len()).unwrap_or(u32::MAX);
        let median = seconds[seconds.len() / 2];
        Ok(Some(RingReport {
            ranks,
            bytes,
            seconds: median,
            bus_bytes_per_second: bus_bandwidth(bytes, ranks, median),
            rounds: u32::try_from(seconds.len()).unwrap_or(u32::MAX),
        }))
    }

    /// Returns the duration of each round in seconds, as its slowest rank saw it.
    fn ring_rounds(&mut self, members: &[usize], bytes: u64, rounds: u32) -> Result<Vec<f64>, String> {
        let phase = self.next_phase();
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        for (place, member) in (0..).zip(members) {
            let after = members[(usize::try_from(place).unwrap_or(0) + 1) % members.len()];
            let next = self.guests[after].address;
            self.guests[*member].order(&Order::Ring { phase, place, count, next, bytes, rounds });
        }
        let mut slowest = Vec::new();
        let mut failed = None;
        for member in members {
            let node = self.guests[*member].hello.node.clone();
            match self.guests[*member].answer() {
                Done::Ring(RingFigures { seconds, is_right: true }) => slowest = slower(&slowest, &seconds),
                Done::Ring(_) => failed = Some(format!("{node} got wrong sums")),
                Done::Failed(error) => failed = failed.or(Some(format!("{node}: {error}"))),
                _ => failed = Some(format!("{node} answered something else")),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if slowest.is_empty() => Err("no round was measured".to_owned()),
            None => Ok(slowest),
        }
    }

    fn dismiss(&mut self) {
        for guest in &mut self.guests {
            guest.order(&Order::Over);
        }
    }
}

/// Returns the better of two measurements of a pair; a failure takes precedence over a figure.
fn better(one: PairReport, other: PairReport) -> PairReport {
    let (Some(first), Some(second)) = (one.figures, other.figures) else {
        return if one.figures.is_none() { one } else { other };
    };
    let (quicker, slower) =
        if first.latency_micros <= second.latency_micros { (first, second) } else { (second, first) };
    let figures = PairFigures {
        forward_bytes_per_second: quicker.forward_bytes_per_second.max(slower.forward_bytes_per_second),
        backward_bytes_per_second: quicker.backward_bytes_per_second.max(slower.backward_bytes_per_second),
        ..quicker
    };
    PairReport { figures: Some(figures), ..one }
}

/// Returns the longer duration of each round; for the first rank, its own.
fn slower(so_far: &[f64], seconds: &[f64]) -> Vec<f64> {
    let longest = |(round, seconds): (usize, &f64)| so_far.get(round).map_or(*seconds, |so_far| so_far.max(*seconds));
    seconds.iter().enumerate().map(longest).collect()
}
