//! Events that NVIDIA's driver reports of its GPUs: critical XIDs and double-bit ECC errors. Any user may
//! listen, while the kernel's log, which has XIDs too, is often restricted to root.
//!
//! Source: NVIDIA's NVML API reference, "Event Types" and nvmlEventSetWait_v2.

use std::io;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;

use super::driver::GPUS_MAX;

/// The events to listen for.
const WANTED: EventTypes = EventTypes::CRITICAL_XID_ERROR.union(EventTypes::DOUBLE_BIT_ECC_ERROR);
/// Maximum time of one wait, in milliseconds.
const WAIT_MS: u32 = 10_000;
/// NVML's code for an XID that it doesn't know.
const XID_UNKNOWN: u64 = 999;

/// Passes each event to `say` as a line, such as `NVML: Xid (PCI:00000000:3B:00.0): 79`, until `say` fails or
/// the driver has no more events.
pub(super) fn watch(nvml: &Nvml, mut say: impl FnMut(&str) -> io::Result<()>) -> Result<(), NvmlError> {
    let mut set = nvml.create_event_set()?;
    let mut is_told = false;
    for index in 0..nvml.device_count()?.min(GPUS_MAX) {
        // A GPU that can't be reached or has no events doesn't affect the others.
        let Ok(device) = nvml.device_by_index(index) else { continue };
        let events = device.supported_event_types().unwrap_or(EventTypes::empty()) & WANTED;
        if !events.is_empty() {
            set = device.register_events(events, set).map_err(|refused| refused.error)?;
            is_told = true;
        }
    }
    while is_told {
        let line = match set.wait(WAIT_MS) {
            Ok(event) => line(&event),
            Err(NvmlError::Timeout) => continue,
            Err(NvmlError::GpuLost) => {
                is_told = false;
                "NVML: GPU is lost".to_owned()
            }
            Err(error) => return Err(error),
        };
        is_told &= say(&line).is_ok();
    }
    Ok(())
}

fn line(event: &EventData<'_>) -> String {
    let place = event.device.pci_info().map_or_else(|_| "unknown".to_owned(), |pci| pci.bus_id);
    match &event.event_data {
        Some(XidError::Value(xid)) => format!("NVML: Xid (PCI:{place}): {xid}"),
        Some(XidError::Unknown) => format!("NVML: Xid (PCI:{place}): {XID_UNKNOWN}"),
        None => format!("NVML: Double Bit ECC Error (PCI:{place})"),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A driver of three GPUs: the first can't be reached, the second has no events; the third has an XID and
    /// a double-bit ECC error, then is lost. A call in any other order is an error.
    const DRIVER: &str = r#"
        #include <stdint.h>
        #include <string.h>
        typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
        typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
        static int set, step;
        int nvmlInit_v2(void) { return 0; }
        int nvmlShutdown(void) { return 0; }
        int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
        int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
            *device = (void *)(uintptr_t)(index + 1);
            return index == 0 ? 15 : 0;
        }
        int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
            *types = 0x1f;
            return (uintptr_t)device == 2 ? 3 : 0;
        }
        int nvmlEventSetCreate(void **created) { *created = &set; return 0; }
        int nvmlEventSetFree(void *freed) { return freed == &set ? 0 : 2; }
        int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *in) {
            return (uintptr_t)device == 3 && types == (0x8 | 0x2) && in == &set ? 0 : 2;
        }
        int nvmlDeviceGetPciInfo_v3(void *device, Pci *pci) {
            memset(pci, 0, sizeof *pci);
            strcpy(pci->bus_id, "00000000:3B:00.0");
            return (uintptr_t)device == 3 ? 0 : 2;
        }
        int nvmlEventSetWait_v2(void *in, Event *event, unsigned timeout) {
            memset(event, 0, sizeof *event);
            event->device = (void *)3;
            switch (step++) {
                case 0: return 10;
                case 1: event->type = 0x8; event->data = 79; return 0;
                case 2: event->type = 0x8; event->data = 999; return 0;
                case 3: event->type = 0x2; return 0;
                default: return 15;
            }
        }
    "#;

    fn driver(folder: &tempfile::TempDir) -> Nvml {
        let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvml.so"));
        std::fs::write(&source, DRIVER).expect("it is writable");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("Rust links by it").success());
        Nvml::builder().lib_path(library.as_os_str()).init().expect("the driver is there")
    }

    /// There is no GPU here: a test library responds as NVIDIA's is documented to.
    #[test]
    fn events_of_all_gpus_that_have_them_are_told_until_one_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut lines = Vec::new();
        let watched = watch(&driver(&folder), |line| {
            lines.push(line.to_owned());
            Ok(())
        });
        watched.expect("it ends well");
        let place = "PCI:00000000:3B:00.0";
        let xid = |xid| format!("NVML: Xid ({place}): {xid}");
        assert_eq!(
            lines,
            [xid(79), xid(999), format!("NVML: Double Bit ECC Error ({place})"), "NVML: GPU is lost".into()]
        );
    }

    #[test]
    fn nobody_is_told_who_does_not_listen_any_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut told = 0;
        let watched = watch(&driver(&folder), |_| {
            told += 1;
            Err(io::ErrorKind::BrokenPipe.into())
        });
        watched.expect("it ends well");
        assert_eq!(told, 1);
    }
}
