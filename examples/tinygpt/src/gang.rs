//! Averaging over the ranks by TCP: all send to rank 0, which adds in rank order and sends the mean back. The order is
//! fixed, so the result is the same bit for bit in every run.
//!
//! Every wait has a deadline: a peer that is gone or silent for longer is an error that names it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use gangline_base::Phase;

use crate::error::Error;

/// "gang" and a version, at the start of each message.
const MAGIC: u32 = 0x676e_6701;
/// Between two tries to reach, or to become, rank 0.
const TRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long a caller may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Callers that aren't of this gang's attempt are hung up on; after so many something is wrong.
const STRANGERS_MAX: u32 = 100;
const HELLO_BYTES: usize = 52;
const HEADER_BYTES: usize = 24;

/// What a rank brings to the meeting.
pub(crate) struct Meeting {
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) address: String,
    pub(crate) port: u16,
    /// Ranks of another attempt are strangers.
    pub(crate) attempt: u64,
    /// Of the options and the text: has to be the same on all ranks.
    pub(crate) fingerprint: [u8; 32],
    /// How long to wait for a peer, here and in every step.
    pub(crate) timeout: Duration,
}

/// This rank's connections to the others: of rank 0 to all, in rank order; of another to rank 0. Alone: none.
pub(crate) struct Gang {
    rank: u32,
    links: Vec<TcpStream>,
    bytes: Vec<u8>,
}

/// What the ranks agree on after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Agreement {
    pub(crate) step: u64,
    /// The mean loss.
    pub(crate) loss: f32,
    /// Whether any rank was asked to save and stop.
    pub(crate) is_stopping: bool,
}

impl Gang {
    /// A gang of one.
    pub(crate) fn alone() -> Self {
        Gang { rank: 0, links: Vec::new(), bytes: Vec::new() }
    }

    /// Waits until all ranks have met.
    pub(crate) fn meet(meeting: &Meeting) -> Result<Self, Error> {
        let links = if meeting.rank == 0 { meeting.receive_all()? } else { vec![meeting.call()?] };
        for link in &links {
            let prepared = link
                .set_nodelay(true)
                .and_then(|()| link.set_read_timeout(Some(meeting.timeout)))
                .and_then(|()| link.set_write_timeout(Some(meeting.timeout)));
            prepared.map_err(|source| meeting.failed(source))?;
        }
        Ok(Gang { rank: meeting.rank, links, bytes: Vec::new() })
    }

    /// Replaces `values` by their mean over the ranks, and agrees on the loss and on stopping. Tells `watch` whether it
    /// is waiting for a slower rank or moving bytes.
    pub(crate) fn average(
        &mut self,
        values: &mut [f32],
        mine: Agreement,
        watch: &mut dyn FnMut(Phase),
    ) -> Result<Agreement, Error> {
        if self.links.is_empty() {
            return Ok(mine);
        }
        if self.rank == 0 { self.lead(values, mine, watch) } else { self.follow(values, mine, watch) }
    }

    fn lead(&mut self, sum: &mut [f32], mine: Agreement, watch: &mut dyn FnMut(Phase)) -> Result<Agreement, Error> {
        let mut agreed = mine;
        let mut theirs = vec![0.0; sum.len()];
        for (rank, link) in (1..).zip(&mut self.links) {
            let lost = |source| Error::Peer { rank, step: mine.step, source };
            watch(Phase::StragglerWait);
            let header = read_header(link).map_err(lost)?;
            watch(Phase::Communication);
            let word = accept(&header, mine.step, sum.len()).ok_or(Error::OutOfStep { rank, step: mine.step })?;
            read_values(link, &mut self.bytes, &mut theirs).map_err(lost)?;
            sum.iter_mut().zip(&theirs).for_each(|(sum, value)| *sum += value);
            agreed.loss += word.loss;
            agreed.is_stopping |= word.is_stopping;
        }
        let ranks = (0..=self.links.len()).fold(0.0, |count: f32, _| count + 1.0);
        sum.iter_mut().for_each(|value| *value /= ranks);
        agreed.loss /= ranks;
        for (rank, link) in (1..).zip(&mut self.links) {
            let lost = |source| Error::Peer { rank, step: mine.step, source };
            send(link, &mut self.bytes, &agreed, sum).map_err(lost)?;
        }
        Ok(agreed)
    }

    fn follow(
        &mut self,
        values: &mut [f32],
        mine: Agreement,
        watch: &mut dyn FnMut(Phase),
    ) -> Result<Agreement, Error> {
        let lost = |source| Error::Peer { rank: 0, step: mine.step, source };
        let link = self.links.first_mut().expect("a follower is connected to rank 0");
        watch(Phase::Communication);
        send(link, &mut self.bytes, &mine, values).map_err(lost)?;
        watch(Phase::StragglerWait);
        let header = read_header(link).map_err(lost)?;
        watch(Phase::Communication);
        let agreed = accept(&header, mine.step, values.len()).ok_or(Error::OutOfStep { rank: 0, step: mine.step })?;
        read_values(link, &mut self.bytes, values).map_err(lost)?;
        Ok(agreed)
    }
}

impl Meeting {
    fn failed(&self, source: io::Error) -> Error {
        Error::Meeting { address: format!("{}:{}", self.address, self.port), waited: self.timeout, source }
    }

    /// Tries until it works or the time is up.
    fn try_until<T>(&self, deadline: Instant, mut attempt: impl FnMut() -> io::Result<T>) -> Result<T, Error> {
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() >= deadline => return Err(self.failed(error)),
                Err(_) => std::thread::sleep(TRY_INTERVAL),
            }
        }
    }

    /// Rank 0: becomes reachable, and takes the calls of all others.
    fn receive_all(&self) -> Result<Vec<TcpStream>, Error> {
        let deadline = Instant::now() + self.timeout;
        let listener = self.try_until(deadline, || TcpListener::bind((self.address.as_str(), self.port)))?;
        listener.set_nonblocking(true).map_err(|source| self.failed(source))?;
        let mut seats: Vec<Option<TcpStream>> = (1..self.world_size).map(|_| None).collect();
        let mut strangers = 0;
        while seats.iter().any(Option::is_none) && strangers < STRANGERS_MAX {
            let (mut link, _) = self.try_until(deadline, || listener.accept())?;
            match self.greet(&mut link)? {
                Some(rank) => seats[rank as usize - 1] = Some(link),
                None => strangers += 1,
            }
        }
        let links: Option<Vec<TcpStream>> = seats.into_iter().collect();
        links.ok_or_else(|| self.failed(io::Error::other("too many calls from strangers")))
    }

    /// Rank 0: who is calling? None if it is nobody of this gang's attempt.
    fn greet(&self, link: &mut TcpStream) -> Result<Option<u32>, Error> {
        let mut hello = [0; HELLO_BYTES];
        let heard = link
            .set_nonblocking(false)
            .and_then(|()| link.set_read_timeout(Some(HELLO_TIMEOUT)))
            .and_then(|()| link.read_exact(&mut hello));
        let rank = u32_at(&hello, 4);
        let is_ours = heard.is_ok()
            && (u32_at(&hello, 0), u32_at(&hello, 8), u64_at(&hello, 12)) == (MAGIC, self.world_size, self.attempt)
            && (1..self.world_size).contains(&rank);
        if !is_ours {
            return Ok(None);
        }
        if hello[20..] != self.fingerprint {
            return Err(Error::Disagreement { rank });
        }
        Ok(link.write_all(&MAGIC.to_le_bytes()).is_ok().then_some(rank))
    }

    /// Another rank: calls rank 0 until it answers.
    fn call(&self) -> Result<TcpStream, Error> {
        let mut hello = Vec::with_capacity(HELLO_BYTES);
        hello.extend([MAGIC, self.rank, self.world_size].into_iter().flat_map(u32::to_le_bytes));
        hello.extend(self.attempt.to_le_bytes());
        hello.extend(self.fingerprint);
        let deadline = Instant::now() + self.timeout;
        self.try_until(deadline, || {
            let mut addresses = (self.address.as_str(), self.port).to_socket_addrs()?;
            let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
            let mut link = TcpStream::connect_timeout(&address, self.timeout)?;
            link.set_read_timeout(Some(self.timeout))?;
            link.write_all(&hello)?;
            let mut answer = [0; 4];
            link.read_exact(&mut answer)?;
            if u32::from_le_bytes(answer) == MAGIC { Ok(link) } else { Err(io::Error::other("rank 0 isn't there")) }
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn send(link: &mut TcpStream, bytes: &mut Vec<u8>, word: &Agreement, values: &[f32]) -> io::Result<()> {
    bytes.clear();
    bytes.extend(MAGIC.to_le_bytes());
    bytes.extend(u32::from(word.is_stopping).to_le_bytes());
    bytes.extend(word.step.to_le_bytes());
    bytes.extend(word.loss.to_le_bytes());
    bytes.extend(u32::try_from(values.len()).map_err(io::Error::other)?.to_le_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    link.write_all(bytes)
}

fn read_header(link: &mut TcpStream) -> io::Result<[u8; HEADER_BYTES]> {
    let mut header = [0; HEADER_BYTES];
    link.read_exact(&mut header)?;
    Ok(header)
}

/// What a header says, if it is of this step and as many values.
fn accept(header: &[u8; HEADER_BYTES], step: u64, values: usize) -> Option<Agreement> {
    let is_expected = u32_at(header, 0) == MAGIC && u64_at(header, 8) == step && u32_at(header, 20) as usize == values;
    let loss = f32::from_bits(u32_at(header, 16));
    is_expected.then_some(Agreement { step, loss, is_stopping: u32_at(header, 4) != 0 })
}

fn read_values(link: &mut TcpStream, bytes: &mut Vec<u8>, values: &mut [f32]) -> io::Result<()> {
    bytes.resize(values.len() * 4, 0);
    link.read_exact(bytes)?;
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_le_bytes(*bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
