//! The network between supervisors and the control plane is cut, in a network namespace that the whole product runs in:
//! its loopback goes down, and comes up again. They use the network because their data folder holds no socket.

use std::time::Duration;

use crate::fixtures::network::Namespace;
use crate::fixtures::product::{Product, assert_booked_exactly};
use crate::fixtures::wait_for;

/// A job that holds a lock as a rank holds its device, for so many tenths of a second, and leaves a mark where it was
/// held already.
fn holding(product: &Product, tenths: u32) -> String {
    let (lock, marks) = (product.path("device"), product.path("marks"));
    format!(
        "name: holds\nrun: |\n  exec 9> {0}\n  flock -n 9 || echo twice >> {1}\n  echo begun >> {1}\n  \
         for i in $(seq {tenths}); do sleep 0.1 9>&-; done\n",
        lock.display(),
        marks.display()
    )
}

fn marks(product: &Product) -> Vec<String> {
    let text = std::fs::read_to_string(product.path("marks")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Proves A-13: silence alone is not death, on either side.
#[test]
fn jobs_go_on_while_the_network_is_away() {
    let Some(network) = Namespace::new("a") else { return };
    let mut product = Product::down(&["a=cpu:1"]);
    product.started_by(&["ip", "netns", "exec", network.name()]);
    product.without_socket();
    product.start();
    let id = product.submit(&holding(&product, 60));
    wait_for("the job to begin", || (!marks(&product).is_empty()).then_some(()));
    network.cut_for(Duration::from_secs(4));

    let job = product.wait_state(&id, "succeeded");
    assert_eq!(job["attempts"].as_array().map(Vec::len), Some(1), "nothing was repeated: {job:#}");
    assert_eq!(marks(&product), ["begun"]);
    assert_booked_exactly(&job);
}

/// Proves A-5: the devices of a job that was given up during a partition are free when its next attempt gets them.
#[test]
fn devices_of_a_job_behind_a_partition_are_never_used_twice() {
    let Some(network) = Namespace::new("b") else { return };
    let mut product = Product::down(&["a=cpu:1"]);
    product.started_by(&["ip", "netns", "exec", network.name()]);
    product.without_socket();
    product.option("--orphan-after", "2");
    product.start();
    let id = product.submit(&holding(&product, 50));
    wait_for("the job to begin", || (!marks(&product).is_empty()).then_some(()));
    // Longer than the supervisor waits, and than the control plane lets it live after that.
    network.cut_for(Duration::from_secs(6));

    let job = product.wait_state(&id, "succeeded");
    let marks = marks(&product);
    assert!(marks.len() >= 2, "it was begun again: {job:#}");
    assert!(marks.iter().all(|mark| mark == "begun"), "two ranks had the device at once: {marks:?} {job:#}");
    assert_booked_exactly(&job);
}
