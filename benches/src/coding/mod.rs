//! `bench coding`: how small and how fast the tensor coder is on real training state, beside what others make of the same bytes.
//!
//! The state is made by training small models (`training_state.py`), in a Python environment that the benchmark sets up
//! once below target/; other coders run in it too (`peers.py`). Rates are bytes of raw data for each second of one core (the
//! thread's CPU time, so that other work on the machine hardly counts); each is that of a whole checkpoint, tensor by
//! tensor, decoded and compared. Bars are those of issue 4, each for the state that it names.

mod measure;
mod state;

use std::path::Path;

use anyhow::Result;
use gangline_compression::{Effort, Rounding, derives_bf16};

use super::report::{Bar, Report};
use super::training;
use measure::Sums;
use state::Checkpoint;
use xtask::environment::{self, Environment};

/// A model's run, the step that is coded, and the earlier steps that it is coded against.
struct Case {
    run: &'static str,
    says: &'static str,
    step: u32,
    bases: &'static [u32],
}

/// Other coders.
const PEERS: [&str; 3] = ["zstandard", "lz4", "zipnn"];

/// The run in which only adapters are trained.
const LORA: &str = "lora-2e-4";

const CASES: [Case; 4] = [
    Case { run: "finetune-2e-5", says: "full fine-tuning of MiniLM-L6 (22.7M), lr 2e-5", step: 150, bases: &[100, 50] },
    Case { run: "finetune-1e-6", says: "full fine-tuning of MiniLM-L6, lr 1e-6", step: 150, bases: &[50] },
    Case { run: LORA, says: "LoRA (rank 16) on MiniLM-L6, lr 2e-4", step: 150, bases: &[50] },
    Case { run: "pretrain-1e-3", says: "pre-training of a 14M transformer, lr 1e-3", step: 200, bases: &[110, 100] },
];

/// What a checkpoint holds, in the order of the index: its kind and what that is.
const KINDS: [(&str, &str); 5] = [
    ("frozen", "frozen bf16 weights"),
    ("weights", "bf16 weights"),
    ("master", "fp32 master"),
    ("first", "Adam m, fp32"),
    ("second", "Adam v, fp32"),
];

/// Measures and prints; whether every bar held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let is_quick = match options {
        [] => false,
        [option] if option == "--quick" => true,
        _ => anyhow::bail!("bench coding takes --quick, not {}", options.join(" ")),
    };
    let target = environment::target()?;
    let environment = training::environment(&target)?;
    environment.install("coders", &PEERS)?;
    let cases = &CASES[..if is_quick { 1 } else { CASES.len() }];
    let states = training::states(&target, &environment, &cases.iter().map(|case| case.run).collect::<Vec<_>>())?;
    let mut report = Report::default();
    if is_quick {
        println!("--quick: the first run only");
    }
    println!(
        "all measured here, single core; GB are 10^9 bytes of raw data; ratios are coded / raw, raw parts included"
    );
    copying(&report, &Checkpoint::read(&states, CASES[0].run, CASES[0].step)?);
    for case in cases {
        let checkpoint = Checkpoint::read(&states, case.run, case.step)?;
        report.section(&format!("One snapshot: {}, step {}", case.says, case.step));
        coding(&mut report, (case, None), &checkpoint, None)?;
        elision(&mut report, &checkpoint);
        if case.run == CASES[0].run {
            peers(&report, &environment, &states.join(case.run).join(case.step.to_string()))?;
        }
        for base in case.bases {
            let interval = case.step - base;
            report.section(&format!("Against the checkpoint {interval} steps before: {}", case.says));
            let base = Checkpoint::read(&states, case.run, *base)?;
            coding(&mut report, (case, Some(interval)), &checkpoint, Some(&base))?;
        }
    }
    Ok(report.finish())
}

/// What one core of this machine copies: the limit of any coder.
fn copying(report: &Report, checkpoint: &Checkpoint) {
    let rate = measure::copy_rate(checkpoint.data());
    report.note(&format!("memcpy into warm memory, for scale: {rate:.1} GB/s"));
}

/// Codes all kinds at both efforts, alone or against a base so many steps before.
fn coding(
    report: &mut Report,
    (case, interval): (&Case, Option<u32>),
    checkpoint: &Checkpoint,
    base: Option<&Checkpoint>,
) -> Result<()> {
    for effort in [Effort::Inline, Effort::Tiering] {
        let (mut all, mut elided) = (Sums::default(), Sums::default());
        for (kind, says) in KINDS.iter().filter(|(kind, _)| checkpoint.has(kind)) {
            let sums = measure::code(checkpoint, kind, base, effort)?;
            print(report, &format!("{says}, {effort:?}"), sums, bar((case.run, kind), effort, interval));
            if *kind == "weights" && effort == Effort::Inline && interval.is_none() && case.run != LORA {
                let what = format!("{says}, {effort:?}: encode, a core");
                report.figure(&what, sums.encode_rate(), "GB/s", Bar::AtLeast(1.0));
            }
            all = all.with(sums);
            elided = elided.with(if *kind == "weights" { sums.coded_to_nothing() } else { sums });
        }
        print(report, &format!("the whole checkpoint, {effort:?}"), all, Bar::None);
        let bar = bar((case.run, "whole"), effort, interval);
        print(report, &format!("the whole checkpoint, {effort:?}, bf16 copies elided"), elided, bar);
    }
    Ok(())
}

/// The bar of issue 4 for such a state, if there is one.
fn bar((run, kind): (&str, &str), effort: Effort, interval: Option<u32>) -> Bar {
    match (run, kind, effort, interval) {
        (LORA, "whole", _, Some(_)) => Bar::AtMost(0.15),
        (LORA, ..) => Bar::None,
        (_, "weights", Effort::Inline, None) => Bar::AtMost(0.675),
        (_, "weights", Effort::Tiering, None) => Bar::AtMost(0.665),
        (_, "master", _, None) => Bar::AtMost(0.84),
        (_, "weights", _, Some(100)) if run.starts_with("finetune") => Bar::AtMost(0.35),
        _ => Bar::None,
    }
}

/// Which bf16 copies need not be stored at all.
fn elision(report: &mut Report, checkpoint: &Checkpoint) {
    let copies: Vec<_> = checkpoint.of("weights").zip(checkpoint.of("master")).collect();
    let derived = copies.iter().filter(|(copy, master)| {
        derives_bf16(checkpoint.bytes(master), checkpoint.bytes(copy)) == Some(Rounding::NearestEven)
    });
    let derived = measure::count(derived.count()) / measure::count(copies.len());
    report.figure("part of bf16 copies that follow from the master, bit for bit", derived, "", Bar::AtLeast(1.0));
}

fn print(report: &mut Report, what: &str, sums: Sums, bar: Bar) {
    let rates = format!("(encode {:.2}, decode {:.2} GB/s)", sums.encode_rate(), sums.decode_rate());
    report.figure(&format!("{what} {rates}"), sums.ratio(), "", bar);
}

fn peers(report: &Report, environment: &Environment, checkpoint: &Path) -> Result<()> {
    let mut command = training::script(environment, "coding/peers.py");
    command.arg(checkpoint).args(["weights", "master", "first", "second"]);
    for line in xtask::command::output(&mut command)?.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [kind, name, ratio, encode, decode] => {
                report.peer(&format!(
                    "{kind}, {name}: {ratio} (encode {encode}, decode {decode} GB/s); same bytes, same run"
                ));
            }
            _ => anyhow::bail!("peers.py printed {line:?}"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_those_of_the_issue_and_only_for_the_states_it_names() {
        let most = |run, kind, effort, interval| match bar((run, kind), effort, interval) {
            Bar::AtMost(most) => most,
            _ => 1.0,
        };
        assert_eq!(most("pretrain-1e-3", "weights", Effort::Inline, None), 0.675);
        assert_eq!(most("pretrain-1e-3", "weights", Effort::Tiering, None), 0.665);
        assert_eq!(most("pretrain-1e-3", "weights", Effort::Tiering, Some(100)), 1.0);
        assert_eq!(most("finetune-1e-6", "weights", Effort::Tiering, Some(100)), 0.35);
        assert_eq!(most("finetune-1e-6", "weights", Effort::Tiering, Some(50)), 1.0);
        assert_eq!(most(LORA, "whole", Effort::Inline, Some(100)), 0.15);
        assert_eq!(most(LORA, "weights", Effort::Inline, None), 1.0);
    }
}
