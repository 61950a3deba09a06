//! An alert's course: pending, firing, resolved; silences and acknowledgements.

use super::*;

const REPEAT: Duration = Duration::from_secs(3_600);

#[test]
fn an_alert_fires_only_after_its_rule_was_broken_for_as_long_as_it_says() {
    let mut engine = Engine::new(vec![rule(60, 0)]);
    engine.evaluate(at(0), &heat(1, &[11.0]));
    engine.evaluate(at(59), &heat(1, &[11.0]));
    assert_eq!((states(&engine), engine.news(at(59), REPEAT).len()), (vec![State::Pending], 0));
    engine.evaluate(at(60), &heat(1, &[12.0]));
    let news = engine.news(at(60), REPEAT);
    assert_eq!(news.len(), 1);
    assert_eq!((news[0].since, news[0].fired_at), (at(0), Some(at(60))));
    assert_eq!(news[0].summary, "job-1 has 12: rank 0");
}

#[test]
fn a_moment_of_good_values_begins_the_wait_anew() {
    let mut engine = Engine::new(vec![rule(60, 0)]);
    engine.evaluate(at(0), &heat(1, &[11.0]));
    engine.evaluate(at(30), &heat(1, &[9.0]));
    assert_eq!(states(&engine), [], "a pending alert leaves no trace");
    engine.evaluate(at(60), &heat(1, &[11.0]));
    assert_eq!(states(&engine), [State::Pending]);
}

#[test]
fn values_between_clear_and_bound_neither_end_nor_begin_an_alert() {
    let mut engine = Engine::new(vec![rule(0, 30)]);
    engine.evaluate(at(0), &heat(1, &[7.0]));
    assert_eq!(states(&engine), []);
    engine.evaluate(at(10), &heat(1, &[11.0]));
    engine.evaluate(at(20), &heat(1, &[7.0]));
    engine.evaluate(at(90), &heat(1, &[7.0]));
    assert_eq!(states(&engine), [State::Firing], "it isn't clear");
    engine.evaluate(at(100), &heat(1, &[5.0]));
    engine.evaluate(at(120), &heat(1, &[6.0]));
    engine.evaluate(at(130), &heat(1, &[4.0]));
    engine.evaluate(at(159), &heat(1, &[4.0]));
    assert_eq!(states(&engine), [State::Firing], "clear for 29 seconds only");
    engine.evaluate(at(160), &heat(1, &[4.0]));
    assert_eq!(states(&engine), [State::Resolved]);
}

#[test]
fn the_same_fault_of_all_ranks_is_one_alert() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    engine.evaluate(at(0), &heat(1, &[12.0; 64]));
    let news = engine.news(at(0), REPEAT);
    assert_eq!(news.len(), 1);
    assert_eq!((news[0].parts.len(), news[0].more_parts), (16, 48));
    assert!(news[0].summary.ends_with("rank 15 and 48 more"), "{}", news[0].summary);
    let both = [heat(1, &[12.0]), heat(2, &[9.0, 13.0])].concat();
    engine.evaluate(at(1), &both);
    let news = engine.news(at(1), REPEAT);
    assert_eq!(news.iter().map(|alert| alert.summary.as_str()).collect::<Vec<_>>(), ["job-2 has 13: rank 1"]);
}

#[test]
fn an_alert_whose_subject_or_rule_is_gone_ends_and_that_is_told() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    engine.evaluate(at(0), &[heat(1, &[12.0]), heat(2, &[12.0])].concat());
    assert_eq!(engine.news(at(0), REPEAT).len(), 2);
    engine.evaluate(at(1), &heat(2, &[12.0]));
    let news = engine.news(at(1), REPEAT);
    assert_eq!((news.len(), news[0].state, news[0].resolved_at), (1, State::Resolved, Some(at(1))));
    engine.set_rules(Vec::new());
    engine.evaluate(at(2), &heat(2, &[12.0]));
    assert_eq!(engine.news(at(2), REPEAT).len(), 1);
    assert_eq!(engine.news(at(3), REPEAT).len(), 0, "an end is told once");
}

#[test]
fn not_a_number_breaks_no_rule() {
    let mut engine =
        Engine::new(vec![rule(0, 0), Rule { bound: Bound::Below(1.0), name: "cold".into(), ..rule(0, 0) }]);
    engine.evaluate(at(0), &heat(1, &[f64::NAN]));
    assert_eq!(states(&engine), []);
    engine.evaluate(at(1), &heat(1, &[f64::INFINITY]));
    assert_eq!(states(&engine), [State::Firing]);
}

#[test]
fn receivers_are_told_again_until_somebody_takes_care() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    engine.evaluate(at(0), &heat(1, &[12.0]));
    assert_eq!(engine.news(at(0), REPEAT).len(), 1);
    assert_eq!(engine.news(at(3_599), REPEAT).len(), 0);
    let again = engine.news(at(3_600), REPEAT);
    assert_eq!(again.len(), 1);
    assert!(engine.acknowledge(again[0].id + 7, "ann", at(3_600)).is_none(), "there is no such alert");
    assert!(engine.acknowledge(again[0].id, "ann", at(3_700)).is_some());
    engine.acknowledge(again[0].id, "bob", at(3_800));
    assert_eq!(engine.overview().alerts[0].0.acknowledged, Some(("ann".to_owned(), at(3_700))), "the first one");
    assert_eq!(engine.news(at(99_999), REPEAT).len(), 0);
    engine.evaluate(at(100_000), &[]);
    assert_eq!(engine.news(at(100_000), REPEAT).len(), 1, "its end is told");
}

#[test]
fn receivers_are_told_of_a_second_disk_that_fills_up_though_somebody_cares_for_the_first() {
    let full = |disks: &[&str]| -> Vec<Reading> {
        let used = |disk: &&str| Reading {
            measure: Measure::NodeMetric("host.filesystem_used_ratio".to_owned()),
            subject: Subject::Node(NodeName::new("n1").unwrap()),
            part: Some((*disk).to_owned()),
            value: 11.0,
        };
        disks.iter().map(used).collect()
    };
    let measure = Measure::NodeMetric("host.filesystem_used_ratio".to_owned());
    let mut engine = Engine::new(vec![Rule { measure, ..rule(0, 0) }]);
    engine.evaluate(at(0), &full(&["/"]));
    let first = engine.news(at(0), REPEAT);
    engine.acknowledge(first[0].id, "ann", at(1));
    engine.evaluate(at(60), &full(&["/", "/data"]));
    assert_eq!(engine.news(at(299), REPEAT), [], "more may join");
    let saved = engine.save();
    let mut engine = Engine::restore(engine.rules().to_vec(), &saved, at(299)).unwrap();
    let second = engine.news(at(300), REPEAT);
    assert_eq!((first[0].parts.join(" "), second[0].parts.join(" ")), ("/".to_owned(), "/ /data".to_owned()));
    engine.evaluate(at(700), &full(&["/data"]));
    engine.evaluate(at(800), &full(&["/", "/data"]));
    assert_eq!(engine.news(at(99_999), REPEAT), [], "both have been told, and somebody cares");
}

/// The ranks of a job share a cause: one that joins the others is nothing new.
#[test]
fn ranks_that_join_an_alert_are_told_with_its_repetition_only() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    engine.evaluate(at(0), &heat(1, &[12.0]));
    assert_eq!(engine.news(at(0), REPEAT).len(), 1);
    engine.evaluate(at(60), &heat(1, &[12.0, 12.0]));
    assert_eq!(engine.news(at(3_599), REPEAT), []);
    assert_eq!(engine.news(at(3_600), REPEAT)[0].parts.len(), 2);
}

#[test]
fn a_silence_hides_its_alerts_from_receivers_until_it_ends() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    let wish = |rule: Option<&str>, subject: Option<&str>| Wish {
        rule: rule.map(str::to_owned),
        subject: subject.map(str::to_owned),
        until: at(100),
        comment: "known".to_owned(),
    };
    let other = engine.silence(wish(Some("other"), None), "ann", at(0)).expect("room");
    let job = engine.silence(wish(Some("hot"), Some("job-1")), "ann", at(0)).expect("room");
    assert_ne!(other.id, job.id);
    engine.evaluate(at(1), &[heat(1, &[12.0]), heat(2, &[12.0])].concat());
    let told: Vec<String> = engine.news(at(1), REPEAT).iter().map(|alert| alert.subject.to_string()).collect();
    assert_eq!(told, ["job-2"]);
    let shown: Vec<bool> = engine.overview().alerts.iter().map(|(_, is_silenced)| *is_silenced).collect();
    assert_eq!((shown.len(), shown.iter().filter(|is| **is).count(), engine.firing().len()), (2, 1, 1));
    engine.evaluate(at(100), &[heat(1, &[12.0]), heat(2, &[12.0])].concat());
    assert_eq!(engine.news(at(100), REPEAT).len(), 1, "the silence is over");
    assert!(!engine.end_silence(job.id), "it is gone by itself");
}

/// Proves A-10 for alerts and silences.
#[test]
fn there_are_limits_to_alerts_and_silences() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    let readings: Vec<Reading> = (0..10_005).flat_map(|job| heat(job, &[12.0])).collect();
    engine.evaluate(at(0), &readings);
    assert_eq!((engine.overview().alerts.len(), engine.overview().left_out), (10_000, 5));
    engine.evaluate(at(1), &[]);
    assert_eq!(engine.overview().alerts.len(), 200, "so many ended ones are kept");
    let wish = || Wish { rule: None, subject: None, until: at(9), comment: String::new() };
    let made = (0..1_001).filter(|_| engine.silence(wish(), "ann", at(1)).is_some()).count();
    assert_eq!(made, 1_000);
}

#[test]
fn what_fires_is_known_after_a_restart_and_not_told_again() {
    let mut engine = Engine::new(vec![rule(0, 0)]);
    let wish = Wish { rule: None, subject: Some("job-9".into()), until: at(100), comment: String::new() };
    engine.evaluate(at(0), &heat(1, &[12.0]));
    let id = engine.news(at(0), REPEAT)[0].id;
    engine.silence(wish, "ann", at(0));
    let saved = engine.save();
    let mut again = Engine::restore(vec![rule(0, 0)], &saved, at(5)).expect("it was just written");
    assert_eq!(again.overview(), engine.overview());
    again.evaluate(at(5), &[heat(1, &[12.0]), heat(2, &[12.0])].concat());
    let told = again.news(at(5), REPEAT);
    assert_eq!(told.iter().map(|alert| alert.subject.to_string()).collect::<Vec<_>>(), ["job-2"]);
    assert!(told[0].id > id, "a number is used once");
}

#[test]
fn what_cannot_be_read_back_is_refused() {
    let refused = |text: &str| Engine::restore(Vec::new(), text, at(0)).expect_err("a refusal").to_string();
    assert_eq!(refused("{"), "it is damaged");
    assert_eq!(refused(r#"{"version":2,"anything":1}"#), "it has version 2, which is newer than this release");
}
