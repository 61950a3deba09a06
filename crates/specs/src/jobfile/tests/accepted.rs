//! Tests of valid job files: every key reaches the specification, and missing keys get their defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU32;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, Container, EmailAddress, Goal, Launch, Level, Money, Notify, Occasion, Pin, Priority,
    Reduction, Segment, SweepRules, TopologyRequest, Volume, WebhookUrl,
};

use super::*;

const FULL: &str = r#"
name: llama-8b-sft
queue: research
priority: high
num_nodes: {min: 2, max: 2}
spares: 2
datasets: [c4, s3://bucket/pile, c4]
resources: {accelerators: "H100:8", cpus: 32, memory: 256GiB, pool: evaluation}
workdir: ../data
envs: {LR: 3e-4, DEBUG: true, EMPTY: "", COUNT: 007, GANGLINE_STAGING_DIR: ""}
setup: pip install -r requirements.txt
run: |
  python train.py
  echo done
launch: node
topology: {require: block, prefer: rack, segment: {nodes: 1, level: nvlink}}
checkpoint: {path: "ckpt/llama-8b-sft", grace: 1m30s}
recovery: {max_faults: 0, no_progress_limit: 1}
time_limit: 365d
"#;

fn accepted(text: &str, overrides: &[&str]) -> JobSpec {
    let overrides: Vec<String> = overrides.iter().map(|&option| option.to_owned()).collect();
    let outcome = read(text, &overrides);
    let said = rendered(&outcome);
    outcome.unwrap_or_else(|_| panic!("{text}\n{said}"))
}

#[test]
fn every_key_reaches_the_specification() {
    let job = accepted(FULL, &[]);
    assert_eq!((job.name.as_str(), job.queue.as_str(), job.priority), ("llama-8b-sft", "research", Priority::HIGH));
    assert_eq!((job.gang.nodes.get(), job.gang.accelerators_per_node.get()), (2, 8));
    assert_eq!((job.gang.accelerator.0.as_str(), job.gang.launch), ("H100", Launch::PerNode));
    assert_eq!((job.gang.cpus_per_node, job.gang.memory_per_node), (32, Bytes(256 << 30)));
    assert_eq!(job.gang.pool.as_str(), "evaluation");
    assert_eq!(job.datasets, ["c4", "s3://bucket/pile"].map(str::to_owned).into());
    assert_eq!(accepted("run: x\ndatasets: c4", &[]).datasets, ["c4".to_owned()].into());
    let segment = Some(Segment { nodes: NonZeroU32::MIN, level: Level::Nvlink });
    let topology = TopologyRequest { require: Some(Level::Block), prefer: Some(Level::Rack), segment };
    assert_eq!(job.gang.topology, topology);
    assert_eq!(
        (job.program.workdir.as_str(), job.program.run.as_str()),
        ("/work/project/../data", "python train.py\necho done\n")
    );
    assert_eq!(job.program.setup.as_deref(), Some("pip install -r requirements.txt"));
    let envs = [("LR", "3e-4"), ("DEBUG", "true"), ("EMPTY", ""), ("COUNT", "007"), ("GANGLINE_STAGING_DIR", "")];
    assert_eq!(job.program.envs, BTreeMap::from(envs.map(|(name, text)| (name.to_owned(), text.to_owned()))));
    assert_eq!(job.checkpoint.path.as_deref(), Some("/work/project/ckpt/llama-8b-sft"));
    assert_eq!(job.checkpoint.grace, Duration::from_secs(90));
    assert_eq!((job.recovery.max_faults, job.recovery.no_progress_limit), (0, 1));
    assert_eq!(job.time_limit, Some(Duration::from_secs(365 * 86_400)));
    assert_eq!(job.submitter, Submitter("ann".to_owned()));
}

#[test]
fn a_job_comes_after_others() {
    use gangline_base::{Dependency, EndCondition, JobId};
    let after = |text: &str| accepted(&format!("run: x\nafter: {text}"), &[]).after;
    let on = |job, condition| Dependency { job: JobId(job), condition };
    assert_eq!(after("job-12"), [on(12, EndCondition::Success)].into());
    assert_eq!(after("[job-12, 13]"), [on(12, EndCondition::Success), on(13, EndCondition::Success)].into());
    assert_eq!(after("{job-2: any, job-3: failure}"), [on(2, EndCondition::Any), on(3, EndCondition::Failure)].into());
    assert_eq!(accepted("run: x", &["after=job-4"]).after, [on(4, EndCondition::Success)].into());
}

#[test]
fn only_run_is_required() {
    let job = accepted("run: echo hello", &[]);
    assert_eq!((job.name.as_str(), job.queue.as_str(), job.priority), ("job", "default", Priority::NORMAL));
    assert_eq!((job.gang.nodes, job.gang.accelerators_per_node), (NonZeroU32::MIN, NonZeroU32::MIN));
    assert_eq!((job.gang.accelerator.0.as_str(), job.gang.launch), (AcceleratorKind::CPU, Launch::PerAccelerator));
    assert_eq!((job.gang.cpus_per_node, job.gang.memory_per_node), (0, Bytes(0)));
    assert!(job.gang.pool.is_default());
    assert_eq!((job.program.workdir.as_str(), job.program.setup), ("/work/project", None));
    assert_eq!((job.checkpoint.path, job.checkpoint.grace), (None, Duration::from_secs(30)));
    assert_eq!((job.recovery.max_faults, job.recovery.no_progress_limit, job.time_limit), (10, 11, None));
}

#[test]
fn a_limit_without_progress_is_expected_only_of_a_job_that_names_its_checkpoints_folder() {
    let limits = |text: &str| {
        let recovery = accepted(&format!("run: x\n{text}"), &[]).recovery;
        (recovery.max_faults, recovery.no_progress_limit)
    };
    assert_eq!(limits("checkpoint: {path: here}"), (10, 3));
    assert_eq!(limits("checkpoint: {path: here}\nrecovery: {max_faults: 50}"), (50, 3));
    assert_eq!(limits("checkpoint: {grace: 10s}"), (10, 11));
    assert_eq!(limits("recovery: {max_faults: 0}"), (0, 1));
    assert_eq!(limits("recovery: {max_faults: 10000}"), (10_000, 10_001));
    assert_eq!(limits("recovery: {no_progress_limit: 2}"), (10, 2), "what is written holds");
    assert_eq!(limits("checkpoint: {path: here}\nrecovery: {no_progress_limit: 7}"), (10, 7));
}

#[test]
fn stragglers_are_put_up_with_unless_the_job_says_otherwise() {
    let evicts = |text: &str| accepted(&format!("run: x\n{text}"), &[]).recovery.evicts_stragglers;
    assert!(
        !evicts("name: a") && !evicts("recovery: {max_faults: 1}") && !evicts("recovery: {evict_stragglers: false}")
    );
    assert!(evicts("recovery: {evict_stragglers: true}"));
}

#[test]
fn what_is_kept_is_said_key_by_key() {
    let pins = |text: &str| accepted(&format!("run: x\n{text}"), &[]).pins;
    assert_eq!(pins("name: a"), BTreeSet::new());
    assert_eq!(pins("retention: {logs: policy}"), BTreeSet::new());
    assert_eq!(pins("retention: {checkpoints: keep, logs: keep}"), BTreeSet::from([Pin::Logs, Pin::Checkpoints]));
    assert_eq!(pins("retention: {logs: policy, record: keep}"), BTreeSet::from([Pin::Record]));
}

#[test]
fn a_set_option_takes_precedence_and_the_last_one_wins() {
    let options = [
        "resources.accelerators=cpu:4",
        "resources.accelerators=CPU:1",
        "envs.LR=1e-3",
        "envs.NEW=a=b",
        "num_nodes=3",
        "run=python other.py",
        "checkpoint.path=/elsewhere",
        "priority=7",
    ];
    let job = accepted(FULL, &options);
    assert_eq!((job.gang.accelerator.0.as_str(), job.gang.accelerators_per_node.get()), ("cpu", 1));
    assert_eq!(job.gang.cpus_per_node, 32, "its neighbours stay");
    assert_eq!((job.program.envs["LR"].as_str(), job.program.envs["NEW"].as_str()), ("1e-3", "a=b"));
    assert_eq!((job.gang.nodes.get(), job.program.run.as_str()), (3, "python other.py"));
    assert_eq!((job.checkpoint.path.as_deref(), Some(job.priority)), (Some("/elsewhere"), Priority::new(7)));
}

#[test]
fn a_set_option_mends_a_wrong_value_in_the_file() {
    assert_eq!(accepted("run: x\ntime_limit: 5", &["time_limit=5m"]).time_limit, Some(Duration::from_secs(300)));
    assert_eq!(accepted("name: x", &["run=true"]).program.run, "true");
}

#[test]
fn limits_are_themselves_allowed() {
    let job = accepted("run: x\nnum_nodes: 16384\nresources: {accelerators: H100:64, memory: 1024TiB}", &[]);
    assert_eq!(job.gang.devices(), 16_384 * 64);
    assert_eq!(accepted("run: x\nresources: {accelerators: A100}", &[]).gang.accelerators_per_node.get(), 1);
    assert_eq!(Some(accepted("run: x\npriority: 0", &[]).priority), Priority::new(0));
    assert_eq!(accepted("run: x\ncheckpoint: {grace: 0s}", &[]).checkpoint.grace, Duration::ZERO);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the examples are files")]
fn the_examples_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs");
    let mut names = Vec::new();
    for file in fs::read_dir(folder).expect("the examples are there") {
        let path = file.expect("the folder can be read").path();
        let text = fs::read_to_string(&path).expect("an example is text");
        names.push(accepted(&text, &[]).name);
    }
    names.sort();
    assert_eq!(names, ["counting-gang", "hello", "llama-8b-sft"]);
}

#[test]
fn each_job_of_a_sweep_saves_into_a_folder_of_its_own() {
    let saves = |checkpoint: &str| {
        let policy = sweep(&format!("run: x\ncheckpoint: {checkpoint}\nsweep: {{LR: [1, 2]}}")).job.checkpoint.clone();
        (policy.path.expect("a path"), policy.is_shared)
    };
    assert_eq!(saves("{path: /ckpt/sft}"), ("/ckpt/sft/{job}".to_owned(), false));
    assert_eq!(saves("{path: \"/ckpt/{job}/x\"}"), ("/ckpt/{job}/x".to_owned(), false));
    assert_eq!(saves("{path: /ckpt/sft, share: true}"), ("/ckpt/sft".to_owned(), true));
}

#[test]
fn a_sweep_is_a_grid_with_or_without_rules() {
    let short = sweep("run: x\nname: sft\nenvs: {LR: 1e-3, KEEP: me}\nsweep: {LR: [1e-4, 3e-4], BATCH: [8]}");
    assert_eq!(short.rules, SweepRules::default());
    let jobs: Vec<JobSpec> = (0..short.grid.points()).filter_map(|index| short.job(index)).collect();
    assert_eq!(
        jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(),
        ["sft/LR=1e-4,BATCH=8", "sft/LR=3e-4,BATCH=8"]
    );
    let envs = [("LR", "3e-4"), ("BATCH", "8"), ("KEEP", "me")];
    assert_eq!(jobs[1].program.envs, BTreeMap::from(envs.map(|(name, text)| (name.to_owned(), text.to_owned()))));
    let long = sweep(
        "run: x\nsweep: {parameters: {LR: [1, 2]}, max_parallel: 4, early_stop: {metric: accuracy, goal: maximize, min_steps: 100, reduction: 4}}",
    );
    let rules = long.rules.early_stop.expect("it was given");
    assert_eq!(long.rules.max_parallel, NonZeroU32::new(4));
    assert_eq!(
        (rules.metric.as_str(), rules.goal, rules.min_steps.get(), rules.reduction.get()),
        ("accuracy", Goal::Maximize, 100, 4)
    );
    let defaults = sweep("run: x\nsweep: {parameters: {LR: [1, 2]}, early_stop: {min_steps: 5}}");
    let rules = defaults.rules.early_stop.expect("it was given");
    assert_eq!((rules.metric.as_str(), rules.goal, rules.reduction), ("loss", Goal::Minimize, Reduction::DEFAULT));
    // A list under a rule's name is a parameter of that name.
    assert_eq!(sweep("run: x\nsweep: {max_parallel: [1, 2]}").grid.points(), 2);
}

#[test]
fn a_planned_rate_is_read_to_the_thousandth() {
    let planned = |plan: &str| accepted(&format!("run: x\nplan: {plan}"), &[]).planned.expect("a plan");
    let rate = planned("{tokens_per_second_per_accelerator: 1154.9, mfu: 0.524}");
    assert_eq!((rate.tokens_per_second(), rate.mfu()), (1154.9, Some(0.524)));
    assert_eq!(planned("{tokens_per_second_per_accelerator: 1e3}").mfu(), None);
    assert_eq!(accepted("run: x", &[]).planned, None);
}

#[test]
fn a_budget_is_read_exactly() {
    assert_eq!(accepted("run: x\nbudget: {usd: \"0.50\"}", &[]).budget, Some(Money::from_nano_dollars(500_000_000)));
    assert_eq!(accepted("run: x", &[]).budget, None);
}

#[test]
fn a_job_tells_of_its_end_unless_the_file_says_of_what() {
    let notify = |text: &str| accepted(&format!("run: x\nnotify: {text}"), &[]).notify;
    let webhook = Some(WebhookUrl::new("https://hooks.example.org/x").expect("a URL"));
    let told = Notify { webhook, email: None, on: [Occasion::End].into() };
    assert_eq!(notify("{webhook: \"https://hooks.example.org/x\"}"), told);
    let email = Some(EmailAddress::new("me@example.org").expect("an address"));
    let on = [Occasion::Failure, Occasion::Start].into();
    assert_eq!(notify("{email: me@example.org, on: [failure, start]}"), Notify { webhook: None, email, on });
    assert_eq!(accepted("run: x", &[]).notify, Notify::default());
}

#[test]
fn points_are_drawn_from_ranges_and_lists_and_always_the_same() {
    let sweep = |text: &str| super::sweep(&format!("run: x\nsweep: {text}")).grid;
    let text = "{parameters: {LR: {min: 1e-5, max: 1e-2, scale: log}, N: {min: 2, max: 4}, OPT: [a, b]}, samples: 20, seed: 1}";
    let drawn = sweep(text);
    assert_eq!((drawn.points(), drawn.is_list()), (20, true));
    assert_eq!(drawn, sweep(text));
    assert_ne!(drawn, sweep(&text.replace("seed: 1", "seed: 2")));
    for index in 0..20 {
        let point = drawn.point(index).expect("it is one of 20");
        let rate: f64 = point[0].1.parse().expect("a number");
        assert!((1e-5..=1e-2).contains(&rate));
        assert!(["2", "3", "4"].contains(&point[1].1), "{point:?}");
    }
    let shuffled = sweep("{parameters: {A: [1, 2, 3], B: [x, y]}, order: shuffled}");
    assert_eq!((shuffled.points(), shuffled.is_list()), (6, true));
}

#[test]
fn code_is_copied_from_a_folder_or_a_repository_without_the_folder_of_checkpoints() {
    let check = |text: &str, workdir: &str, copied: Option<&str>| {
        let program = accepted(&format!("run: x\n{text}\n"), &[]).program;
        let code = program.code.map(|code| code.tree);
        assert_eq!((program.workdir.as_str(), code.as_deref()), (workdir, copied), "{text}");
    };
    check("workdir: .", "/work/project", None);
    let folder = "Folder(\"/work/project\") None";
    check("workdir: {snapshot: .}", "/work/project", Some(folder));
    let saves = "Folder(\"/work/project\") Some(\"/work/project/saves\")";
    check("workdir: {snapshot: .}\ncheckpoint: {path: saves}", "/work/project", Some(saves));
    let git = |url: &str, reference: &str| format!("Git {{ url: \"{url}\", reference: {reference} }} None");
    for url in ["https://host/code.git", "git@host:team/code", "ssh://git@host/code"] {
        check(&format!("workdir: {{git: \"{url}\"}}"), url, Some(&git(url, "None")));
    }
    let named = git("/work/repository", "Some(\"v1.2\")");
    check("workdir: {git: /work/repository, ref: v1.2}", "/work/repository", Some(&named));
}

#[test]
fn a_job_may_run_in_an_image_and_see_folders_of_its_node() {
    let container = |text: &str| accepted(&format!("run: x\n{text}\n"), &[]).program.container;
    assert_eq!(container(""), None);
    let image = "docker.io/pytorch/pytorch:2.6.0@sha256:0a1b";
    let text = format!("image: {image}\nvolumes: [/data, 'corpus:ro', '/a:/b', '/c:/d:ro', '/e:/f:rw']");
    let volume = |source: &str, target: &str, is_read_only| Volume {
        source: source.to_owned(),
        target: target.to_owned(),
        is_read_only,
    };
    let volumes = vec![
        volume("/data", "/data", false),
        volume("/work/project/corpus", "/work/project/corpus", true),
        volume("/a", "/b", false),
        volume("/c", "/d", true),
        volume("/e", "/f", false),
    ];
    assert_eq!(container(&text), Some(Container { image: image.to_owned(), volumes }));
    let file = |text: &str| container(&format!("image: {text}")).expect("an image").image;
    assert_eq!(
        (&*file("/images/torch.sif"), &*file("./torch.sqsh")),
        ("/images/torch.sif", "/work/project/torch.sqsh")
    );
    let one = container("image: python:3.12\nvolumes: /data").expect("an image");
    assert_eq!(one.volumes, [volume("/data", "/data", false)]);
}

#[test]
fn a_template_gives_what_the_file_leaves_out_and_a_later_one_wins() {
    let job = accepted("template: [h100, team]\nrun: x\nresources: {cpus: 8}\nenvs: {C: high}\n", &["envs.A=set"]);
    let envs: Vec<(&str, &str)> =
        job.program.envs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(envs, [("A", "set"), ("B", "low"), ("C", "high")]);
    let gang = &job.gang;
    assert_eq!((gang.accelerator.0.as_str(), gang.accelerators_per_node.get(), gang.cpus_per_node), ("H100", 8, 8));
    assert_eq!((job.queue.as_str(), job.recovery.max_faults), ("research", 3));
    let envs = accepted("template: [h100, team]\nrun: x", &[]).program.envs;
    assert_eq!(envs.get("A").map(String::as_str), Some("middle"));
    let chosen = accepted("run: x", &["template=h100"]);
    assert_eq!(chosen.gang.accelerators_per_node.get(), 8);
}
