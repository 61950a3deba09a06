//! A state machine for tests without processes, in which all processes are gone as soon as the ranks have
//! ended.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::Timestamp;

use crate::protocol::{Orders, PROTOCOL_VERSION, Rendezvous, SupervisorSpec};
use crate::supervisor::input::{Action, Input};
use crate::supervisor::node_attempt::{NodeAttempt, Stage};

/// The state machine; see the module.
pub(in crate::supervisor) struct Tested(NodeAttempt);

impl Tested {
    pub(in crate::supervisor) fn new(spec: SupervisorSpec, offer: Option<Rendezvous>) -> Tested {
        Tested(NodeAttempt::new(Arc::new(spec), offer, at(0)))
    }

    /// Applies an input, and [`Input::Cleared`] if that is all that is waited for.
    pub(in crate::supervisor) fn apply(&mut self, now: Timestamp, input: Input) -> Vec<Action> {
        let mut actions = self.0.apply(now, input);
        if matches!(self.0.stage, Stage::Clearing(..)) {
            actions.extend(self.0.apply(now, Input::Cleared));
        }
        actions
    }
}

impl Deref for Tested {
    type Target = NodeAttempt;

    fn deref(&self) -> &NodeAttempt {
        &self.0
    }
}

impl DerefMut for Tested {
    fn deref_mut(&mut self) -> &mut NodeAttempt {
        &mut self.0
    }
}

pub(in crate::supervisor) fn spec(ranks: u32, nodes: u32) -> SupervisorSpec {
    SupervisorSpec {
        version: PROTOCOL_VERSION,
        job: 1,
        job_name: "test".to_owned(),
        queue: "default".to_owned(),
        attempt: 1,
        epoch: 7,
        node: "here".to_owned(),
        node_rank: 0,
        node_count: nodes,
        ranks_per_node: ranks,
        devices: (0..ranks).collect(),
        device_kind: "cpu".to_owned(),
        keeps_visible_devices: false,
        cpus: 0,
        memory_bytes: 0,
        time_limit_ms: None,
        workdir: PathBuf::from("/"),
        envs: BTreeMap::new(),
        setup: None,
        container: None,
        run: "true".to_owned(),
        checkpoint_dir: None,
        faults: 0,
        max_faults: 0,
        metric: Some("accuracy".to_owned()),
        high_water_step: 0,
        restore_below: None,
        skip_data_through: None,
        notice_source: None,
        agent: None,
        token: String::new(),
        endpoint_file: PathBuf::from("/"),
        folder: PathBuf::from("/"),
        address: "here".to_owned(),
        heartbeat_ms: 1_000,
        orphan_after_ms: 120_000,
        hang_timeout_ms: None,
        end_wait_ms: None,
        log_bytes_max: 1,
    }
}

pub(in crate::supervisor) fn meeting_point() -> Rendezvous {
    Rendezvous { address: "here".to_owned(), port: 29_500 }
}

pub(in crate::supervisor) fn orders() -> Orders {
    Orders {
        version: PROTOCOL_VERSION,
        stop: None,
        rendezvous: None,
        samples_stored: 0,
        end_acknowledged: false,
        stay: false,
        report_within_ms: None,
    }
}

pub(in crate::supervisor) fn at(millis: u64) -> Timestamp {
    Timestamp::EPOCH + Duration::from_millis(millis)
}

/// Returns a state machine whose ranks have run since time 0.
pub(in crate::supervisor) fn running(ranks: u32) -> Tested {
    let mut node_attempt = Tested::new(spec(ranks, 1), Some(meeting_point()));
    assert_eq!(node_attempt.begin(at(0)), [Action::StartRanks(meeting_point())]);
    node_attempt
}
