//! The kernel's log as NVIDIA's drivers write it: XIDs of GPUs, SXids of NVSwitches, and a GPU that has fallen off the bus.
//! What each means is data (`xids.toml`), and a site may decide otherwise.
//!
//! Sources: NVIDIA's "XID Errors" and the fabric manager's guide, appendix D; operators: leptonai/gpud, Azure's node health
//! checks, Meta's GCM, Imbue's cluster-health, awslabs. Pure: lines in, verdicts out.

use std::collections::BTreeMap;

use serde::Deserialize;

const STANDARD: &str = include_str!("xids.toml");
/// The largest file of rules.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// What to do about an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Start the program again.
    #[default]
    RestartApplication,
    /// Reset the GPU.
    ResetGpu,
    /// Reboot the node.
    Reboot,
    /// Look closer: run the vendor's diagnosis.
    Inspect,
}

impl Action {
    /// Returns the action in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Action::Nothing => "nothing",
            Action::RestartApplication => "start the program again",
            Action::ResetGpu => "reset the GPU: nvidia-smi --gpu-reset, or reboot",
            Action::Reboot => "reboot the node; if it comes back, reseat or replace the GPU",
            Action::Inspect => "run dcgmi diag -r 3 and replace what it names; reset the GPU or reboot",
        }
    }
}

/// Which kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An XID of a GPU.
    Xid(u32),
    /// An SXid of an NVSwitch.
    SXid(u32),
    /// A GPU that the driver doesn't reach any more.
    OffTheBus,
    /// A double-bit ECC error, as NVML reports it.
    DoubleBitEcc,
}

/// What a line reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEvent {
    /// Which kind.
    pub kind: Kind,
    /// The device on the PCI bus, as the line writes it; empty if it names none.
    pub place: String,
    /// Whether nothing new should start on the node until somebody has acted.
    pub is_fault: bool,
    /// What to do.
    pub action: Action,
    /// What it means; empty if the number isn't in the table.
    pub meaning: String,
}

/// What is made of events.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    xids: BTreeMap<u32, Xid>,
}

/// Why a site's rules can't be used: line and column, and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {what}")]
pub struct RulesError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    xid: Vec<Xid>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Xid {
    number: u32,
    action: Option<Action>,
    fault: Option<bool>,
    /// It is a fault if the line has this word.
    fault_if: Option<String>,
    meaning: Option<String>,
}

impl Rules {
    /// Returns the built-in rules.
    #[must_use]
    pub fn standard() -> Rules {
        Rules::default().with(STANDARD).expect("the built-in rules are read by a test")
    }

    /// Returns these rules with those of a site's file over them: what an entry names replaces what was there.
    ///
    /// # Errors
    /// [`RulesError`] if the file doesn't parse.
    pub fn with(mut self, text: &str) -> Result<Rules, RulesError> {
        let refused = |at: usize, what: String| {
            let before = &text[..text.floor_char_boundary(at)];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
            RulesError { line, column, what }
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(refused(0, format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        let file: File = toml::from_str(text)
            .map_err(|error| refused(error.span().map_or(0, |span| span.start), error.message().replace('\n', " ")))?;
        for new in file.xid {
            let known = self.xids.entry(new.number).or_insert_with(|| Xid {
                number: new.number,
                action: None,
                fault: None,
                fault_if: None,
                meaning: None,
            });
            known.action = new.action.or(known.action);
            known.meaning = new.meaning.or(known.meaning.take());
            if new.fault.is_some() || new.fault_if.is_some() {
                (known.fault, known.fault_if) = (new.fault, new.fault_if);
            }
        }
        Ok(self)
    }

    /// Returns what a line of the kernel's log, or of NVML ([`super::collectors::gpu::Driver::watch`]), reports of GPUs and
    /// their switches; none for any other line.
    #[must_use]
    pub fn judge(&self, line: &str) -> Option<DriverEvent> {
        if let Some((place, number, rest)) = numbered(line, "SXid (") {
            let is_fault = rest.starts_with(", Fatal");
            let meaning = "error of an NVSwitch".to_owned();
            let action = if is_fault { Action::ResetGpu } else { Action::Nothing };
            return Some(DriverEvent { kind: Kind::SXid(number), place, is_fault, action, meaning });
        }
        if let Some((place, number, _)) = numbered(line, ": Xid (") {
            let rule = self.xids.get(&number);
            let has = |word: &String| line.contains(word.as_str());
            let is_fault = rule.is_some_and(|rule| rule.fault == Some(true) || rule.fault_if.as_ref().is_some_and(has));
            let action = rule.and_then(|rule| rule.action).unwrap_or_default();
            let meaning = rule.and_then(|rule| rule.meaning.clone()).unwrap_or_default();
            return Some(DriverEvent { kind: Kind::Xid(number), place, is_fault, action, meaning });
        }
        // The driver may say so without an XID, also over two lines.
        let (kind, meaning) = match line {
            line if line.contains("fallen off the bus") => (Kind::OffTheBus, "the GPU has fallen off the bus"),
            line if line.contains("NVML: GPU is lost") => {
                (Kind::OffTheBus, "the driver doesn't reach the GPU any more")
            }
            line if line.contains("Double Bit ECC Error") => (Kind::DoubleBitEcc, "double-bit ECC error"),
            _ => return None,
        };
        let place = line.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
        let place = place.map_or_else(|| pci(line), |(place, _)| place.to_owned());
        Some(DriverEvent { kind, place, is_fault: true, action: Action::Reboot, meaning: meaning.to_owned() })
    }
}

/// Reads place, number and the rest of `NVRM: Xid (PCI:0000:3b:00): 79, pid=...`.
fn numbered<'a>(line: &'a str, key: &str) -> Option<(String, u32, &'a str)> {
    let (_, rest) = line.split_once(key)?;
    let (place, rest) = rest.split_once("): ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((place.to_owned(), rest[..end].parse().ok()?, &rest[end..]))
}

/// Reads the place in `NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus.` or `NVRM: GPU 0000:18:00.0: GPU has fallen`.
fn pci(line: &str) -> String {
    let is_place = |word: &&str| word.matches(':').count() >= 2 && word.contains(|c: char| c.is_ascii_digit());
    let word = line.split_ascii_whitespace().find(is_place).unwrap_or_default();
    word.trim_end_matches([':', '.', ',']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(line: &str) -> Option<(Kind, bool)> {
        Rules::standard().judge(line).map(|event| (event.kind, event.is_fault))
    }

    #[test]
    fn lines_of_the_drivers_are_told_from_others() {
        let check = |line: &str, expected: Option<(Kind, bool)>| assert_eq!(judged(line), expected, "{line}");
        check("NVRM: Xid (PCI:0000:18:00): 79, pid=1234, GPU has fallen off the bus.", Some((Kind::Xid(79), true)));
        check("NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus.", Some((Kind::OffTheBus, true)));
        check(
            "NVRM: Xid (PCI:0000:b9:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error",
            Some((Kind::Xid(74), true)),
        );
        check("NVRM: Xid (PCI:0000:03:00): 31, pid='1234', name='python3', MMU Fault", Some((Kind::Xid(31), false)));
        check("NVRM: Xid (PCI:0000:03:00): 9999, new", Some((Kind::Xid(9999), false)));
        check("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 04", Some((Kind::Xid(145), false)));
        check("NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Fatal XC0 i0 Link 04", Some((Kind::Xid(145), true)));
        let changed = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from";
        check(&format!("{changed} 0x0 (None) to 0x2 (Node Reboot Required)"), Some((Kind::Xid(154), true)));
        check(&format!("{changed} 0x1 (GPU Reset) to 0x0 (None)"), Some((Kind::Xid(154), false)));
        let switch = "nvidia-nvswitch0: SXid (PCI:0000:00:00.0)";
        check(&format!("{switch}: 20034, Fatal, Link 30 LTSSM Fault Up"), Some((Kind::SXid(20_034), true)));
        check(
            &format!("{switch}: 11004, Non-fatal, Link 36 ingress invalid ACL (First)"),
            Some((Kind::SXid(11_004), false)),
        );
        check(&format!("{switch}: 11004, Severity 0 Engine instance 36"), Some((Kind::SXid(11_004), false)));
        check("NVML: GPU is lost", Some((Kind::OffTheBus, true)));
        for other in
            ["", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  560.35.03", "NVRM: Xid (PCI:0000): x", "Xid 79"]
        {
            check(other, None);
        }
        let place = |line: &str| Rules::standard().judge(line).map(|event| event.place);
        assert_eq!(place("NVML: Double Bit ECC Error (PCI:3B)"), Some("PCI:3B".to_owned()));
        assert_eq!(place("NVRM: GPU at PCI:0000:18:00.0 has fallen off the bus."), Some("PCI:0000:18:00.0".to_owned()));
    }

    #[test]
    fn a_sites_rules_replace_what_they_name_and_mistakes_have_a_place() {
        let line = "NVRM: Xid (PCI:0000:03:00): 94, contained";
        let rules = Rules::standard().with("[[xid]]\nnumber = 94\nfault = true\n").expect("it parses");
        let event = rules.judge(line).expect("an XID");
        assert!(event.is_fault && event.meaning.starts_with("contained ECC"), "{event:?}");
        assert_eq!(event.action, Action::RestartApplication, "what isn't named stays");
        let new =
            Rules::standard().with("[[xid]]\nnumber = 9999\naction = 'reboot'\nfault_if = 'bad'\n").expect("it parses");
        assert!(new.judge("NVRM: Xid (PCI:0): 9999, bad").is_some_and(|event| event.is_fault));
        let refused = |text: &str| Rules::standard().with(text).expect_err("a mistake");
        let error = refused("[[xid]]\nnumber = 94\nfaulty = true\n");
        assert_eq!((error.line, error.column), (3, 1), "{error}");
        assert_eq!(refused("[[xid]]\nnumber = 94\naction = 'pray'\n").line, 3);
        assert_eq!(refused("xid").line, 1);
        assert!(refused("[[xid]]\nfault = true\n").what.contains("number"));
    }
}
