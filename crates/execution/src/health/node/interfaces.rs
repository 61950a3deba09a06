//! Checks network cards as the kernel shows them: interfaces (/sys/class/net:
//! Documentation/ABI/testing/sysfs-class-net) and InfiniBand or RoCE ports (/sys/class/infiniband:
//! Documentation/ABI/stable/sysfs-class-infiniband).

use std::fs;
use std::path::Path;

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

const INTERFACES: &str = "/sys/class/net";
const PORTS: &str = "/sys/class/infiniband";
/// Maximum number of interfaces, and of ports, that are examined.
const ENTRIES_MAX: usize = 256;
/// Maximum share of packets with errors.
const ERROR_SHARE_MAX: f64 = 1e-5;
/// Maximum number of times a link may have gone down since boot.
const DOWNS_MAX: u64 = 5;
/// Bit of `flags` that says that the administrator wants the interface up.
const WANTED_UP: u64 = 1;
/// Counters of a port, and the highest values that are normal after a boot or moved cables.
const COUNTERS: [(&str, u64); 5] = [
    ("link_downed", DOWNS_MAX),
    ("symbol_error", 1_000),
    ("port_rcv_errors", 1_000),
    ("local_link_integrity_errors", 10),
    ("excessive_buffer_overrun_errors", 10),
];

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    interfaces(Path::new(INTERFACES))
}

pub(super) fn check_infiniband(_: &Expectations) -> Vec<Finding> {
    ports(Path::new(PORTS))
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).take(ENTRIES_MAX).collect();
    names.sort_unstable();
    names
}

fn text(folder: &Path, file: &str) -> Option<String> {
    fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned())
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    let text = text(folder, file)?;
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok())
}

fn interfaces(root: &Path) -> Vec<Finding> {
    let found: Vec<Finding> = names(root).iter().filter_map(|name| interface(name, &root.join(name))).collect();
    if found.is_empty() {
        return vec![Finding::not_here("no network interface but loopback")];
    }
    found
}

/// Checks an interface that has a card, or that carries traffic without one (bonds, bridges' ports, virtual
/// ones). Skips interfaces that are down and have no card.
fn interface(name: &str, folder: &Path) -> Option<Finding> {
    let state = text(folder, "operstate")?;
    let has_card = folder.join("device").exists();
    let is_wanted = number(folder, "flags").is_some_and(|flags| flags & WANTED_UP != 0);
    if name == "lo" || !is_wanted || !(has_card || state == "up") {
        return None;
    }
    // Virtual interfaces have no speed, or report -1.
    let speed = number(folder, "speed").filter(|megabits| *megabits > 0);
    let shown =
        speed.map_or_else(|| "speed not told".to_owned(), |megabits| format!("{} Gbit/s", megabits as f64 / 1e3));
    let mut finding = Finding::fine(name, format!("{state}, {shown}"));
    if let Some(megabits) = speed {
        finding = finding.figure("megabits_per_second", megabits as f64);
    }
    if state == "down" || state == "lowerlayerdown" {
        let reason = Reason {
            expected: "up",
            why: "the kernel is told to use this card, and its link is down",
            todo: "look at cable and switch (ethtool), or set the interface down if it isn't used",
        };
        return Some(finding.wrong(Verdict::Warning, reason));
    }
    Some(worn(finding, folder))
}

/// Adds errors, and links that go up and down, to the finding.
fn worn(mut finding: Finding, folder: &Path) -> Finding {
    let counted = |file: &str| number(&folder.join("statistics"), file).unwrap_or(0);
    let errors = counted("rx_errors") + counted("tx_errors");
    let packets = counted("rx_packets") + counted("tx_packets");
    let downs = number(folder, "carrier_down_count").unwrap_or(0);
    let share = errors as f64 / packets.max(1) as f64;
    let reason = Reason {
        expected: "next to none",
        why: "lost packets are sent again after a time-out, and collectives wait for them",
        todo: "look at cable, transceiver and switch port (ethtool -S)",
    };
    if share > ERROR_SHARE_MAX {
        finding.measured = format!("{}; {errors} errors in {packets} packets", finding.measured);
        return finding.wrong(Verdict::Warning, reason);
    }
    if downs > DOWNS_MAX {
        finding.measured = format!("{}; the link went down {downs} times since the boot", finding.measured);
        return finding.wrong(Verdict::Warning, reason);
    }
    finding
}

fn ports(root: &Path) -> Vec<Finding> {
    let of = |device: String| {
        let folder = root.join(&device).join("ports");
        names(&folder).into_iter().map(move |port| (format!("{device}/{port}"), folder.join(port)))
    };
    let ports: Vec<_> = names(root).into_iter().flat_map(of).collect();
    if ports.is_empty() {
        return vec![Finding::not_here("no InfiniBand or RoCE device")];
    }
    let rates: Vec<f64> = ports.iter().filter_map(|(_, folder)| gigabits(folder)).collect();
    let fastest = rates.into_iter().fold(0.0, f64::max);
    ports.iter().map(|(name, folder)| port(name, folder, fastest)).collect()
}

/// Parses the rate from text such as `400 Gb/sec (4X NDR)`.
fn gigabits(folder: &Path) -> Option<f64> {
    text(folder, "rate")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Checks a port: `state` has the form `4: ACTIVE`, `phys_state` the form `5: LinkUp`.
fn port(name: &str, folder: &Path, fastest: f64) -> Finding {
    let [state, physical, rate] = ["state", "phys_state", "rate"].map(|file| text(folder, file).unwrap_or_default());
    let layer = text(folder, "link_layer").unwrap_or_default();
    let mut finding = Finding::fine(name, format!("{state}, {physical}, {rate}, {layer}"));
    let slower = gigabits(folder).filter(|gigabits| *gigabits < fastest);
    let counted = |(counter, most): &(&str, u64)| {
        let count = number(&folder.join("counters"), counter).filter(|count| count > most)?;
        Some(format!("{counter} {count}"))
    };
    let errors: Vec<String> = COUNTERS.iter().filter_map(counted).collect();
    if !state.starts_with('4') {
        let reason = Reason {
            expected: "4: ACTIVE",
            why: "NCCL uses the ports that are active: with one less, this node has less bandwidth than the others",
            todo: "look at cable, switch port and subnet manager (ibstat, ibdiagnet); if it isn't used, leave it out by NCCL_IB_HCA",
        };
        return finding.wrong(Verdict::Warning, reason);
    }
    if slower.is_some() {
        let reason = Reason {
            expected: &format!("{fastest} Gb/sec, as another port"),
            why: "a cable or port that came up slower slows every collective that crosses it",
            todo: "look at cable and transceiver (mlxlink, ibdiagnet); if this port is for storage, all is well",
        };
        return finding.wrong(Verdict::Warning, reason);
    }
    finding.measured.extend(errors.iter().map(|error| format!(", {error}")));
    let reason = Reason {
        expected: "next to none",
        why: "errors on the wire are repeated, and each repetition holds up a collective",
        todo: "clean or replace cable and transceiver; clear the counters (perfquery -R) and look again",
    };
    finding.judged(!errors.is_empty(), Verdict::Warning, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
            fs::write(path, format!("{text}\n")).expect("written");
        }
    }

    #[test]
    fn interfaces_that_are_down_or_worn_are_told() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(interfaces(root.path())[0].verdict, Verdict::NotHere);
        write(root.path(), &[("lo/operstate", "unknown"), ("lo/flags", "0x9")]);
        write(root.path(), &[("a/operstate", "up"), ("a/flags", "0x1003"), ("a/speed", "100000"), ("a/device/x", "")]);
        write(root.path(), &[("b/operstate", "down"), ("b/flags", "0x1003"), ("b/device/x", "")]);
        write(root.path(), &[("c/operstate", "down"), ("c/flags", "0x1002"), ("c/device/x", "")]);
        write(
            root.path(),
            &[("d/operstate", "up"), ("d/flags", "0x1003"), ("d/speed", "-1"), ("d/carrier_down_count", "9")],
        );
        write(
            root.path(),
            &[
                ("e/operstate", "up"),
                ("e/flags", "0x1"),
                ("e/statistics/rx_errors", "5"),
                ("e/statistics/rx_packets", "900"),
            ],
        );
        let found = interfaces(root.path());
        let seen: Vec<(&str, Verdict)> =
            found.iter().map(|finding| (finding.subject.as_str(), finding.verdict)).collect();
        let warning = Verdict::Warning;
        assert_eq!(seen, [("a", Verdict::Fine), ("b", warning), ("d", warning), ("e", warning)]);
        assert_eq!(found[0].measured, "up, 100 Gbit/s");
    }

    #[test]
    fn ports_that_are_down_slower_or_noisy_are_told() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!(ports(root.path())[0].verdict, Verdict::NotHere);
        for (port, state, rate) in [
            (0, "4: ACTIVE", "400 Gb/sec (4X NDR)"),
            (1, "1: DOWN", "10 Gb/sec (4X)"),
            (2, "4: ACTIVE", "200 Gb/sec (4X HDR)"),
            (3, "4: ACTIVE", "400 Gb/sec (4X NDR)"),
        ] {
            let folder = root.path().join(format!("mlx5_{port}/ports/1"));
            write(
                &folder,
                &[("state", state), ("rate", rate), ("phys_state", "5: LinkUp"), ("counters/link_downed", "1")],
            );
        }
        write(root.path(), &[("mlx5_3/ports/1/counters/symbol_error", "99999")]);
        let found = ports(root.path());
        let verdicts: Vec<Verdict> = found.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fine, Verdict::Warning, Verdict::Warning, Verdict::Warning]);
        assert!(found[2].expected.contains("400") && found[3].measured.contains("symbol_error 99999"), "{found:?}");
    }
}
