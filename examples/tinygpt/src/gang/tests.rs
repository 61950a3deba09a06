//! Gangs of threads over loopback.

use super::*;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket").port()
}

fn meeting(rank: u32, world_size: u32, port: u16) -> Meeting {
    Meeting {
        rank,
        world_size,
        address: "127.0.0.1".to_owned(),
        port,
        attempt: 1,
        fingerprint: [7; 32],
        timeout: Duration::from_secs(5),
    }
}

/// Runs one closure per rank, each on its own thread, and returns what they return.
fn in_gang<T: Send>(world_size: u32, rank: impl Fn(Meeting) -> T + Sync) -> Vec<T> {
    let port = free_port();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|r| {
                scope.spawn({
                    let rank = &rank;
                    move || rank(meeting(r, world_size, port))
                })
            })
            .collect();
        ranks.into_iter().map(|thread| thread.join().expect("a rank doesn't panic")).collect()
    })
}

fn agreement(step: u64, loss: f32, is_stopping: bool) -> Agreement {
    Agreement { step, loss, is_stopping }
}

#[test]
fn all_ranks_get_the_same_mean_and_stop_together() {
    let results = in_gang(3, |meeting| {
        let mut gang = Gang::meet(&meeting).expect("the gang meets");
        let mine = f32::from(u8::try_from(meeting.rank).expect("a small gang"));
        let mut values = vec![0.1 + mine, 1e-7 * mine, -mine];
        let first = gang.average(&mut values, agreement(1, mine, meeting.rank == 2), &mut |_| ()).expect("a step");
        let second = gang.average(&mut [0.0; 3], agreement(2, 0.0, false), &mut |_| ()).expect("a step");
        (values, first, second)
    });
    for result in &results {
        assert_eq!(result, &results[0]);
    }
    let (values, first, second) = &results[0];
    assert_eq!((values[2], *first, second.is_stopping), (-1.0, agreement(1, 1.0, true), false));
}

#[test]
fn a_peer_that_is_gone_is_named() {
    let results = in_gang(2, |meeting| {
        let mut gang = Gang::meet(&meeting).expect("the gang meets");
        if meeting.rank == 1 {
            return None;
        }
        gang.average(&mut [1.0], agreement(9, 0.0, false), &mut |_| ()).err()
    });
    assert!(matches!(results[0], Some(Error::Peer { rank: 1, step: 9, .. })), "{results:?}");
}

#[test]
fn a_peer_that_stalls_is_given_up_on() {
    let (given_up, stalled_until) = std::sync::mpsc::channel::<()>();
    let ends = std::sync::Mutex::new((Some(given_up), Some(stalled_until)));
    let results = in_gang(2, |meeting| {
        let mut gang = Gang::meet(&Meeting { timeout: Duration::from_millis(300), ..meeting }).expect("they meet");
        if gang.rank == 1 {
            let end = ends.lock().expect("no rank panics").1.take();
            return end.and_then(|end| end.recv().err()).map(|_| unreachable!("rank 0 says when it has given up"));
        }
        let stalled = gang.average(&mut [1.0], agreement(1, 0.0, false), &mut |_| ()).err();
        let told = ends.lock().expect("no rank panics").0.take().map(|end| end.send(()));
        assert_eq!(told, Some(Ok(())));
        stalled
    });
    assert!(matches!(results[0], Some(Error::Peer { rank: 1, step: 1, .. })), "{results:?}");
}

#[test]
fn ranks_with_other_options_are_refused_and_strangers_ignored() {
    let port = free_port();
    let results = std::thread::scope(|scope| {
        let first = scope.spawn(move || Gang::meet(&meeting(0, 2, port)).map(drop));
        let stale = Meeting { attempt: 0, timeout: Duration::from_millis(300), ..meeting(1, 2, port) };
        let stale = Gang::meet(&stale).map(drop);
        assert!(matches!(stale, Err(Error::Meeting { .. })), "a rank of a dead attempt is a stranger: {stale:?}");
        let other = Meeting { fingerprint: [8; 32], timeout: Duration::from_millis(300), ..meeting(1, 2, port) };
        assert!(Gang::meet(&other).is_err());
        first.join().expect("rank 0 doesn't panic")
    });
    assert!(matches!(results, Err(Error::Disagreement { rank: 1 })), "{results:?}");
}

#[test]
fn a_rank_without_a_gang_gives_up_in_time() {
    for rank in [0, 1] {
        let lonely = Meeting { timeout: Duration::from_millis(100), ..meeting(rank, 2, free_port()) };
        assert!(matches!(Gang::meet(&lonely).map(drop), Err(Error::Meeting { .. })), "rank {rank}");
    }
}

#[test]
fn ranks_at_different_steps_notice() {
    let results = in_gang(2, |meeting| {
        let mut gang = Gang::meet(&meeting).expect("the gang meets");
        let step = 5 + u64::from(meeting.rank);
        gang.average(&mut [1.0], agreement(step, 0.0, false), &mut |_| ()).err()
    });
    assert!(matches!(results[0], Some(Error::OutOfStep { rank: 1, step: 5 })), "{results:?}");
    assert!(results[1].is_some());
}
