//! Jobs that are held, changed, chained and resumed, by the command line.

use super::training;
use crate::fixtures::product::{Product, assert_booked_exactly, attempts};

#[test]
fn a_held_job_waits_until_it_is_released() {
    let product = Product::up(&["a=cpu:1"]);
    let first = product.submit("name: first\nrun: exec sleep 60\n");
    let second = product.submit("name: second\nrun: exit 0\n");
    assert_eq!(product.run(&["hold", &second]).stdout, format!("{second}: held\n"));
    let changed = product.run(&["set", &second, "priority=high", "time_limit=1h"]);
    assert_eq!(changed.stdout, format!("{second}: priority set to 750, time limit set to 3600 s\n"));
    product.run(&["cancel", &first]);
    product.wait_state(&first, "cancelled");
    let explained = product.run(&["explain", &second]);
    assert!(explained.stdout.contains("a user holds it"), "{}", explained.stdout);
    assert_eq!(product.run(&["release", &second]).code, 0);
    product.wait_state(&second, "succeeded");
    let refused = product.run(&["hold", &second]);
    assert!(refused.code == 1 && refused.stderr.contains("G0303"), "{}", refused.stderr);
    let nonsense = product.run(&["set", &second, "priority"]);
    assert!(nonsense.code == 2 && nonsense.stderr.contains("KEY=VALUE"), "{}", nonsense.stderr);
}

#[test]
fn a_chain_runs_in_order_and_ends_with_its_first_failure() {
    let product = Product::up(&["a=cpu:4"]);
    let mark = product.path("prepared");
    let prepare = product.submit(&format!("name: prepare\nrun: sleep 0.5; touch {}\n", mark.display()));
    let train = product.submit(&format!("name: train\nafter: {prepare}\nrun: test -e {}\n", mark.display()));
    let fails = format!("name: fails\nafter: {train}\nrun: exit 3\nrecovery: {{max_faults: 0}}\n");
    let fails = product.submit(&fails);
    let never = product.submit(&format!("name: never\nafter: {fails}\nrun: exit 0\n"));
    let always = product.submit(&format!("name: always\nafter: {{{fails}: any}}\nrun: exit 0\n"));
    product.wait_state(&train, "succeeded");
    product.wait_state(&fails, "failed");
    product.wait_state(&always, "succeeded");
    let cancelled = product.wait_state(&never, "cancelled");
    assert_eq!(attempts(&cancelled), 0, "{cancelled:#}");
    let because = cancelled["because"].as_str().unwrap_or_default();
    assert!(because.starts_with(&format!("{fails} did not succeed")), "{because}");
}

#[test]
fn a_resumed_job_goes_on_from_the_checkpoints_of_the_ended_one() {
    let product = Product::up(&["a=cpu:1"]);
    let folder = product.path("checkpoints");
    let steps = "--steps 100000 --checkpoint-every 5";
    let first = product.submit(&training(steps, 1, &folder.display().to_string()));
    product.wait_step(&first, 12);
    product.run(&["cancel", &first]);
    let ended = product.wait_state(&first, "cancelled");
    assert_booked_exactly(&ended);
    let saved = ended["checkpoints"]["last_step"].as_u64().expect("it saved");
    let resumed = product.json(&["resume", &first, "priority=high"])["job"].as_str().expect("an id").to_owned();
    assert_ne!(resumed, first);
    let job = product.wait_step(&resumed, saved + 1);
    assert_eq!((job["origin"].as_str(), job["priority"].as_u64()), (Some(first.as_str()), Some(750)));
    let log = product.run(&["logs", &resumed]);
    assert!(!log.stdout.contains("step 1/"), "it did not begin anew: {}", log.stdout);
    assert_eq!(product.job(&first)["usage"], ended["usage"], "what was booked stays");
    let refused = product.run(&["resume", &resumed]);
    assert!(refused.code == 1 && refused.stderr.contains("G0423"), "{}", refused.stderr);
    product.run(&["cancel", &resumed]);
}
