//! The table `[code]` of the configuration file: the copies of code that jobs ask for.

use gangline_base::{Bytes, InvalidBytes};
use serde::Deserialize;

/// The largest copy by default. Code is small; what is larger is data or checkpoints that nobody meant to copy.
const SNAPSHOT_DEFAULT: Bytes = Bytes(100 << 20);
/// The largest copy that may be configured: a submission waits for it.
const SNAPSHOT_MAX: Bytes = Bytes(16 << 30);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CodeV1 {
    snapshot_max: Option<String>,
}

impl CodeV1 {
    /// Returns the largest copy; an error says what is invalid.
    pub(super) fn read(self) -> Result<Bytes, String> {
        let Some(text) = self.snapshot_max else { return Ok(SNAPSHOT_DEFAULT) };
        let bytes = text.parse::<Bytes>().map_err(|error: InvalidBytes| error.to_string())?;
        if bytes.0 == 0 || bytes > SNAPSHOT_MAX {
            return Err(format!("snapshot_max is {bytes}, it has to be above 0 and at most {SNAPSHOT_MAX}"));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use gangline_base::Bytes;

    use crate::config::Config;

    #[test]
    fn the_largest_copy_has_a_default_and_bounds() {
        let read =
            |text: &str| Config::parse(text).map(|config| config.snapshot_max).map_err(|error| error.to_string());
        assert_eq!(read(""), Ok(Bytes(100 << 20)));
        assert_eq!(read("[code]\nsnapshot_max = '1GiB'"), Ok(Bytes(1 << 30)));
        for wrong in ["0B", "17GiB", "much"] {
            let message = read(&format!("[code]\nsnapshot_max = '{wrong}'")).expect_err("a refusal");
            assert!(message.starts_with("code: "), "{message}");
        }
    }
}
