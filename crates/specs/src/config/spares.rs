//! The table `[spares]` of the configuration file: how many spare nodes are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use gangline_base::AcceleratorKind;
use gangline_orchestration::{SpareRules, SpareSizing};
use serde::Deserialize;

use crate::jobfile::parse_duration;

/// The repair time that applies to a confidence without one.
const REPAIR_DEFAULT: Duration = Duration::from_hours(24);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SparesV1 {
    /// The fixed number of spares, by kind.
    #[serde(default)]
    nodes: BTreeMap<String, u32>,
    /// For other kinds: how often the spares have to suffice, in percent.
    confidence: Option<String>,
    /// The time until a lost node is back.
    repair: Option<String>,
}

impl SparesV1 {
    pub(super) fn read(self) -> Result<SpareRules, String> {
        let repair = self.repair.map(|text| parse_duration(&text).map_err(|message| format!("repair {message}")));
        let repair = repair.transpose()?;
        let sizing = match (self.confidence, repair) {
            (Some(text), repair) => {
                let (confidence_milli, repair) = (confidence(&text)?, repair.unwrap_or(REPAIR_DEFAULT));
                Some(SpareSizing { confidence_milli, repair })
            }
            (None, Some(_)) => return Err("repair says nothing without a confidence such as 95%".to_owned()),
            (None, None) => None,
        };
        let nodes = self.nodes.into_iter().map(|(kind, nodes)| (AcceleratorKind(kind), nodes)).collect();
        Ok(SpareRules { nodes, sizing })
    }
}

/// Parses `95%` or `99.5%` into thousandths.
fn confidence(text: &str) -> Result<u32, String> {
    let expected = || format!("confidence is \"{text}\", not a percentage such as 95% or 99.5%");
    let percent = text.strip_suffix('%').ok_or_else(expected)?;
    let (whole, tenths) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(tenths) || whole.len() > 3 || tenths.len() > 1 {
        return Err(expected());
    }
    let number = |digits: &str| digits.parse::<u32>().map_err(|_| expected());
    Ok(number(whole)? * 10 + number(tenths)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gangline_base::AcceleratorKind;
    use gangline_orchestration::{SpareRules, SpareSizing};

    use crate::config::Config;

    #[test]
    fn spares_are_named_or_sized_or_none() {
        let read = |text: &str| Config::parse(text).expect("a sound file").sharing.spares;
        assert_eq!(read(""), SpareRules::default());
        let both = read("[spares]\nnodes = { H100 = 2 }\nconfidence = '99.5%'\nrepair = '12h'");
        assert_eq!(both.nodes, [(AcceleratorKind("H100".to_owned()), 2)].into());
        assert_eq!(both.sizing, Some(SpareSizing { confidence_milli: 995, repair: Duration::from_hours(12) }));
        let sizing = read("[spares]\nconfidence = '95%'").sizing.expect("it is sized");
        assert_eq!((sizing.confidence_milli, sizing.repair), (950, Duration::from_hours(24)));
    }

    #[test]
    fn spares_that_make_no_sense_are_refused() {
        let check = |text: &str, part: &str| {
            let message = Config::parse(&format!("[spares]\n{text}")).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        for bad in ["95", "0.95", "%", "-5%", "99.95%", "1000%", "9x%"] {
            check(&format!("confidence = '{bad}'"), "not a percentage");
        }
        check("confidence = '100%'", "less often than always");
        check("confidence = '0%'", "more often than never");
        check("confidence = '95%'\nrepair = '10s'", "at least a minute");
        check("repair = '24h'", "without a confidence");
        check("confidence = '95%'\nrepair = '24'", "spares: repair");
        check("nodes = { H100 = 1025 }", "1025 spare nodes of H100 are more than the 1024");
        check("count = 3", "count");
    }
}
