//! Waiting until no other agent reads this node.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::contact::Courier;
use super::{AgentOptions, RETRY_AFTER_MAX, pause};
use crate::protocol::agent::{AGENT_VERSION, AgentReport};

/// Time between two questions whether another agent still reads this node.
const ASK_EVERY: Duration = Duration::from_secs(15);
/// How often an answer is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Asks the control plane until it says that nobody else reads the node; breaks off if the agent is to end.
///
/// # Errors
/// If a thread can't be started.
pub(super) fn wait_for(options: &AgentOptions, stop: &Receiver<()>) -> io::Result<ControlFlow<()>> {
    let mut courier = Courier::start(options.nodes.clone(), options.place.clone())?;
    let question = AgentReport {
        version: AGENT_VERSION,
        node: String::new(),
        started_at: (options.clock)().unix_nanos(),
        every_ms: u64::try_from(options.every.as_millis()).unwrap_or(u64::MAX),
        batches: Vec::new(),
        findings: None,
        hung: Vec::new(),
        cache: None,
        fetches: false,
        fetched: Vec::new(),
        stands_in: true,
    };
    let mut ask_again = ASK_EVERY;
    loop {
        courier.send(question.clone());
        let answer = loop {
            if pause(stop, LOOK_EVERY).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if let Some(answer) = courier.answer() {
                break answer;
            }
        };
        match answer {
            Ok(answer) if !answer.stand_by => return Ok(ControlFlow::Continue(())),
            Ok(_) => ask_again = ASK_EVERY,
            Err(_) => ask_again = (ask_again * 2).min(RETRY_AFTER_MAX),
        }
        if pause(stop, ask_again).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}
