//! Properties under random readings, against a plain restatement of the rules.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::*;

/// The same course for one subject, from the whole history of its values each time.
fn expected(history: &[(Timestamp, Option<f64>)], rule: &Rule) -> Option<State> {
    let (mut broken_since, mut clear_since, mut is_firing) = (None, None, false);
    for (now, value) in history {
        let is_broken = value.is_some_and(|value| value > if is_firing { 5.0 } else { 10.0 });
        if is_broken {
            clear_since = None;
            let since = *broken_since.get_or_insert(*now);
            is_firing |= now.since(since) >= rule.hold;
        } else if is_firing {
            let since = *clear_since.get_or_insert(*now);
            is_firing = now.since(since) < rule.clear_hold;
        }
        if !is_broken && !is_firing {
            broken_since = None;
        }
    }
    match (is_firing, broken_since) {
        (true, _) => Some(State::Firing),
        (false, Some(_)) => Some(State::Pending),
        (false, None) => None,
    }
}

#[test]
fn every_course_follows_the_rules_and_each_begin_has_one_end() {
    for seed in 0..200 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let rule = rule(u64::from(random.next_u32() % 4) * 10, u64::from(random.next_u32() % 3) * 10);
        let mut engine = Engine::new(vec![rule.clone()]);
        let (mut now, mut history, mut told) = (0, Vec::new(), Vec::new());
        for _ in 0..100 {
            now += u64::from(random.next_u32() % 15);
            let value = (!random.next_u32().is_multiple_of(8)).then(|| f64::from(random.next_u32() % 16));
            history.push((at(now), value));
            engine.evaluate(at(now), &value.map(|value| heat(1, &[value])).unwrap_or_default());
            told.extend(engine.news(at(now), Duration::MAX).iter().map(|alert| (alert.id, alert.state)));
            let state = engine.overview().alerts.first().map(|(alert, _)| alert.state);
            let live = state.filter(|state| *state != State::Resolved);
            assert_eq!(live, expected(&history, &rule), "seed {seed} at {now}: {history:?}");
        }
        engine.evaluate(at(now + 1), &[]);
        engine.evaluate(at(now + 100), &[]);
        told.extend(engine.news(at(now + 100), Duration::MAX).iter().map(|alert| (alert.id, alert.state)));
        let begun: Vec<u64> = told.iter().filter(|(_, state)| *state == State::Firing).map(|(id, _)| *id).collect();
        let ended: Vec<u64> = told.iter().filter(|(_, state)| *state == State::Resolved).map(|(id, _)| *id).collect();
        assert_eq!(begun, ended, "seed {seed}");
    }
}
