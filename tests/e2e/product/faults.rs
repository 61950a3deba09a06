//! Twelve kinds of fault, each on one rank and on four: the right kind is told, the right rung is taken, and a run that can go on ends as one that
//! nothing happened to.

use serde_json::Value;

use crate::fixtures::product::{Product, assert_booked_exactly};
use crate::fixtures::slurm::{OnSlurm, is_possible};
use crate::fixtures::wait_for;

/// A fault, what it is to be told as, and what becomes of the job.
struct Case {
    fault: &'static str,
    /// The category, if the logs say one.
    category: Option<&'static str>,
    /// Attempts in all; one: the job ends by it, or nothing was wrong.
    attempts: usize,
    /// What the first attempt's end says.
    because: &'static str,
    /// The checkpoint that the second attempt goes on from.
    from: u32,
}

const fn case(
    fault: &'static str,
    category: Option<&'static str>,
    attempts: usize,
    because: &'static str,
    from: u32,
) -> Case {
    Case { fault, category, attempts, because, from }
}

/// Each strikes after step 26, and the job has saved step 20: it had got further, so that what would fail again is tried once more.
const CASES: [Case; 12] = [
    case("exception", Some("user_code"), 2, "restarts in place", 20),
    case("sigkill", None, 2, "killed by signal 9; restarts in place", 20),
    case("sigterm", None, 2, "killed by signal 15; restarts in place", 20),
    case("hang", None, 2, "the ranks hung; restarts in place", 20),
    case("segfault", Some("user_code"), 2, "killed by signal 11", 20),
    case("exit", None, 2, "exited with code 7; restarts in place", 20),
    case(
        "nan",
        Some("numerical"),
        2,
        "the loss was NaN or infinite for several steps (numerical); restarts in place",
        20,
    ),
    case("host_oom", Some("host_oom"), 2, "(host_oom); restarts in place", 20),
    case("disk_full", Some("storage"), 2, "(storage); restarts in place", 20),
    case("dataloader", Some("data_pipeline"), 2, "(data_pipeline); restarts in place", 20),
    case("network", Some("nccl_network"), 2, "restarts in place", 20),
    case("slow", None, 1, "succeeded", 0),
];

const STEPS: u32 = 60;

fn job_file(shape: &str, fault: &str, folder: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/faulty.py");
    // One that is slow has to be so for long enough to be found.
    let since = if fault == "slow" { 5 } else { 25 };
    format!(
        "name: faulty\n{shape}\n\
         envs: {{FAULT: \"{fault}\", FAULT_RANK: \"2\", FAULT_STEP: \"{since}\", STEPS: \"{STEPS}\"}}\n\
         recovery: {{hang_timeout: 8s}}\nrun: exec python3 -u {script}\ncheckpoint: {{path: \"{folder}\", grace: 2s}}\n"
    )
}

/// What rank 0 has said that begins with these words, in the last attempt.
fn said(product: &Product, job: &str, words: &str) -> String {
    let log = product.run(&["logs", job]).stdout;
    let last = log.lines().filter_map(|line| line.find(words).map(|at| &line[at..])).next_back();
    last.unwrap_or_else(|| panic!("{job} says \"{words}\": {log}")).to_owned()
}

/// A run to its end: from where it went on at last, what it learned, and its report.
fn run(product: &Product, shape: &str, fault: &str) -> (String, String, Value) {
    let folder = product.path(&format!("checkpoints-{fault}"));
    let found = product.path(&format!("found-{fault}"));
    let mut file = job_file(shape, fault, folder.to_str().expect("text"));
    if fault == "slow" {
        file = file.replace("envs: {", &format!("envs: {{UNTIL: \"{}\", ", found.display()));
    }
    let id = product.submit(&file);
    let stragglers = (fault == "slow").then(|| {
        // However long the disk holds the journal up meanwhile. A rank alone is slower than nobody.
        let stragglers = wait_for("the slow rank to be found", || {
            let job = product.job(&id);
            let stragglers = job["attempts"][0]["stragglers"].clone();
            (!is_gang(&job) || stragglers.to_string().contains("rank 2 on")).then_some(stragglers)
        });
        std::fs::write(&found, "").expect("a file");
        stragglers
    });
    let mut job = product.wait_state(&id, "succeeded");
    // At its end, the rank may have been as fast as the others again.
    stragglers.into_iter().for_each(|found| job["attempts"][0]["stragglers"] = found);
    assert_booked_exactly(&job);
    (said(product, &id, "goes on from"), said(product, &id, "learned "), job)
}

fn is_gang(job: &Value) -> bool {
    job["gang"]["nodes"] != 1 || job["gang"]["ranks_per_node"] != 1
}

fn check(case: &Case, (start, learned): (&str, &str), job: &Value, undisturbed: &str) -> Result<(), String> {
    let Case { fault, category, attempts, because, from } = case;
    let list = job["attempts"].as_array().expect("attempts");
    let first = &list[0];
    let wrong = |what: &str| Err(format!("{fault}: {what}: {} {:#}", first["ended_because"], first["fault"]));
    if list.len() != *attempts {
        let ends: Vec<String> = list.iter().map(|attempt| attempt["ended_because"].to_string()).collect();
        return wrong(&format!("{} attempts, not {attempts}: {}", list.len(), ends.join(", ")));
    }
    let end = first["ended_because"].as_str().unwrap_or_default();
    if !end.contains(because) {
        return wrong(&format!("it ended because \"{end}\", not \"{because}\""));
    }
    let diagnosis = first["fault"]["diagnosis"]["category"].as_str();
    // What the supervisor finds out by itself needs no log.
    if *fault != "nan" && diagnosis != *category {
        return wrong(&format!("it is told as {diagnosis:?}, not {category:?}"));
    }
    if start != format!("goes on from step {from}") {
        return wrong(&format!("it {start}, not {from}"));
    }
    let slow = first["stragglers"].to_string();
    if *fault == "slow" && is_gang(job) && !(slow.contains("rank 2 on") && slow.contains("it computes for longer")) {
        return wrong(&format!("its stragglers are {slow}"));
    }
    if learned != undisturbed {
        return wrong(&format!("it {learned}, undisturbed it {undisturbed}"));
    }
    Ok(())
}

fn check_all(product: &Product, shape: &str, cases: &[Case]) {
    let (_, undisturbed, _) = run(product, shape, "none");
    let mut wrong = Vec::new();
    for case in cases {
        let (start, learned, job) = run(product, shape, case.fault);
        wrong.extend(check(case, (&start, &learned), &job, &undisturbed).err());
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn twelve_faults_of_one_rank() {
    let alone: Vec<Case> = CASES.into_iter().filter(|case| case.fault != "network").collect();
    check_all(&Product::up(&["a=cpu:1"]), "resources: {accelerators: \"cpu:1\"}", &alone);
}

#[test]
fn twelve_faults_of_one_rank_of_four() {
    check_all(&Product::up(&["a=cpu:4"]), "resources: {accelerators: \"cpu:4\"}", &CASES);
}

#[test]
fn twelve_faults_of_one_rank_on_two_nodes_of_slurm() {
    if !is_possible() {
        return;
    }
    let on = OnSlurm::up(2);
    check_all(&on.product, "num_nodes: 2\nresources: {accelerators: \"H100:2\"}", &CASES);
}

/// The slow rank is on the gang's second node, and only in its first attempt.
#[test]
fn a_gang_that_wishes_so_leaves_a_node_on_which_a_rank_is_slow() {
    let product = Product::up(&["a=cpu:2", "b=cpu:2", "c=cpu:2", "d=cpu:2"]);
    let folder = product.path("checkpoints");
    let shape = "num_nodes: 2\nresources: {accelerators: \"cpu:2\"}";
    let file = job_file(shape, "slow", folder.to_str().expect("text"));
    let file =
        file.replace("STEPS: \"60\"", "STEPS: \"150\"").replace("recovery: {", "recovery: {evict_stragglers: true, ");
    let id = product.submit(&file);
    // On a busy machine it takes a while until the rank is the slow one beyond doubt; what follows has its own time.
    let has_left = || (product.job(&id)["attempts"].as_array().map(Vec::len) == Some(2)).then_some(());
    wait_for("the gang to leave the slow node", has_left);
    let job = product.wait_state(&id, "succeeded");
    assert_booked_exactly(&job);
    let attempts = job["attempts"].as_array().expect("it ran");
    assert_eq!((attempts.len(), job["faults"].as_u64()), (2, Some(0)), "{job:#}");
    let slow = &attempts[0]["shares"][1]["node"];
    let then = attempts[1]["shares"].as_array().expect("it ran again");
    assert!(then.iter().all(|share| share["node"] != *slow), "{job:#}");
    let why = attempts[0]["ended_because"].as_str().unwrap_or_default();
    assert!(why.contains(&format!("it left {}, where a rank was slow", slow.as_str().expect("a name"))), "{why}");
    assert_ne!(said(&product, &id, "goes on from"), "goes on from step 0");
}
