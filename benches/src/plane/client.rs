//! A client that costs little: one connection that stays, one request at a time, as many bytes as there have to be.
//!
//! It shares the two cores with what it measures, so it does nothing but write a request and read the answer's length.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// An answer comes in this time.
const ANSWER_MOST: Duration = Duration::from_secs(60);
/// The longest answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where a control plane answers, and what lets its users in.
#[derive(Clone, Debug)]
pub(super) struct Door {
    /// Address and port.
    pub(super) address: String,
    /// The users' token.
    pub(super) token: String,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    door: Door,
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Door {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens there.
    pub(super) fn connect(&self) -> Result<Client> {
        let stream = TcpStream::connect(&self.address).context("reach the control plane")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MOST))?;
        Ok(Client { door: self.clone(), stream, request: Vec::new(), answer: Vec::new() })
    }
}

impl Client {
    /// Reads a path; how long it took.
    ///
    /// # Errors
    /// When it isn't answered well.
    pub(super) fn get(&mut self, path: &str) -> Result<Duration> {
        self.ask("GET", path, "", "")
    }

    /// Sends a body; how long its answer took. A key has it taken once.
    ///
    /// # Errors
    /// When it isn't answered well.
    pub(super) fn post(&mut self, path: &str, key: Option<&str>, body: &str) -> Result<Duration> {
        let key = key.map_or_else(String::new, |key| format!("idempotency-key: {key}\r\n"));
        self.ask("POST", path, &key, body)
    }

    /// The last answer.
    ///
    /// # Errors
    /// When it isn't JSON.
    pub(super) fn answered(&self) -> Result<Value> {
        let body = head_end(&self.answer).map_or(&[][..], |end| &self.answer[end..]);
        serde_json::from_slice(body).context("read an answer")
    }

    fn ask(&mut self, method: &str, path: &str, key: &str, body: &str) -> Result<Duration> {
        let Door { address, token } = &self.door;
        let began = Instant::now();
        self.request.clear();
        write!(
            self.request,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{key}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        self.stream.write_all(&self.request).context("send a request")?;
        read_answer(&mut self.stream, &mut self.answer)?;
        let took = began.elapsed();
        let is_good = self.answer.starts_with(b"HTTP/1.1 200");
        anyhow::ensure!(is_good, "{method} {path}: {}", String::from_utf8_lossy(&self.answer));
        Ok(took)
    }
}

fn read_answer(stream: &mut TcpStream, answer: &mut Vec<u8>) -> Result<()> {
    answer.clear();
    let mut piece = [0; 64 << 10];
    let mut length = usize::MAX;
    while answer.len() < length {
        let count = stream.read(&mut piece).context("read an answer")?;
        anyhow::ensure!(count > 0, "the answer breaks off");
        answer.extend_from_slice(&piece[..count]);
        if length == usize::MAX {
            length = whole_length(answer)?;
        }
        anyhow::ensure!(answer.len() <= ANSWER_BYTES_MAX, "the answer is too long");
    }
    Ok(())
}

/// How long a message is, by its head; as much as there can be while that isn't whole.
///
/// # Errors
/// When the head gives no length.
pub(super) fn whole_length(message: &[u8]) -> Result<usize> {
    let Some(end) = head_end(message) else { return Ok(usize::MAX) };
    let head = std::str::from_utf8(&message[..end]).context("read a head")?;
    let lengths = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let mut lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = lengths.next().with_context(|| format!("find a length in {head}"))?;
    Ok(end + length.trim().parse::<usize>().context("read a length")?)
}

fn head_end(message: &[u8]) -> Option<usize> {
    message.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_its_head_and_its_body() {
        let message = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(whole_length(message).unwrap(), message.len());
        assert_eq!(whole_length(&message[..message.len() - 3]).unwrap(), usize::MAX);
        assert!(whole_length(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "a message without a length");
    }
}
