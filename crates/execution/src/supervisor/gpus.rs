//! Listens to NVIDIA's driver for events of this node's GPUs while the ranks run
//! ([`crate::health::node::watch_gpus`]), in a separate process, since the driver may hang.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::sync::mpsc::Sender;

use super::companion::Companion;
use super::input::Input;
use crate::health::node::gpu_fault;

/// Maximum number of bytes read from it.
const BYTES_MAX: u64 = 64 << 10;

/// Lines about hardware faults so far.
pub(super) type GpuFaults = Arc<Mutex<Vec<u8>>>;

/// The listening process.
#[derive(Debug)]
pub(super) struct GpuWatch {
    _process: Companion,
    faults: GpuFaults,
}

impl GpuWatch {
    /// Starts `program watch-gpus`. Each fault is sent to `inputs` at once.
    pub(super) fn start(program: &Path, inputs: Sender<Input>) -> io::Result<GpuWatch> {
        let (process, output) = Companion::start(program, &["watch-gpus"])?;
        let watch = GpuWatch { _process: process, faults: GpuFaults::default() };
        let faults = Arc::clone(&watch.faults);
        let listen = move || {
            let Some(output) = output else { return };
            for line in BufReader::new(output.take(BYTES_MAX)).lines().map_while(Result::ok) {
                let Some(finding) = gpu_fault(&line) else { continue };
                faults.lock().expect("nobody panics while it has this").extend(format!("{line}\n").into_bytes());
                // The receiver is gone if the attempt is over.
                let _ = inputs.blocking_send(Input::Checked(vec![finding]));
            }
        };
        thread::Builder::new().name("gpus".to_owned()).spawn(listen)?;
        Ok(watch)
    }

    /// Returns the faults it has reported, including later ones.
    pub(super) fn faults(&self) -> GpuFaults {
        Arc::clone(&self.faults)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn faults_of_the_hardware_are_told_at_once_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("watch");
        let script = "#!/bin/sh\n[ \"$1\" = watch-gpus ] || exit 1\n\
                      echo 'NVML: Xid (PCI:00000000:3B:00.0): 31'\necho 'NVML: Xid (PCI:00000000:3B:00.0): 79'\nexec cat\n";
        std::fs::write(&program, script).expect("it is writable");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        let (inputs, mut heard) = tokio::sync::mpsc::channel(4);
        let watch = GpuWatch::start(&program, inputs).expect("it starts");
        let Some(Input::Checked(findings)) = heard.blocking_recv() else { panic!("it finds something") };
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].place().as_str(), findings[0].measured.contains(" 79")),
            ("gpu PCI:00000000:3B:00.0", true)
        );
        assert_eq!(*watch.faults().lock().expect("nobody panics"), b"NVML: Xid (PCI:00000000:3B:00.0): 79\n");
        drop(watch);
        assert!(heard.blocking_recv().is_none(), "the process ends with its watch");
    }
}
