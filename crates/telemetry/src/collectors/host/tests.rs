//! Recorded files of /proc and /sys (fixtures/README.md), and this machine's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::collectors::{Rates, Reading, Value, metric_named};

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/collectors/fixtures")
}

fn named(samples: &[Sample]) -> BTreeMap<String, Value> {
    let name = |sample: &Sample| match &sample.part {
        Some(part) => format!("{}.{part}", sample.metric.name),
        None => sample.metric.name.to_owned(),
    };
    samples.iter().map(|sample| (name(sample), sample.value)).collect()
}

#[test]
fn recorded_files_are_read() {
    let root = recorded();
    let mut host = Host::with_roots(root.join("proc"), root.join("sys"));
    let found = named(&host.read().expect("its files"));
    let gauge = |name: &str, value: f64| assert_eq!(found.get(name), Some(&Value::Gauge(value)), "{name}");
    let counter = |name: &str, count: u64, scale: f64| {
        assert_eq!(found.get(name), Some(&Value::Counter { count, scale }), "{name}");
    };
    gauge("host.cpus", 2.0);
    // user 272998, system 40851, softirq 1411, steal 4030, of two cores with 100 ticks a second each.
    counter("host.cpu_busy_ratio", 319_290, 1.0 / 200.0);
    counter("host.cpu_steal_ratio", 4_030, 1.0 / 200.0);
    gauge("host.processes_running", 12.0);
    counter("host.cpu_pressure_ratio", 689_733_728, 1e-6);
    gauge("host.memory_bytes", 24_684_092.0 * 1_024.0);
    counter("host.oom_kills_total", 0, 1.0);
    assert!(found.contains_key("host.disk_read_bytes_per_second.vda"), "{found:?}");
    assert!(!found.keys().any(|name| name.contains("loop0") || name.contains("zram0")), "{found:?}");
    assert!(found.contains_key("host.network_receive_bytes_per_second.eth0"), "{found:?}");
    assert!(!found.keys().any(|name| name.ends_with(".lo") || name.ends_with(".ifb0")), "{found:?}");
    counter("host.nfs_read_bytes_per_second./mnt/nfs/test", 1_210_214_218, 1.0);
    counter("host.nfs_requests_per_second./mnt/nfs/test", 1_298, 1.0);
    counter("host.nfs_retransmits_per_second./mnt/nfs/test", 0, 1.0);
    counter("host.lustre_write_bytes_per_second.lustrefs", 93_813_797_294_080, 1.0);
}

/// There is no such port here: files and their contents are those of the kernel's description.
#[test]
fn ports_of_infiniband_say_their_state_and_their_bytes() {
    let root = tempfile::tempdir().expect("a folder");
    let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
    let write = |file: &str, text: &str| {
        let path = port.join(file);
        std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
        std::fs::write(path, text).expect("written");
    };
    write("state", "4: ACTIVE\n");
    write("rate", "400 Gb/sec (4X NDR)\n");
    write("counters/port_rcv_data", "2500\n");
    write("counters/link_downed", "3\n");
    write("counters/port_xmit_wait", "N/A (no PMA)\n");
    let files = Files { proc: root.path().join("proc"), sys: root.path().join("sys") };
    let found = named(&infiniband::samples(&files));
    let expected = [
        ("host.infiniband_link_downs_total.mlx5_0:1", Value::Counter { count: 3, scale: 1.0 }),
        ("host.infiniband_link_up.mlx5_0:1", Value::Gauge(1.0)),
        ("host.infiniband_rate_bits_per_second.mlx5_0:1", Value::Gauge(400e9)),
        ("host.infiniband_receive_bytes_per_second.mlx5_0:1", Value::Counter { count: 2_500, scale: 4.0 }),
    ];
    assert_eq!(found, expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    write("state", "1: DOWN\n");
    assert_eq!(named(&infiniband::samples(&files))["host.infiniband_link_up.mlx5_0:1"], Value::Gauge(0.0));
}

#[test]
fn files_that_make_no_sense_say_nothing() {
    for text in ["", "\n", "cpu", "cpu  1 2", "cpu  x y z", "\u{0}\u{1}", "cpu0", "some avg10", "eth0:", "a: b c d"] {
        assert!(cpu::samples(text).iter().all(|sample| sample.metric.name == "host.cpus"), "{text:?}");
        assert_eq!(cpu::load("").map(|sample| sample.value), None);
        assert_eq!(memory::samples(text, text), [], "{text:?}");
        assert_eq!(disks::samples(text, &|_| true), [], "{text:?}");
        assert_eq!(network::samples(text), [], "{text:?}");
        assert_eq!(mounts::nfs(text), [], "{text:?}");
        assert_eq!(mounts::space(text), [], "{text:?}");
    }
    let nowhere = Host::with_roots("/nowhere".into(), "/nowhere".into()).read();
    assert!(matches!(nowhere, Err(SourceError::Unreadable { .. })), "{nowhere:?}");
}

#[test]
fn the_space_of_a_file_system_is_told_once() {
    let mounts =
        "/dev/vda / ext4 rw 0 0\n/dev/vda /var\\040lib ext4 rw 0 0\nproc /proc proc rw 0 0\nsrv:/a /mnt nfs4 rw 0 0\n";
    let found = named(&mounts::space(mounts));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["host.filesystem_inodes_used_ratio./", "host.filesystem_used_ratio./"]);
    let is_part = |value: &Value| matches!(value, Value::Gauge(part) if (0.0..=1.0).contains(part));
    assert!(found.values().all(is_part), "{found:?}");
}

#[test]
fn this_machine_is_read_twice_and_rates_come_out() {
    let (mut host, mut rates) = (Host::this_machine(), Rates::default());
    rates.readings(Duration::from_secs(1), host.read().expect("this machine"));
    let readings = rates.readings(Duration::from_secs(2), host.read().expect("this machine"));
    assert!(readings.iter().all(|reading| reading.value.is_finite() && metric_named(&reading.name).is_some()));
    let value = |name: &str| readings.iter().find(|reading: &&Reading| reading.name == name).map(|r| r.value);
    assert!(value("host.cpu_busy_ratio").is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{readings:?}");
    assert!(value("host.memory_bytes").is_some_and(|bytes| bytes > 1e6), "{readings:?}");
}
