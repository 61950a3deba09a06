//! The store from Python beside other checkpoint libraries: the same training state, the same disk, in the same run.
//!
//! Each library saves and loads in a process of its own (`peers.py`), in rounds that take turns, so that none finds what
//! another left behind; medians are shown. As the rules of MLPerf Storage (version 2, checkpointing workload) ask, a
//! save ends with its fsync, and what is loaded is read from the disk: its pages are dropped from the cache first, and the
//! script checks by the kernel's account that the disk was read. Each library is set up as its documentation
//! recommends for speed, and loads into the state that is there if it can. Loaded bytes are compared with those saved.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use xtask::environment::{self, Environment};
use xtask::wheel::{MATURIN, install_wheel};

use super::super::report::{Bar, Report, median, number};
use super::super::training;
use super::spread;

/// The run whose state is saved, the step, and how often it is in the state: once is 0.32 GB.
const RUN: &str = "finetune-2e-5";
const STEP: &str = "150";
const COPIES: &str = "3";
const COPIES_QUICK: &str = "1";
const ROUNDS: usize = 3;
const ROUNDS_QUICK: usize = 1;

/// A library, or a way of using one.
struct Peer {
    /// What `peers.py` calls it.
    name: &'static str,
    /// What the table calls it.
    says: &'static str,
    /// What has to be installed for it.
    packages: &'static [&'static str],
}

const OURS: &str = "gangline";
const OURS_OVERLAP: &str = "gangline-overlap";
const OURS_NEW: &str = "gangline-new";
const OURS_FIRST: &str = "gangline-first";
const OURS_BACKGROUND: &str = "gangline-background";
const DCP_ASYNC: &str = "dcp-async";
const DCP_ASYNC_KEPT: &str = "dcp-async-kept";
const RUNAI: &str = "runai";
const SAFETENSORS_ON_OURS: &str = "safetensors-on-ours";
const SAFETENSORS_INTO: &str = "safetensors-into";

const PEERS: [Peer; 18] = [
    Peer { name: OURS, says: "gangline.Store", packages: &[] },
    Peer { name: OURS_OVERLAP, says: "gangline.Store, stable_until=optimizer", packages: &[] },
    Peer { name: OURS_NEW, says: "gangline.Store, loaded into new memory", packages: &[] },
    Peer { name: OURS_FIRST, says: "gangline.Store, verify=\"first\"", packages: &[] },
    Peer { name: OURS_BACKGROUND, says: "gangline.Store, verify=\"background\"", packages: &[] },
    Peer { name: "torch", says: "torch.save", packages: &[] },
    Peer { name: "safetensors", says: "safetensors", packages: &["safetensors>=0.5"] },
    Peer { name: "dcp", says: "torch DCP", packages: &[] },
    Peer { name: "dcp-threads", says: "torch DCP, 4 threads", packages: &[] },
    Peer { name: DCP_ASYNC, says: "torch DCP async", packages: &[] },
    Peer { name: DCP_ASYNC_KEPT, says: "torch DCP async, stager kept", packages: &[] },
    Peer { name: "torchsnapshot", says: "torchsnapshot", packages: &["torchsnapshot"] },
    Peer { name: "torchsnapshot-async", says: "torchsnapshot async", packages: &["torchsnapshot"] },
    Peer { name: "orbax", says: "orbax", packages: &["orbax-checkpoint", "jax>=0.5"] },
    Peer { name: "orbax-async", says: "orbax async", packages: &["orbax-checkpoint", "jax>=0.5"] },
    Peer { name: RUNAI, says: "Run:ai streamer on gangline's file", packages: &["runai-model-streamer"] },
    Peer { name: SAFETENSORS_ON_OURS, says: "safetensors on gangline's file, mapped", packages: &["safetensors>=0.5"] },
    Peer {
        name: SAFETENSORS_INTO,
        says: "safetensors on gangline's file, copied into a state",
        packages: &["safetensors>=0.5"],
    },
];

/// What `peers.py` measures, in seconds and bytes; who only loads has none of a save's.
const COLUMNS: [&str; 9] = ["state", "wall", "cpu", "blocked", "held", "bytes", "load", "load-cpu", "warm"];

/// What one round, or the median of all, says of a peer.
type Figures = BTreeMap<String, f64>;

/// Measures all, prints the table and the bars.
pub(super) fn compare(report: &mut Report, folder: &Path, is_quick: bool) -> Result<()> {
    let target = environment::target()?;
    let environment = training::environment(&target)?;
    environment.install("wheel", &[MATURIN])?;
    install_wheel(&target, &environment)?;
    let state = training::states(&target, &environment, &[RUN])?.join(RUN).join(STEP);
    let (copies, rounds) = if is_quick { (COPIES_QUICK, ROUNDS_QUICK) } else { (COPIES, ROUNDS) };
    let peers: Vec<&Peer> = PEERS.iter().filter(|peer| is_there(report, &environment, peer)).collect();
    let mut measured: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for peer in std::iter::repeat_n(&peers, rounds).flatten() {
        let mut command = training::script(&environment, "checkpoint/peers.py");
        command.arg(peer.name).arg(&state).arg(copies).arg(folder.join("peer"));
        match xtask::command::output(&mut command).and_then(|text| parse(&text)) {
            Ok(figures) => measured.entry(peer.name).or_default().push(figures),
            Err(error) if peer.name == OURS => return Err(error),
            Err(error) => report.skip(peer.says, &format!("{error:#}")),
        }
    }
    let medians: BTreeMap<&str, Figures> = measured.iter().map(|(name, rounds)| (*name, medians(rounds))).collect();
    print(report, &medians, rounds);
    bars(report, &measured);
    Ok(())
}

/// Whether it is installed, or can be.
fn is_there(report: &mut Report, environment: &Environment, peer: &Peer) -> bool {
    let installed = peer.packages.is_empty().then_some(Ok(()));
    let installed = installed.unwrap_or_else(|| environment.install(peer.packages[0], peer.packages));
    if let Err(error) = &installed {
        report.skip(peer.says, &format!("it can't be installed: {error:#}"));
    }
    installed.is_ok()
}

/// Lines of a column's name and its figure.
fn parse(text: &str) -> Result<Figures> {
    let figure = |line: &str| {
        let (name, figure) = line.split_once('\t').with_context(|| format!("peers.py printed {line:?}"))?;
        anyhow::ensure!(COLUMNS.contains(&name), "peers.py printed the unknown column {name:?}");
        Ok((name.to_owned(), figure.parse().with_context(|| format!("peers.py printed {line:?}"))?))
    };
    text.lines().map(figure).collect()
}

fn medians(rounds: &[Figures]) -> Figures {
    let column = |name: &str| {
        let found: Vec<f64> = rounds.iter().filter_map(|figures| figures.get(name).copied()).collect();
        (!found.is_empty()).then(|| (name.to_owned(), median(found)))
    };
    COLUMNS.iter().filter_map(|name| column(name)).collect()
}

/// The table, as Markdown, for docs/benchmarks.md.
fn print(report: &Report, medians: &BTreeMap<&str, Figures>, rounds: usize) {
    let Some(gigabytes) = medians.get(OURS).and_then(|ours| ours.get("state")).map(|bytes| bytes / 1e9) else { return };
    report.section(&format!(
        "from Python: {gigabytes:.2} GB of real training state ({RUN}, step {STEP}: fp32 weights and Adam's moments, bf16 \
         copies), one rank; medians of {rounds} interleaved rounds (measured)"
    ));
    println!(
        "| | blocks s | holds up s | saved, fsync s | CPU s/GB | GB on disk | cold load s | CPU s/GB | warm load s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for peer in PEERS.iter().filter(|peer| medians.contains_key(peer.name)) {
        let of = |column: &str, unit: f64| {
            medians[peer.name].get(column).map_or_else(String::new, |figure| number(figure / unit))
        };
        let cells = [
            of("blocked", 1.0),
            of("held", 1.0),
            of("wall", 1.0),
            of("cpu", gigabytes),
            of("bytes", 1e9),
            of("load", 1.0),
            of("load-cpu", gigabytes),
            of("warm", 1.0),
        ];
        println!("| {} | {} |", peer.says, cells.join(" | "));
    }
}

/// Ratios of a figure of ours to the like of a peer: kept memory beside kept memory, new memory beside new memory.
const RATIOS: [(&str, &str, &str, &str, Bar); 12] = [
    ("blocks, copied beside the step / torch DCP async", OURS_OVERLAP, DCP_ASYNC, "blocked", Bar::AtMost(0.2)),
    (
        "blocks, copied beside the step / torch DCP async, stager kept",
        OURS_OVERLAP,
        DCP_ASYNC_KEPT,
        "blocked",
        Bar::AtMost(0.5),
    ),
    (
        "holds up a step, copied beside it / torch DCP async, stager kept",
        OURS_OVERLAP,
        DCP_ASYNC_KEPT,
        "held",
        Bar::None,
    ),
    ("blocks / torch DCP async", OURS, DCP_ASYNC, "blocked", Bar::AtMost(0.2)),
    ("blocks / torch DCP async, stager kept", OURS, DCP_ASYNC_KEPT, "blocked", Bar::AtMost(0.5)),
    ("cold load / Run:ai streamer's of the same file", OURS, RUNAI, "load", Bar::AtMost(1.0)),
    ("cold load / safetensors' into a state", OURS, SAFETENSORS_INTO, "load", Bar::AtMost(1.0)),
    ("cold load, new memory / safetensors' map", OURS_NEW, SAFETENSORS_ON_OURS, "load", Bar::AtMost(1.0)),
    ("warm load, all verified / safetensors' into a state", OURS, SAFETENSORS_INTO, "warm", Bar::AtMost(1.2)),
    ("warm load, new memory / safetensors' map, which nothing reads", OURS_NEW, SAFETENSORS_ON_OURS, "warm", Bar::None),
    ("warm load, verified before / safetensors' into a state", OURS_FIRST, SAFETENSORS_INTO, "warm", Bar::AtMost(1.2)),
    (
        "warm load, verified later / safetensors' into a state",
        OURS_BACKGROUND,
        SAFETENSORS_INTO,
        "warm",
        Bar::AtMost(1.2),
    ),
];

/// What the issues ask of them: the medians' ratio, and how far the rounds' own ratios lie apart. Only gangline verifies.
fn bars(report: &mut Report, measured: &BTreeMap<&str, Vec<Figures>>) {
    let of = |name: &str, column: &str| -> Vec<f64> {
        measured.get(name).into_iter().flatten().filter_map(|figures| figures.get(column)).copied().collect()
    };
    for (what, ours, theirs, column, bar) in RATIOS {
        let (ours, theirs) = (of(ours, column), of(theirs, column));
        if ours.is_empty() || theirs.is_empty() {
            report.skip(what, "one of the two wasn't measured");
            continue;
        }
        let by_round: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        report.figure(&format!("gangline's {what}"), median(ours) / median(theirs), "", bar);
        report.note(&format!("by round: {}", spread(&by_round)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_prints_is_read_and_nothing_else() {
        let figures = parse("wall\t2.5\nbytes\t1000000000\n").unwrap();
        assert_eq!(figures.get("wall"), Some(&2.5));
        assert_eq!(figures.get("load"), None);
        for text in ["wall 2.5", "wal\t2.5", "wall\tfast", "Traceback"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn bars_compare_like_with_like_and_only_what_was_measured() {
        let figures = |blocked, load| {
            vec![Figures::from(
                [("blocked", blocked), ("load", load), ("warm", load)].map(|(name, figure)| (name.to_owned(), figure)),
            )]
        };
        let mut measured = BTreeMap::from([(OURS, figures(0.1, 1.0)), (DCP_ASYNC, figures(0.6, 9.0))]);
        let holds = |measured: &BTreeMap<&str, Vec<Figures>>| {
            let mut report = Report::default();
            bars(&mut report, measured);
            report.finish()
        };
        assert!(holds(&measured));
        measured.insert(RUNAI, figures(0.0, 0.9));
        assert!(!holds(&measured), "Run:ai loads faster");
        measured.insert(RUNAI, figures(0.0, 1.1));
        measured.insert(DCP_ASYNC_KEPT, figures(0.19, 9.0));
        assert!(!holds(&measured), "DCP with its stager kept blocks not even twice as long");
        measured.insert(DCP_ASYNC_KEPT, figures(0.21, 9.0));
        measured.insert(SAFETENSORS_ON_OURS, figures(0.0, 0.5));
        assert!(holds(&measured), "a map is no load into a state that is there");
        measured.insert(OURS_NEW, figures(0.0, 0.6));
        assert!(!holds(&measured), "it is one into new memory");
        measured.insert(OURS_NEW, figures(0.0, 0.4));
        measured.insert(SAFETENSORS_INTO, figures(0.0, 1.0));
        measured.insert(OURS_FIRST, figures(0.0, 1.3));
        assert!(!holds(&measured), "what was verified before takes too long");
    }

    #[test]
    fn medians_are_of_the_rounds_that_have_the_column() {
        let rounds: Vec<Figures> = ["load\t3", "load\t1\nwall\t7", "load\t2"].map(|text| parse(text).unwrap()).to_vec();
        assert_eq!(medians(&rounds), parse("load\t2\nwall\t7").unwrap());
    }
}
