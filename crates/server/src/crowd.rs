//! The connections of a listener, and which of them are closed when there are too many. A connection is a
//! stranger until it has sent a request with a valid token or cookie. A newcomer displaces another
//! stranger, the one that has waited longest; without one, an authenticated connection that is idle. So whoever connects and sends a request at once
//! is answered, however many others stay silent.
//!
//! Keeps A-10: the number of connections is limited in all, for strangers, and by peer, and each phase of a
//! connection has a time limit.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The longest time until a stranger has sent a request's head, including the TLS handshake.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// The longest pause between two requests of an authenticated connection; longer than the slowest heartbeat.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The longest time for an authenticated request, including its body and answer.
const BUSY_MAX: Duration = Duration::from_secs(120);

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) total: usize,
    pub(super) strangers: usize,
    pub(super) by_peer: usize,
}

impl Limits {
    /// Returns the limits of the TCP port. It gets half of the open files that the process may have; the
    /// journal, logs and launches have the rest.
    pub(super) fn tcp(files_max: u64) -> Limits {
        let total = bounded(files_max / 2, 8_192);
        Limits { total, strangers: (total / 2).min(512), by_peer: total / 4 }
    }

    /// Returns the limits of the socket.
    pub(super) fn socket(files_max: u64) -> Limits {
        let total = bounded(files_max / 4, 2_048);
        Limits { total, strangers: total / 2, by_peer: total }
    }
}

fn bounded(count: u64, most: usize) -> usize {
    usize::try_from(count).unwrap_or(most).clamp(16, most)
}

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// A process on this machine.
    Here,
    /// Another machine: its IPv4 address, or its IPv6 /64, within which it is free to choose addresses.
    Elsewhere(IpAddr),
}

impl Peer {
    pub(super) fn of(address: IpAddr) -> Peer {
        match address.to_canonical() {
            address if address.is_loopback() => Peer::Here,
            IpAddr::V6(address) => Peer::Elsewhere(IpAddr::V6((u128::from(address) >> 64 << 64).into())),
            address => Peer::Elsewhere(address),
        }
    }
}

/// The state of a connection, ordered by who makes room first; a busy connection never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionState {
    Stranger,
    Idle,
    Busy,
}

impl ConnectionState {
    fn time_max(self) -> Duration {
        match self {
            ConnectionState::Stranger => HEAD_MAX,
            ConnectionState::Idle => IDLE_MAX,
            ConnectionState::Busy => BUSY_MAX,
        }
    }
}

/// All connections of a listener.
#[derive(Debug)]
pub(super) struct Crowd {
    limits: Limits,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    /// Counter that orders changes of state.
    turn: u64,
    of: HashMap<u64, Member>,
    /// The order in which connections make room: by standing, then by the turn of the last change.
    order: BTreeSet<(ConnectionState, u64, u64)>,
    by_peer: HashMap<Peer, usize>,
    strangers: usize,
}

#[derive(Debug)]
struct Member {
    peer: Peer,
    standing: ConnectionState,
    turn: u64,
    since: Instant,
    leave: Arc<Notify>,
}

/// A connection's place, freed when this is dropped.
#[derive(Debug)]
pub(super) struct Admission {
    crowd: Arc<Crowd>,
    id: u64,
    leave: Arc<Notify>,
}

impl Crowd {
    pub(super) fn new(limits: Limits) -> Arc<Crowd> {
        Arc::new(Crowd { limits, members: Mutex::default() })
    }

    /// Returns a place for a new connection, possibly that of another one. None if all others
    /// are busy; where the limit of one peer is reached, only that peer's connections count.
    pub(super) fn admit(self: &Arc<Self>, peer: Peer) -> Option<Arc<Admission>> {
        let mut members = self.members();
        let of_peer = members.by_peer.get(&peer).copied().unwrap_or(0);
        let is_in_the_way = |member: &Member| match peer {
            Peer::Elsewhere(_) if of_peer >= self.limits.by_peer => member.peer == peer,
            _ => true,
        };
        let is_full = members.of.len() >= self.limits.total
            || members.strangers >= self.limits.strangers
            || matches!(peer, Peer::Elsewhere(_)) && of_peer >= self.limits.by_peer;
        if is_full {
            let weakest = members.weakest(is_in_the_way)?;
            members.turn_out(weakest);
        }
        let leave = Arc::new(Notify::new());
        let id = members.enter(peer, leave.clone());
        Some(Arc::new(Admission { crowd: self.clone(), id, leave }))
    }

    /// Ends a connection, because the process has no more files to accept new ones.
    pub(super) fn make_room(&self) {
        let mut members = self.members();
        if let Some(weakest) = members.weakest(|_| true) {
            members.turn_out(weakest);
        }
    }

    /// Locks the members. A panic leaves them valid, since none can happen within a change.
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Members {
    fn enter(&mut self, peer: Peer, leave: Arc<Notify>) -> u64 {
        self.turn += 1;
        let (id, turn, standing) = (self.turn, self.turn, ConnectionState::Stranger);
        self.of.insert(id, Member { peer, standing, turn, since: Instant::now(), leave });
        self.order.insert((standing, turn, id));
        *self.by_peer.entry(peer).or_default() += 1;
        self.strangers += 1;
        id
    }

    fn weakest(&self, may_go: impl Fn(&Member) -> bool) -> Option<u64> {
        let may_go = |id: &u64| self.of.get(id).is_some_and(&may_go);
        let idle = self.order.iter().take_while(|(standing, ..)| *standing != ConnectionState::Busy);
        idle.map(|(_, _, id)| *id).find(may_go)
    }

    fn turn_out(&mut self, id: u64) {
        if let Some(member) = self.remove(id) {
            member.leave.notify_one();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Member> {
        let member = self.of.remove(&id)?;
        self.order.remove(&(member.standing, member.turn, id));
        self.strangers -= usize::from(member.standing == ConnectionState::Stranger);
        if let Some(count) = self.by_peer.get_mut(&member.peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&member.peer);
            }
        }
        Some(member)
    }

    /// Changes the connection's standing.
    fn change(&mut self, id: u64, to: impl Fn(ConnectionState) -> ConnectionState) {
        self.turn += 1;
        let Some(member) = self.of.get_mut(&id) else { return };
        self.order.remove(&(member.standing, member.turn, id));
        self.strangers -= usize::from(member.standing == ConnectionState::Stranger);
        member.standing = to(member.standing);
        (member.turn, member.since) = (self.turn, Instant::now());
        self.order.insert((member.standing, member.turn, id));
        self.strangers += usize::from(member.standing == ConnectionState::Stranger);
    }
}

impl Admission {
    /// Notes that the current request has shown a valid secret.
    pub(super) fn prove(&self) {
        self.crowd.members().change(self.id, |_| ConnectionState::Busy);
    }

    /// Notes that the current request is answered.
    pub(super) fn rest(&self) {
        let to = |standing| if standing == ConnectionState::Busy { ConnectionState::Idle } else { standing };
        self.crowd.members().change(self.id, to);
    }

    /// Waits until the connection must end, because its place is needed or it takes too long.
    pub(super) async fn outstayed(&self) {
        let deadline = || {
            let members = self.crowd.members();
            members.of.get(&self.id).map(|member| member.since + member.standing.time_max())
        };
        while let Some(deadline) = deadline() {
            if deadline <= Instant::now() {
                return;
            }
            tokio::select! {
                () = self.leave.notified() => return,
                () = tokio::time::sleep_until(deadline.into()) => {}
            }
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.crowd.members().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Limits = Limits { total: 4, strangers: 2, by_peer: 3 };

    fn is_out(admission: &Admission) -> bool {
        !admission.crowd.members().of.contains_key(&admission.id)
    }

    fn known(crowd: &Arc<Crowd>, peer: Peer) -> Arc<Admission> {
        let admission = crowd.admit(peer).expect("there is room");
        admission.prove();
        admission.rest();
        admission
    }

    /// Proves A-10 for connections.
    #[test]
    fn strangers_turn_out_the_stranger_who_has_waited_longest_and_nobody_else() {
        let crowd = Crowd::new(FEW);
        let friend = known(&crowd, Peer::Here);
        let strangers: Vec<_> = (0..5).map(|_| crowd.admit(Peer::Here).expect("somebody goes")).collect();
        let out: Vec<bool> = strangers.iter().map(|admission| is_out(admission)).collect();
        assert_eq!(out, [true, true, true, false, false]);
        assert!(!is_out(&friend), "and not somebody who had shown a token");
        drop(strangers);
        assert_eq!(crowd.members().strangers, 0);
        assert_eq!(crowd.members().by_peer.get(&Peer::Here), Some(&1));
    }

    #[test]
    fn the_idle_make_room_and_the_busy_never() {
        let crowd = Crowd::new(FEW);
        let idle: Vec<_> = (0..4).map(|_| known(&crowd, Peer::Here)).collect();
        idle[0].prove();
        let newcomer = crowd.admit(Peer::Here).expect("an idle one goes");
        assert_eq!(idle.iter().map(|admission| is_out(admission)).collect::<Vec<_>>(), [false, true, false, false]);
        newcomer.prove();
        [&idle[2], &idle[3]].iter().for_each(|admission| admission.prove());
        assert!(crowd.admit(Peer::Here).is_none(), "all are busy");
        drop(newcomer);
        assert!(crowd.admit(Peer::Here).is_some());
    }

    #[test]
    fn a_peer_with_too_many_turns_out_its_own() {
        let crowd = Crowd::new(Limits { total: 10, strangers: 10, by_peer: 2 });
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|text| Peer::of(text.parse().expect("an address")));
        let kept = crowd.admit(other).expect("there is room");
        let first = crowd.admit(one).expect("there is room");
        let more: Vec<_> = (0..2).map(|_| crowd.admit(one).expect("its own goes")).collect();
        assert!(is_out(&first) && !is_out(&kept) && more.iter().all(|admission| !is_out(admission)));
        let here: Vec<_> = (0..5).map(|_| crowd.admit(Peer::Here).expect("many share this machine")).collect();
        assert!(here.iter().all(|admission| !is_out(admission)));
    }

    #[test]
    fn an_address_counts_as_the_network_that_it_may_choose_from() {
        let of = |text: &str| Peer::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(here), Peer::Here);
        }
    }

    #[test]
    fn limits_follow_from_the_files_that_may_be_open() {
        assert_eq!(Limits::tcp(1_024), Limits { total: 512, strangers: 256, by_peer: 128 });
        assert_eq!(Limits::socket(1_024).total, 256);
        assert_eq!(Limits::tcp(u64::MAX).total, 8_192);
        assert_eq!(Limits::tcp(10).total, 16);
    }

    #[tokio::test]
    async fn who_is_turned_out_is_told() {
        let crowd = Crowd::new(Limits { total: 1, strangers: 1, by_peer: 1 });
        let first = crowd.admit(Peer::Here).expect("there is room");
        let _second = crowd.admit(Peer::Here).expect("the first goes");
        tokio::time::timeout(Duration::from_secs(5), first.outstayed()).await.expect("it is told at once");
    }
}
