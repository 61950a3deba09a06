//! What tidy looks at: every file of the working tree, the Rust ones parsed, and the packages with their dependencies.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::Breach;
use super::source::Source;

/// Files above this size are data: they are listed, but not read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Deeper folders than this are refused, so that a link loop ends.
const FOLDER_DEPTH_MAX: usize = 16;

/// Folders in the root that aren't ours.
const NOT_OURS: [&str; 3] = ["target", ".git", ".venv"];

/// The working tree.
#[derive(Default)]
pub(crate) struct Workspace {
    /// Every file's text by its path relative to the root, with `/`; empty for what isn't text or is too large.
    pub(crate) files: BTreeMap<String, String>,
    /// The Rust files that parse.
    pub(crate) sources: Vec<Source>,
    /// The members.
    pub(crate) packages: Vec<Package>,
    /// Rust files that don't parse.
    pub(crate) unparsed: Vec<Breach>,
}

/// A member of the workspace.
pub(crate) struct Package {
    /// As in its manifest.
    pub(crate) name: String,
    /// Relative to the root.
    pub(crate) folder: String,
    /// Declared dependencies of all kinds.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A declared dependency.
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) name: String,
    /// Whether it is a dev-dependency.
    pub(crate) is_dev: bool,
    /// Whether only a feature brings it in.
    pub(crate) is_optional: bool,
}

impl Workspace {
    /// Reads the tree below `root`.
    ///
    /// # Errors
    /// When a folder can't be read or `cargo metadata` fails.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        for entry in folder(root)? {
            if !NOT_OURS.contains(&entry.as_str()) {
                read_into(&mut files, root, &entry, FOLDER_DEPTH_MAX)?;
            }
        }
        Ok(Workspace { packages: packages(root)?, ..Workspace::of(files) })
    }

    /// A tree from memory, without packages.
    pub(crate) fn of(files: BTreeMap<String, String>) -> Self {
        let mut workspace = Workspace::default();
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => workspace.sources.push(source),
                Err(error) => workspace.unparsed.push(Breach::new(path, 1, "parse", format!("make it Rust: {error}"))),
            }
        }
        Workspace { files, ..workspace }
    }

    /// A tree from memory for the tests of rules.
    #[cfg(test)]
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        Workspace::of(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }
}

fn folder(path: &Path) -> anyhow::Result<Vec<String>> {
    let entries = fs::read_dir(path).with_context(|| format!("read the folder {}", path.display()))?;
    let names = entries.map(|entry| anyhow::Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<anyhow::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn read_into(files: &mut BTreeMap<String, String>, root: &Path, path: &str, depth: usize) -> anyhow::Result<()> {
    anyhow::ensure!(depth > 0, "{path} lies deeper than {FOLDER_DEPTH_MAX} folders");
    let full = root.join(path);
    let Ok(metadata) = fs::symlink_metadata(&full) else { return Ok(()) };
    if metadata.is_dir() {
        for entry in folder(&full)? {
            read_into(files, root, &format!("{path}/{entry}"), depth - 1)?;
        }
    } else if metadata.is_file() {
        let is_small = metadata.len() <= FILE_BYTES_MAX;
        let text = if is_small { fs::read_to_string(&full).unwrap_or_default() } else { String::new() };
        files.insert(path.to_owned(), text);
    }
    Ok(())
}

fn packages(root: &Path) -> anyhow::Result<Vec<Package>> {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(vec!["--offline".to_owned()])
        .exec()
        .context("run cargo metadata")?;
    let package = |package: &cargo_metadata::Package| {
        let folder = package.manifest_path.parent().and_then(|path| path.strip_prefix(&metadata.workspace_root).ok());
        let dependencies = package.dependencies.iter().map(|dependency| Dependency {
            name: dependency.name.clone(),
            is_dev: dependency.kind == cargo_metadata::DependencyKind::Development,
            is_optional: dependency.optional,
        });
        Package {
            name: package.name.to_string(),
            folder: folder.map(ToString::to_string).unwrap_or_default(),
            dependencies: dependencies.collect(),
        }
    };
    Ok(metadata.packages.iter().map(package).collect())
}
