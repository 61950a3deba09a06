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
use gangline_coding::{Effort, Rounding, derives_bf16};

use super::report::{Bar, Report};
use measure::Sums;
use state::Checkpoint;

/// A model's run, the step that is coded, and the earlier steps that it is coded against.
struct Case {
    run: &'static str,
    says: &'static str,
    step: u32,
    bases: &'static [u32],
}

const CASES: [Case; 4] = [
    Case { run: "finetune-2e-5", says: "full fine-tuning of MiniLM-L6 (22.7M), lr 2e-5", step: 150, bases: &[100, 50] },
    Case { run: "finetune-1e-6", says: "full fine-tuning of MiniLM-L6, lr 1e-6", step: 150, bases: &[50] },
    Case { run: "lora-2e-4", says: "LoRA (rank 16) on MiniLM-L6, lr 2e-4", step: 150, bases: &[50] },
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
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let python = state::python(&target)?;
    let states = state::states(&target, &python)?;
    let mut report = Report::default();
    if is_quick {
        println!("--quick: the first run only");
    }
    println!(
        "all measured here, single core; GB are 10^9 bytes of raw data; ratios are coded / raw, raw parts included"
    );
    copying(&report, &Checkpoint::read(&states, CASES[0].run, CASES[0].step)?);
    for case in &CASES[..if is_quick { 1 } else { CASES.len() }] {
        let checkpoint = Checkpoint::read(&states, case.run, case.step)?;
        snapshot(&mut report, case, &checkpoint)?;
        if case.run == CASES[0].run {
            peers(&report, &python, &states.join(case.run).join(case.step.to_string()))?;
        }
        for base in case.bases {
            difference(&mut report, (case, *base), &checkpoint, &Checkpoint::read(&states, case.run, *base)?)?;
        }
    }
    Ok(report.finish())
}

/// What one core of this machine copies: the limit of any coder.
fn copying(report: &Report, checkpoint: &Checkpoint) {
    let rate = measure::copy_rate(checkpoint.data());
    report.note(&format!("memcpy into warm memory, for scale: {rate:.1} GB/s"));
}

fn snapshot(report: &mut Report, case: &Case, checkpoint: &Checkpoint) -> Result<()> {
    report.section(&format!("One snapshot: {}, step {}", case.says, case.step));
    for effort in [Effort::Inline, Effort::Tiering] {
        for (kind, says) in KINDS.iter().filter(|(kind, _)| checkpoint.has(kind)) {
            let sums = measure::code(checkpoint, kind, None, effort)?;
            let bar = match (case.run, *kind, effort) {
                ("lora-2e-4", ..) => Bar::None,
                (_, "weights", Effort::Inline) => Bar::AtMost(0.675),
                (_, "weights", Effort::Tiering) => Bar::AtMost(0.665),
                (_, "master", _) => Bar::AtMost(0.84),
                _ => Bar::None,
            };
            print(report, &format!("{says}, {effort:?}"), sums, bar);
            if *kind == "weights" && effort == Effort::Inline && case.run != "lora-2e-4" {
                report.figure(
                    &format!("{says}, {effort:?}: encode, a core"),
                    sums.encode_rate(),
                    "GB/s",
                    Bar::AtLeast(1.0),
                );
            }
        }
    }
    elision(report, checkpoint);
    Ok(())
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

fn difference(
    report: &mut Report,
    (case, step): (&Case, u32),
    checkpoint: &Checkpoint,
    base: &Checkpoint,
) -> Result<()> {
    let interval = case.step - step;
    report.section(&format!("Against the checkpoint {interval} steps before: {}", case.says));
    for effort in [Effort::Inline, Effort::Tiering] {
        let (mut all, mut elided) = (Sums::default(), Sums::default());
        for (kind, says) in KINDS.iter().filter(|(kind, _)| checkpoint.has(kind)) {
            let sums = measure::code(checkpoint, kind, Some(base), effort)?;
            let is_barred = *kind == "weights" && interval == 100 && case.run.starts_with("finetune");
            let bar = if is_barred { Bar::AtMost(0.35) } else { Bar::None };
            print(report, &format!("{says}, {effort:?}"), sums, bar);
            all = all.with(sums);
            elided = elided.with(if *kind == "weights" { sums.coded_to_nothing() } else { sums });
        }
        let bar = if case.run == "lora-2e-4" { Bar::AtMost(0.15) } else { Bar::None };
        print(report, &format!("the whole checkpoint, {effort:?}"), all, Bar::None);
        print(report, &format!("the whole checkpoint, {effort:?}, bf16 copies elided"), elided, bar);
    }
    Ok(())
}

fn print(report: &mut Report, what: &str, sums: Sums, bar: Bar) {
    let rates = format!("(encode {:.2}, decode {:.2} GB/s)", sums.encode_rate(), sums.decode_rate());
    report.figure(&format!("{what} {rates}"), sums.ratio(), "", bar);
}

fn peers(report: &Report, python: &Path, checkpoint: &Path) -> Result<()> {
    let mut command = state::script(python, "peers.py");
    command.arg(checkpoint).args(["weights", "master", "first", "second"]);
    for line in crate::command::output(&mut command)?.lines() {
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
