//! From machines without a Slurm to a gang on all of them, as `docs/guides/slurm-from-scratch.md` says: its commands are run here, in the order
//! in which they stand there.

use std::process::Output;

use crate::fixtures::machines::Machines;
use crate::fixtures::slurm::is_possible;
use crate::fixtures::try_for;
use crate::guide::{blocks, missing, read};

const GUIDE: &str = "docs/guides/slurm-from-scratch.md";

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn plain_machines_become_a_cluster_as_the_guide_says() {
    if !is_possible() {
        return;
    }
    let Some(machines) = Machines::new(3, 3) else { return };
    let run = |command: &str| machines.run("gpu1", command);
    let guide = read(GUIDE);
    let mut commands = 0;
    for block in blocks(&guide) {
        if let Some(name) = block.said("file") {
            machines.share(name, &block.text());
        }
        if block.language != "console" {
            continue;
        }
        let starts: Vec<usize> = (0..block.lines.len()).filter(|at| block.lines[*at].starts_with("$ ")).collect();
        for (index, at) in starts.iter().enumerate() {
            commands += 1;
            let end = starts.get(index + 1).copied().unwrap_or(block.lines.len());
            let (command, printed) = (&block.lines[*at][2..], &block.lines[at + 1..end]);
            let mut last = String::new();
            let mut is_done = || {
                // What goes on in the background says nothing here.
                last = match command.strip_suffix(" &") {
                    Some(alone) => text(&run(&format!("setsid {alone} > /mnt/up.log 2>&1 &"))),
                    None => text(&run(command)),
                };
                missing(printed, &last).is_none().then_some(())
            };
            let is_once = !command.starts_with("gangline nodes") && !command.starts_with("gangline logs");
            let found = if is_once { is_done() } else { try_for(is_done) };
            let up = text(&run("cat /mnt/up.log; tail -n 5 /var/log/slurm/*.log"));
            assert!(found.is_some(), "{GUIDE}:{}: {command} printed\n{last}\n{up}", block.line + at);
        }
    }
    assert_eq!(commands, 7, "the guide is run");

    // A second time changes nothing that runs, and a machine of another Slurm is left alone.
    let again = text(&run("gangline slurm init --nodes gpu[1-3] && sh slurm/check"));
    assert!(again.contains("this Slurm is ready"), "{again}");
    machines.run("gpu2", "sed -i 1d /etc/slurm/slurm.conf");
    let refused = text(&run("sh slurm/everywhere"));
    assert!(refused.contains("gpu2: /etc/slurm/slurm.conf is there and not from gangline slurm init"), "{refused}");
    let refused = run("gangline slurm init --nodes gpu1,gpu2 --out other");
    let said = text(&refused);
    assert!(!refused.status.success() && said.contains("gpu2 has a Slurm already"), "{said}");
    let refused = text(&run("gangline slurm init --nodes gpu1,gpu9 --out other"));
    assert!(refused.contains("no answer from gpu9 (ssh: Could not resolve hostname gpu9)"), "{refused}");
    // What is wrong is found: a munge key that isn't the cluster's.
    machines.run("gpu3", "kill $(cat /run/munge/munged.pid)");
    let check = run("sh slurm/check");
    assert!(!check.status.success() && text(&check).contains("WRONG  gpu3: munge:"), "{}", text(&check));
}
