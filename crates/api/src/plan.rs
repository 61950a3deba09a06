//! How a job's rate compares with the one that it was planned to have.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job's rate beside its plan's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgainstPlan {
    /// Tokens a second on each accelerator, by the plan (estimated).
    pub planned_tokens_per_second_per_accelerator: f64,
    /// Model FLOPs utilisation by the plan, as a part of 1; none if the job file has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_mfu: Option<f64>,
    /// Tokens a second on each accelerator (measured); none if its ranks report no tokens.
    pub tokens_per_second_per_accelerator: Option<f64>,
    /// The measured rate as a part of the planned one.
    pub share: Option<f64>,
    /// Model FLOPs utilisation (measured): the planned one times that part, since a token takes as many of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
}

impl AgainstPlan {
    /// Returns a plan's rate on each accelerator, which isn't zero, with nothing measured yet.
    #[must_use]
    pub fn of(planned: f64, planned_mfu: Option<f64>) -> Self {
        AgainstPlan {
            planned_tokens_per_second_per_accelerator: planned,
            planned_mfu,
            tokens_per_second_per_accelerator: None,
            share: None,
            mfu: None,
        }
    }

    /// Compares the plan with a measured rate: the tokens a second of all accelerators together, if any were reported.
    #[must_use]
    pub fn with_rate(self, tokens_per_second: Option<f64>, accelerators: usize) -> Self {
        let accelerators = u32::try_from(accelerators).ok().filter(|count| *count > 0);
        let measured = tokens_per_second.zip(accelerators).map(|(rate, count)| rate / f64::from(count));
        let share = measured.map(|measured| measured / self.planned_tokens_per_second_per_accelerator);
        AgainstPlan {
            tokens_per_second_per_accelerator: measured,
            share,
            mfu: self.planned_mfu.zip(share).map(|(mfu, share)| mfu * share),
            ..self
        }
    }

    /// Returns the comparison as a line.
    #[must_use]
    pub fn text(&self) -> String {
        let planned = self.planned_tokens_per_second_per_accelerator;
        let (Some(measured), Some(share)) = (self.tokens_per_second_per_accelerator, self.share) else {
            return format!("{planned:.0} tokens/s on each accelerator; its ranks have reported no tokens of late");
        };
        let mfu = self
            .mfu
            .zip(self.planned_mfu)
            .map(|(mfu, planned)| format!(", MFU {:.1} % of {:.1} %", mfu * 100.0, planned * 100.0));
        let mfu = mfu.unwrap_or_default();
        format!(
            "{:.0} %: {measured:.0} of {planned:.0} tokens/s on each accelerator{mfu} (measured, estimated)",
            share * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_told_as_a_part_of_the_planned_one() {
        let against = AgainstPlan::of(812.0, Some(0.43)).with_rate(Some(994.0), 2);
        assert_eq!(
            against.text(),
            "61 %: 497 of 812 tokens/s on each accelerator, MFU 26.3 % of 43.0 % (measured, estimated)"
        );
        let silent = "812 tokens/s on each accelerator; its ranks have reported no tokens of late";
        assert_eq!(AgainstPlan::of(812.0, None).with_rate(None, 2).text(), silent);
        assert_eq!(AgainstPlan::of(812.0, None).with_rate(Some(1.0), 0).text(), silent, "it has no accelerators now");
    }
}
