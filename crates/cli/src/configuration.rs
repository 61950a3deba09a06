//! Reads a control plane's configuration file, and the descriptions of the network and of machines that it
//! names; relative paths start at the configuration file's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gangline_base::DeviceLayout;
use gangline_execution::inventory::read_links;
use gangline_execution::launcher::{Places, read_topology};
use gangline_specs::config::Config;

use crate::failure::Failure;

/// Name of the configuration file in the data folder.
const FILE: &str = "gangline.toml";

/// Returns the configuration file, if there is one.
pub(crate) fn path(folder: &Path, named: Option<&PathBuf>) -> Option<PathBuf> {
    let own = folder.join(FILE);
    named.cloned().or_else(|| own.exists().then_some(own))
}

/// Says that a data folder has no configuration file any more.
pub(crate) fn missing(folder: &Path) -> Failure {
    let message = format!("there is no configuration file {} any more", folder.join(FILE).display());
    Failure::coded("G0505", message, "write it there again; an empty one stands for the defaults")
}

/// Reads the file at `path` and what it names.
///
/// # Errors
/// G0505, with the file and the line.
pub(crate) fn read(path: &Path) -> Result<Config, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        let hint = "docs/reference/configuration.md describes every key";
        Failure::coded("G0505", format!("{}: {error}", path.display()), hint)
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut config = Config::parse(&text).map_err(|error| failed(&error))?;
    let beside = |file: &str| beside(path, file);
    if let Some(file) = config.topology_file.as_deref().map(beside) {
        let places = places(&file)?;
        config.locate(&places).map_err(|error| failed(&error))?;
    }
    // Nodes of one model name the same file.
    let mut layouts: BTreeMap<PathBuf, (DeviceLayout, usize)> = BTreeMap::new();
    for node in &mut config.nodes {
        let Some(file) = node.links_file.as_deref().map(beside) else { continue };
        if !layouts.contains_key(&file) {
            layouts.insert(file.clone(), layout(&file)?);
        }
        if let Some((layout, devices)) = layouts.get(&file) {
            node.join_devices(layout.clone(), *devices).map_err(|error| failed(&error))?;
        }
    }
    Ok(config)
}

/// Returns the path of a file that the configuration at `path` names.
pub(crate) fn beside(path: &Path, file: &str) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from(file), |folder| folder.join(file))
}

/// Returns the network domains of nodes, from a description of the network.
///
/// # Errors
/// G0505, with the file and the line.
pub(crate) fn places(file: &Path) -> Result<Places, Failure> {
    let text = named(file, "topology_file")?;
    read_topology(&text).map_err(|error| unread(file, "topology_file", &error))
}

/// Returns the GPU layout that a links_file describes, and the number of GPUs.
fn layout(file: &Path) -> Result<(DeviceLayout, usize), Failure> {
    let text = named(file, "links_file")?;
    let matrix = read_links(&text).map_err(|error| unread(file, "links_file", &error))?;
    let layout = matrix.layout().map_err(|error| unread(file, "links_file", &error))?;
    Ok((layout, matrix.gpus.len()))
}

fn named(file: &Path, key: &str) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| unread(file, key, &format!(" {error}")))
}

fn unread(file: &Path, key: &str, error: &dyn std::fmt::Display) -> Failure {
    let hint = format!("docs/reference/configuration.md says what a {key} may hold");
    Failure::coded("G0505", format!("{}:{error}", file.display()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[node]]\nname = 'a'\naccelerators = 'L40S:2'\nlinks_file = 'l40s.txt'\n\
        [[node]]\nname = 'b'\naccelerators = 'L40S:2'\nlinks_file = 'l40s.txt'\n";

    fn written(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("it is writable");
        }
        let path = folder.path().join("gangline.toml");
        (folder, path)
    }

    fn message(failure: Failure) -> String {
        match failure {
            Failure::Local { message, .. } => message,
            other => panic!("not of this machine: {other:?}"),
        }
    }

    #[test]
    fn files_are_looked_for_beside_the_configuration() {
        let links = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X SYS\nGPU2 SYS SYS X\n";
        let three = CONFIG.replace(":2", ":3");
        let (_folder, path) = written(&[("gangline.toml", &three), ("l40s.txt", links)]);
        let config = read(&path).unwrap_or_else(|failure| panic!("{}", message(failure)));
        let expected = DeviceLayout::new(vec![vec![0, 0, 1]]).expect("sound");
        assert!(config.nodes.iter().all(|node| node.layout == expected), "{config:?}");
    }

    #[test]
    fn a_file_that_is_missing_or_wrong_is_named_with_its_line() {
        let (_folder, path) = written(&[("gangline.toml", CONFIG)]);
        let missing = message(read(&path).expect_err("it isn't there"));
        assert!(missing.contains("l40s.txt: No such file"), "{missing}");
        let (_folder, path) = written(&[("gangline.toml", CONFIG), ("l40s.txt", "GPU0 GPU1\nGPU0 X PIX\n")]);
        let cut = message(read(&path).expect_err("a row is missing"));
        assert!(cut.contains("l40s.txt:2:1: 2 GPU(s) are in the head"), "{cut}");
        let (_folder, path) = written(&[("gangline.toml", CONFIG), ("l40s.txt", "GPU0\nGPU0 X\n")]);
        let other = message(read(&path).expect_err("another machine"));
        assert!(other.contains("node \"a\": it has 2 accelerators, but its links_file describes 1"), "{other}");
    }
}
