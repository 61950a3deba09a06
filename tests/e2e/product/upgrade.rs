//! Data folders of earlier releases start, lose nothing, and go on.

use std::path::{Path, PathBuf};

use crate::fixtures::product::{Product, assert_booked_exactly, attempts};

fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/data_folders");
    let entries = std::fs::read_dir(root).expect("the fixtures are there").flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Proves across releases.
#[test]
fn a_data_folder_of_every_earlier_release_starts_and_goes_on() {
    let folders = folders();
    assert!(!folders.is_empty());
    for folder in folders {
        let mut product = Product::down(&["a=cpu:1", "b=cpu:1"]);
        let data = product.data();
        std::fs::create_dir(&data).expect("a folder");
        for file in std::fs::read_dir(&folder).expect("it is there").flatten() {
            std::fs::copy(file.path(), data.join(file.file_name())).expect("there is room");
        }
        product.start();
        let nodes = product.json(&["nodes"]);
        assert_eq!(nodes["nodes"][1]["status"], "draining", "{}: {nodes:#}", folder.display());
        let done = product.job("job-1");
        assert_eq!((done["state"].as_str(), attempts(&done)), (Some("succeeded"), 1), "{}", folder.display());
        assert_booked_exactly(&done);
        let interrupted = product.wait_state("job-2", "succeeded");
        assert_eq!(attempts(&interrupted), 2, "its supervisor is gone: {interrupted:#}");
        assert_booked_exactly(&interrupted);
        for waiting in ["job-3", "job-4", "job-5"] {
            assert_booked_exactly(&product.wait_state(waiting, "succeeded"));
        }
        assert_eq!(product.submit("name: next\nrun: \"true\"\n"), "job-6");
        product.wait_state("job-6", "succeeded");
    }
}
