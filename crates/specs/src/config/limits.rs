//! The table `[limits]` of the configuration file: the most that a user may have at once. Missing keys get
//! defaults.

use gangline_base::{Bytes, InvalidBytes};
use gangline_orchestration::{Limits, UserLimits};
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsV1 {
    jobs_per_user: Option<usize>,
    bytes_per_user: Option<String>,
}

impl LimitsV1 {
    /// Returns the limits; an error says which one is invalid.
    pub(super) fn read(self) -> Result<Limits, String> {
        let all = Limits::default();
        let jobs_max = self.jobs_per_user.unwrap_or(all.user.jobs_max);
        let written = self.bytes_per_user.map(|text| text.parse::<Bytes>()).transpose();
        let bytes_max = written.map_err(|error: InvalidBytes| error.to_string())?.unwrap_or(all.user.bytes_max);
        if jobs_max == 0 || jobs_max > all.waiting_max {
            return Err(format!("jobs_per_user is {jobs_max}, it has to be from 1 to {}", all.waiting_max));
        }
        if !(all.submission_bytes_max..=all.live_bytes_max).contains(&bytes_max) {
            let (least, most) = (all.submission_bytes_max, all.live_bytes_max);
            return Err(format!("bytes_per_user is {bytes_max}, it has to be from {least} to {most}"));
        }
        Ok(Limits { user: UserLimits { jobs_max, bytes_max }, ..all })
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::Bytes;
    use gangline_orchestration::Limits;

    use crate::config::Config;

    #[test]
    fn limits_have_defaults_and_bounds() {
        let read = |text: &str| Config::parse(text).map(|config| config.limits).map_err(|error| error.to_string());
        assert_eq!(read(""), Ok(Limits::default()));
        let own = read("[limits]\njobs_per_user = 20\nbytes_per_user = '16MiB'").expect("sound").user;
        assert_eq!((own.jobs_max, own.bytes_max), (20, Bytes(16 << 20)));
        let check = |text: &str, part: &str| {
            let message = read(&format!("[limits]\n{text}")).expect_err("a refusal");
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("jobs_per_user = 0", "limits: jobs_per_user is 0, it has to be from 1 to 200000");
        check("jobs_per_user = 200001", "from 1 to 200000");
        check("bytes_per_user = '512KiB'", "from 1.0 MiB to 256.0 MiB");
        check("bytes_per_user = '1GiB'", "from 1.0 MiB to 256.0 MiB");
        check("bytes_per_user = 'many'", "many");
        check("jobs = 3", "jobs");
    }
}
