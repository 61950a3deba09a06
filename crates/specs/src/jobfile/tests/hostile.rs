//! Tests with hostile files: any input gives a specification or problems, quickly and without a panic.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

const GOOD: &str = include_str!("../../../../../examples/jobs/torchrun-style.yaml");

/// The number of mutated files that are tried.
const ROUNDS: u64 = 4_000;

/// Texts that mutations insert: YAML's own signs, edges of numbers, characters of several bytes.
const PIECES: [&str; 24] = [
    ":",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "|",
    ">",
    "&a ",
    "*a",
    "!t ",
    "#",
    "\n",
    "\n  ",
    "\t",
    "\0",
    "-1",
    "1e999",
    "99999999999999999999s",
    "é漢🛷",
    "---\n",
];

fn below(random: &mut ChaCha8Rng, limit: usize) -> usize {
    let limit = u64::try_from(limit.max(1)).expect("u64 holds a usize");
    usize::try_from(random.next_u64() % limit).expect("it is below a usize")
}

/// Returns a place between two characters.
fn boundary(random: &mut ChaCha8Rng, text: &str) -> usize {
    let near = below(random, text.len() + 1);
    (near..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

fn mutated(random: &mut ChaCha8Rng) -> String {
    let mut text = GOOD.to_owned();
    for _ in 0..=below(random, 4) {
        let (a, b) = (boundary(random, &text), boundary(random, &text));
        let (from, to) = (a.min(b), a.max(b));
        match below(random, 4) {
            0 => text.insert_str(from, PIECES[below(random, PIECES.len())]),
            1 => text.replace_range(from..to, PIECES[below(random, PIECES.len())]),
            2 => text = format!("{}{}", &text[..from], &text[to..]),
            _ => text = format!("{}{}{}", &text[..to], &text[from..to], &text[to..]),
        }
    }
    text
}

#[test]
fn mutated_files_never_panic_and_are_refused_only_for_a_reason() {
    let mut accepted = 0;
    for seed in 0..ROUNDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let text = mutated(&mut random);
        match read(&text, &[]) {
            Ok(_) => accepted += 1,
            Err(problems) => {
                assert!((1..=Problem::COUNT_MAX).contains(&problems.len()), "seed {seed}");
                let lines = text.lines().count().max(1) + 1;
                for problem in problems {
                    let said = problem.to_string();
                    assert!(said.len() < 1_000 && !said.contains('\n'), "seed {seed}: {said}");
                    let super::super::Place::File { line, column } = problem.place else {
                        panic!("seed {seed}: {said}")
                    };
                    assert!((1..=lines).contains(&line) && column >= 1, "seed {seed}: {said}");
                }
            }
        }
    }
    assert!((100..ROUNDS - 100).contains(&accepted), "{accepted} of {ROUNDS} accepted: the mutations miss the mark");
}

#[test]
fn mutated_options_never_panic() {
    for seed in 0..ROUNDS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pieces: Vec<&str> = (0..below(&mut random, 6)).map(|_| PIECES[below(&mut random, PIECES.len())]).collect();
        let keys = ["envs.", "resources", ".memory", "num_nodes", "=", "run", "sweep.X"];
        let words: Vec<&str> = (0..below(&mut random, 4)).map(|_| keys[below(&mut random, keys.len())]).collect();
        let option = format!("{}{}={}", words.concat(), pieces.concat(), words.concat());
        let outcome = read(GOOD, std::slice::from_ref(&option));
        let said = rendered(&outcome);
        let lines = outcome.as_ref().map_or_else(Vec::len, |_| 1);
        assert!(lines > 0 && said.lines().count() == lines, "seed {seed}: {said}");
    }
}

#[track_caller]
fn check_first(text: &str, expected: &str) {
    let problems = read(text, &[]).expect_err("it is over a limit");
    assert_eq!(problems.first().map(ToString::to_string).as_deref(), Some(expected));
}

#[test]
fn files_over_a_limit_are_refused() {
    check_first(
        &format!("run: x\n# {}", "x".repeat(256 << 10)),
        "G0102 job.yaml:1:1: the file is larger than the limit of 256.0 KiB",
    );
    check_first(
        &format!("run: x\nsweep: {{A: [{}]}}", "1,".repeat(20_000)),
        "G0102 job.yaml:2:19999: the file has too many values (the limit is 10000)",
    );
    check_first(
        &format!("run: {}", "x".repeat(128 << 10)),
        "G0108 job.yaml:1:6: \"run\" has 131072 bytes, over the limit of 131071 (put the commands into a script)",
    );
    check_first(
        &format!("run: x\nenvs:\n{}", (0..1_001).map(|n| format!("  V{n}: 1\n")).collect::<String>()),
        "G0108 job.yaml:3:3: \"envs\" has 1001 variables, over the limit of 1000",
    );
    let digits: Vec<String> = (0..32).map(|n| n.to_string()).collect();
    let list = digits.join(",");
    check_first(
        &format!("run: x\nsweep: {{A: [{list}], B: [{list}]}}"),
        "G0108 job.yaml:2:8: \"sweep\" makes 1024 jobs, over the limit of 1000 (sweep.samples draws some of them)",
    );
    let options: Vec<String> = (0..65).map(|n| format!("envs.V{n}=1")).collect();
    let problems = read("run: x", &options).expect_err("there are too many options");
    assert_eq!(problems[0].code, Code::BadOverride);
}

#[test]
fn no_more_problems_are_told_than_anyone_reads() {
    let text: String = (0..100).map(|n| format!("wrong{n}: 1\n")).collect();
    assert_eq!(read(&text, &[]).expect_err("all keys are wrong").len(), Problem::COUNT_MAX);
}
