//! A ring all-reduce of 32-bit floats over TCP: n - 1 steps of reduce-scatter, n - 1 of all-gather (Patarasuk
//! and Yuan 2009), with sums that are checked.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::wire::{Opening, open, take};

/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();
/// Period of the numbers' pattern.
const PATTERN: usize = 7;

/// A rank's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RingFigures {
    /// Duration of each round in seconds.
    pub(super) seconds: Vec<f64>,
    /// Whether all sums are right.
    pub(super) is_right: bool,
}

/// A rank's place in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) place: usize,
    pub(super) count: usize,
    pub(super) next: SocketAddr,
    pub(super) phase: u32,
}

/// Returns nccl-tests' bus bandwidth of an all-reduce of `bytes` among `ranks` in `seconds`, in bytes a
/// second.
#[must_use]
pub fn bus_bandwidth(bytes: u64, ranks: u32, seconds: f64) -> f64 {
    let ranks = f64::from(ranks.max(1));
    2.0 * (ranks - 1.0) / ranks * bytes as f64 / seconds
}

/// Takes part in the ring, in the given place, for this many rounds.
pub(super) fn run(listener: &TcpListener, place: &Place, bytes: u64, rounds: u32) -> io::Result<RingFigures> {
    // The next rank's kernel accepts this connection before that rank asks for it.
    let next = open(place.next, &Opening { phase: place.phase, stream: 0 })?;
    let previous = take(listener, place.phase, 1)?.remove(0);
    let mut ring = Ring { place: place.place, count: place.count, next, previous };
    let numbers = usize::try_from(bytes).unwrap_or(usize::MAX) / NUMBER / place.count * place.count;
    let mut figures = RingFigures { seconds: Vec::new(), is_right: true };
    for _ in 0..rounds {
        let mut parts = numbers_of(place.place, numbers.max(place.count), place.count);
        // One unmeasured round: all ranks begin together.
        ring.all_reduce(&mut numbers_of(place.place, place.count, place.count))?;
        let started = Instant::now();
        ring.all_reduce(&mut parts)?;
        figures.seconds.push(started.elapsed().as_secs_f64());
        figures.is_right &= is_sum(&parts, place.count);
    }
    Ok(figures)
}

struct Ring {
    place: usize,
    count: usize,
    next: TcpStream,
    previous: TcpStream,
}

impl Ring {
    /// Makes each part the sum of all ranks' parts.
    fn all_reduce(&mut self, parts: &mut [Vec<u8>]) -> io::Result<()> {
        let part = |back: usize| (self.place + 2 * self.count - back) % self.count;
        let steps = self.count - 1;
        let adding = (0..steps).map(|step| (part(step), part(step + 1), true));
        let handing = (0..steps).map(|step| (part(self.count - 1 + step), part(self.count + step), false));
        for (sent, received, is_added) in adding.chain(handing).collect::<Vec<_>>() {
            self.step(parts, (sent, received), is_added)?;
        }
        Ok(())
    }

    /// Sends one part while receiving another.
    fn step(&mut self, parts: &mut [Vec<u8>], (sent, received): (usize, usize), is_added: bool) -> io::Result<()> {
        let mut taken = vec![0; parts[received].len()];
        let (next, previous, outgoing) = (&mut self.next, &mut self.previous, &parts[sent]);
        thread::scope(|scope| {
            let sender = scope.spawn(|| next.write_all(outgoing));
            let read = previous.read_exact(&mut taken);
            sender.join().expect("a sender doesn't panic").and(read)
        })?;
        if is_added {
            add(&mut parts[received], &taken);
        } else {
            parts[received] = taken;
        }
        Ok(())
    }
}

fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.as_chunks_mut::<NUMBER>().0.iter_mut().zip(from.as_chunks::<NUMBER>().0) {
        *to = (f32::from_le_bytes(*to) + f32::from_le_bytes(*from)).to_le_bytes();
    }
}

/// Returns a rank's input: small whole numbers, whose sums are exact.
fn numbers_of(place: usize, numbers: usize, parts: usize) -> Vec<Vec<u8>> {
    let number = |index: usize| small(place + index % PATTERN).to_le_bytes();
    let part = |part: usize| (part * (numbers / parts)..(part + 1) * (numbers / parts)).flat_map(number).collect();
    (0..parts).map(part).collect()
}

/// Reports whether these are the sums over this many ranks.
fn is_sum(parts: &[Vec<u8>], count: usize) -> bool {
    let expected: Vec<[u8; NUMBER]> =
        (0..PATTERN).map(|index| small(count * (count - 1) / 2 + count * index).to_le_bytes()).collect();
    let numbers = parts.iter().flat_map(|part| part.as_chunks::<NUMBER>().0);
    numbers.zip((0..PATTERN).cycle()).all(|(number, index)| *number == expected[index])
}

/// Converts a number of at most the members' number squared, which is exact as a float.
fn small(number: usize) -> f32 {
    u32::try_from(number).map_or(f32::NAN, |number| number as f32)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ring_of(count: usize, bytes: u64) -> Vec<RingFigures> {
        let listeners: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        let addresses: Vec<SocketAddr> =
            listeners.iter().map(|listener| listener.local_addr().expect("an address")).collect();
        thread::scope(|scope| {
            let start = |place: usize| {
                let at = Place { place, count, next: addresses[(place + 1) % count], phase: 3 };
                let listener = &listeners[place];
                scope.spawn(move || run(listener, &at, bytes, 2))
            };
            let threads: Vec<_> = (0..count).map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic").expect("it runs")).collect()
        })
    }

    #[test]
    fn sums_are_right_for_any_number_of_ranks() {
        for count in 2..=5 {
            for figures in ring_of(count, 1 << 20) {
                assert!(figures.is_right && figures.seconds.len() == 2, "{count}: {figures:?}");
            }
        }
    }

    #[test]
    fn wrong_sums_are_seen() {
        let mut parts = numbers_of(0, 14, 2);
        add(&mut parts[0], &numbers_of(1, 14, 2)[0]);
        assert!(!is_sum(&parts, 2), "the second part isn't added up");
        add(&mut parts[1], &numbers_of(1, 14, 2)[1]);
        assert!(is_sum(&parts, 2));
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        assert!((bus_bandwidth(1_000, 4, 2.0) - 750.0).abs() < 1e-9);
        assert!(bus_bandwidth(1_000, 1, 2.0).abs() < 1e-9);
    }
}
