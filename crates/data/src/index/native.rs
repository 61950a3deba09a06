//! The manifest of Gangline's own format: its files, and the checksum of each MiB of tokens.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::FILES_MAX;
use crate::error::Error;
use crate::sealed;
use crate::token_type::TokenType;

/// The manifest's name in its folder.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What the manifest says that the folder is.
pub(crate) const FORMAT: &str = "gangline-tokens";
/// The version of the format that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;

/// What the folder holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) data_type: TokenType,
    /// Of all files.
    pub(crate) tokens: u64,
    pub(crate) files: Vec<Described>,
}

/// A file of tokens, and the file of its documents' ends beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Described {
    pub(crate) bytes: u64,
    /// In hexadecimal, of each block of the tokens.
    pub(crate) blocks: Vec<String>,
    pub(crate) documents: u64,
    /// Of the documents' ends.
    pub(crate) documents_xxh3: String,
}

impl Manifest {
    /// The text of the manifest, with its checksum.
    pub(crate) fn seal(&self) -> Vec<u8> {
        sealed::seal(self)
    }
}

/// Parses a manifest and checks it against its own checksum.
pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Manifest, Error> {
    let bad = |problem: String| Err(Error::malformed(path, 0, problem));
    let (content, is_intact): (Manifest, bool) = match sealed::unseal(text) {
        Ok(unsealed) => unsealed,
        Err(error) => return bad(format!("no manifest of tokens: {error}")),
    };
    if content.format != FORMAT || content.version != VERSION {
        return bad(format!(
            "{} version {} is unknown here; there is {FORMAT} version {VERSION}",
            content.format, content.version
        ));
    }
    if !is_intact {
        return bad("the manifest was changed: its checksum differs; make the data again, or copy it again".to_owned());
    }
    if content.files.len() > FILES_MAX {
        return bad(format!("{} files are more than {FILES_MAX}", content.files.len()));
    }
    Ok(content)
}

/// The name of the `number`th file of tokens.
pub(crate) fn tokens_name(number: usize) -> String {
    format!("tokens-{number:05}.bin")
}

/// The name of the file with its documents' ends.
pub(crate) fn documents_name(number: usize) -> String {
    format!("documents-{number:05}.u64")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::hex;

    fn manifest() -> Manifest {
        let described = Described { bytes: 4, blocks: vec![hex(7)], documents: 1, documents_xxh3: hex(8) };
        Manifest {
            format: FORMAT.to_owned(),
            version: 1,
            data_type: TokenType::Uint16,
            tokens: 2,
            files: vec![described],
        }
    }

    #[test]
    fn a_manifest_is_read_back_and_every_changed_byte_is_found() {
        let text = manifest().seal();
        assert_eq!(parse(Path::new("m"), &text).unwrap(), manifest());
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            assert!(parse(Path::new("m"), &changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let other = Manifest { version: 2, ..manifest() };
        let error = parse(Path::new("m"), &other.seal()).unwrap_err().to_string();
        assert!(
            error.contains("gangline-tokens version 2 is unknown here; there is gangline-tokens version 1"),
            "{error}"
        );
    }

    /// What version 1 looks like on disk; a reader of a later version still takes it.
    #[test]
    fn the_text_of_version_1_is_what_it_was() {
        let text = String::from_utf8(manifest().seal()).unwrap();
        let expected = r#"{"content":{"format":"gangline-tokens","version":1,"data_type":"uint16","tokens":2,"files":[{"bytes":4,"blocks":["0000000000000007"],"documents":1,"documents_xxh3":"0000000000000008"}]},"xxh3":""#;
        assert!(text.starts_with(expected), "{text}");
    }
}
