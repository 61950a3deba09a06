//! The supervisor and a control plane that comes and goes. Proves A-13.

use gangline_execution::protocol::{NodeState, Outcome, Rendezvous};

use crate::fixtures::attempt::{Attempt, Speaker};
use crate::fixtures::wait_for;

const UNTIL_GO: &str = "echo $GANGLINE_SOCKET > $OUT/socket; until [ -e $OUT/go ]; do sleep 0.01; done; echo went";

#[test]
fn a_control_plane_that_comes_back_elsewhere_learns_everything() {
    let mut attempt = Attempt::of(UNTIL_GO).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    speaker.say(r#"{"step":1,"loss":4.0,"tokens":8}"#);
    attempt.plane.wait_for("a step", |report| report.ranks[0].step == Some(1));
    attempt.plane.go_away();
    speaker.say(r#"{"step":2,"loss":3.0,"tokens":8}"#);
    std::fs::write(attempt.out("go"), "").expect("the file can be written");
    // The job ends while nobody listens; the end waits on the disk and in the supervisor.
    let end_file = attempt.spec.folder.join("end.json");
    wait_for("the recorded end", || end_file.exists().then_some(()));
    assert!(attempt.is_supervised());
    attempt.plane.come_back();
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
    let last = attempt.plane.reports().pop().expect("there are reports");
    assert_eq!(
        last.samples.iter().map(|sample| (sample.step, sample.loss)).collect::<Vec<_>>(),
        [(1, Some(4.0)), (2, Some(3.0))]
    );
    attempt.wait_until_gone();
}

#[test]
fn an_orphan_stops_its_ranks_records_the_end_and_goes() {
    let mut attempt = Attempt::of("echo > $OUT/ready; sleep 1000").with(|spec| spec.orphan_after_ms = 500).launch();
    attempt.wait_for_file("ready");
    attempt.plane.go_away();
    attempt.wait_until_gone();
    let end = attempt.recorded_end();
    assert!(matches!(end.state, NodeState::Ended { outcome: Outcome::Stopped, .. }), "{:?}", end.state);
    let log = std::fs::read_to_string(attempt.spec.folder.join("supervisor.log")).expect("it logs");
    assert!(log.contains("no contact with the control plane"), "{log}");
}

#[test]
fn a_control_plane_that_refuses_reports_is_no_contact_and_hurts_nobody() {
    let attempt = Attempt::of(UNTIL_GO).launch();
    attempt.wait_for_file("socket");
    attempt.plane.answer_with(503);
    std::fs::write(attempt.out("go"), "").expect("the file can be written");
    let end_file = attempt.spec.folder.join("end.json");
    wait_for("the recorded end", || end_file.exists().then_some(()));
    attempt.plane.answer_with(200);
    assert_eq!(attempt.plane.wait_for_end(), Outcome::Succeeded);
}

#[test]
fn a_wrong_token_ends_as_an_orphan() {
    let attempt = Attempt::of("sleep 1000").with(|spec| {
        spec.token = "wrong".to_owned();
        spec.orphan_after_ms = 500;
    });
    let attempt = attempt.launch();
    attempt.wait_until_gone();
    assert_eq!(attempt.plane.report_count(), 0);
    assert!(matches!(attempt.recorded_end().state, NodeState::Ended { outcome: Outcome::Stopped, .. }));
    let log = std::fs::read_to_string(attempt.spec.folder.join("supervisor.log")).expect("it logs");
    assert!(log.contains("refuses with status 401"), "{log}");
}

#[test]
fn samples_are_sent_again_until_they_are_stored() {
    let attempt = Attempt::of(UNTIL_GO).launch();
    let mut speaker = Speaker::for_rank(&attempt, "socket");
    for step in 1..=5 {
        speaker.say(&format!(r#"{{"step":{step},"loss":{step}.5,"tokens":10}}"#));
    }
    let report = attempt.plane.wait_for("five samples", |report| report.samples.len() == 5);
    assert_eq!((report.samples_from, report.samples[4].tokens), (0, 50));
    attempt.plane.order(|orders| orders.samples_stored = 3);
    let report = attempt.plane.wait_for("two samples", |report| report.samples_from == 3);
    assert_eq!(report.samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn the_nodes_of_a_gang_meet_where_the_first_one_offers() {
    let gang = |rank: u32| {
        let attempt = Attempt::of("echo $MASTER_ADDR:$MASTER_PORT $RANK $WORLD_SIZE > $OUT/met").with(|spec| {
            spec.node_rank = rank;
            spec.node_count = 2;
        });
        attempt.launch()
    };
    let (first, second) = (gang(0), gang(1));
    let offered = first.plane.wait_for("an offer", |report| report.rendezvous.is_some()).rendezvous;
    let offered: Rendezvous = offered.expect("it was waited for");
    let waiting = second.plane.wait_for("anything", |_| true);
    assert_eq!((waiting.state, waiting.rendezvous), (NodeState::Preparing, None));
    for attempt in [&first, &second] {
        assert!(!attempt.out("met").exists());
        attempt.plane.order(|orders| orders.rendezvous = Some(offered.clone()));
    }
    assert_eq!(first.wait_for_file("met"), format!("127.0.0.1:{} 0 2", offered.port));
    assert_eq!(second.wait_for_file("met"), format!("127.0.0.1:{} 1 2", offered.port));
}
