//! The table `[artifacts]`: where the contents of artifacts are kept, if not in the data folder.

use serde::Deserialize;

/// Where the contents of artifacts are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// The address of the place, as `s3://bucket/prefix` or a folder; none: the data folder.
    pub address: Option<String>,
    /// Whether clients download from that place by addresses that the control plane signs, instead of through it.
    pub direct_downloads: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArtifactsV1 {
    address: Option<String>,
    #[serde(default)]
    direct_downloads: bool,
}

impl ArtifactsV1 {
    /// Returns the place; an error says which value is invalid.
    pub(super) fn read(self) -> Result<Artifacts, String> {
        let ArtifactsV1 { address, direct_downloads } = self;
        let is_place = |address: &str| match address.split_once("://") {
            Some((scheme, rest)) => ["s3", "file"].contains(&scheme) && !rest.trim_matches('/').is_empty(),
            // A relative folder would be another one wherever the control plane is started.
            None => address.starts_with('/'),
        };
        if let Some(wrong) = address.as_deref().filter(|address| !is_place(address)) {
            return Err(format!(
                "address: \"{wrong}\" can't be used: write s3://bucket/prefix, or the absolute path of a folder"
            ));
        }
        if direct_downloads && !address.as_deref().is_some_and(|address| address.starts_with("s3://")) {
            return Err("direct_downloads needs an address in S3: only S3 has signed addresses that expire".to_owned());
        }
        Ok(Artifacts { address, direct_downloads })
    }
}

#[cfg(test)]
mod tests {
    use super::Artifacts;
    use crate::config::Config;

    #[test]
    fn a_place_for_artifacts_is_an_address_or_refused() {
        let read = |text: &str| Config::parse(&format!("[artifacts]\n{text}")).map(|config| config.artifacts);
        assert_eq!(Config::default().artifacts, Artifacts::default());
        let found = read("address = 's3://bucket/a'\ndirect_downloads = true").expect("sound");
        assert_eq!((found.address.as_deref(), found.direct_downloads), (Some("s3://bucket/a"), true));
        assert_eq!(read("address = '/mnt/shared'").expect("sound").address.as_deref(), Some("/mnt/shared"));
        let check = |text: &str, part: &str| {
            let message = read(text).expect_err("a refusal").to_string();
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        };
        check("address = 'gs://bucket'", "artifacts: address: \"gs://bucket\" can't be used");
        check("address = 's3://'", "can't be used");
        check("address = 'here'", "absolute path");
        check("direct_downloads = true", "needs an address in S3");
        check("address = '/mnt/shared'\ndirect_downloads = true", "needs an address in S3");
        check("adress = 's3://bucket'", "adress");
    }
}
