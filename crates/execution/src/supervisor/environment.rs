//! The environment of a rank: the supervisor's, the job's own, and exactly torchrun's variables with
//! Gangline's.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gangline_data::READS_VARIABLE;

use super::tracking;
use crate::process::ATTEMPT_FOLDER_VARIABLE;
use crate::protocol::{Rendezvous, SupervisorSpec};

/// Inherited environment variables: any bytes.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// The kind of a CPU slot, which has no device to make visible.
const CPU_KIND: &str = "cpu";
/// The supervisor's own value isn't inherited: its job mustn't run on GPUs that were meant for another.
const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Returns the environment of the setup command, which all ranks share.
pub(super) fn of_node(spec: &SupervisorSpec, inherited: &Environment) -> Environment {
    let mut environment = inherited.clone();
    let visible = environment.remove(&OsString::from(CUDA_VISIBLE_DEVICES));
    for (name, value) in &spec.envs {
        set(&mut environment, name, value);
    }
    if spec.device_kind != CPU_KIND {
        let devices = || spec.devices.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let kept = visible.filter(|_| spec.keeps_visible_devices);
        set(&mut environment, CUDA_VISIBLE_DEVICES, kept.unwrap_or_else(|| devices().into()));
        // Devices are numbered as by the driver's tools; CUDA's default order may put the fastest first.
        set_if_absent(&mut environment, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    }
    set(&mut environment, "GANGLINE_JOB_ID", format!("job-{}", spec.job));
    set(&mut environment, "GANGLINE_NODE", &spec.node);
    set(&mut environment, "GANGLINE_ATTEMPT", spec.attempt.to_string());
    set(&mut environment, "GANGLINE_GENERATION", spec.attempt.to_string());
    environment.insert(ATTEMPT_FOLDER_VARIABLE.into(), spec.folder.clone().into_os_string());
    environment.insert(READS_VARIABLE.into(), reads_folder(spec).into_os_string());
    if let Some(folder) = &spec.checkpoint_dir {
        environment.insert("GANGLINE_CHECKPOINT_DIR".into(), folder.clone().into_os_string());
    }
    let rollback =
        [("GANGLINE_RESTORE_BELOW", spec.restore_below), ("GANGLINE_SKIP_DATA_THROUGH", spec.skip_data_through)];
    for (name, step) in rollback {
        step.into_iter().for_each(|step| set(&mut environment, name, step.to_string()));
    }
    environment
}

/// Returns the folder in which the job's programs on this node note what they ask remote datasets for.
pub(super) fn reads_folder(spec: &SupervisorSpec) -> PathBuf {
    spec.folder.join("dataset-reads")
}

/// Returns the problem with the devices that a launcher made visible, if it was to: a gang on other devices
/// than its own would share them with another gang.
pub(super) fn check_visible(spec: &SupervisorSpec, inherited: &Environment) -> Option<String> {
    if !spec.keeps_visible_devices || spec.device_kind == CPU_KIND {
        return None;
    }
    let visible = inherited.get(&OsString::from(CUDA_VISIBLE_DEVICES)).map(|value| value.to_string_lossy());
    let count = visible.as_deref().map_or(0, |list| list.split(',').filter(|device| !device.is_empty()).count());
    let expected = spec.devices.len();
    (count != expected).then(|| {
        let shown = visible.unwrap_or_default();
        format!(
            "{expected} device(s) were to be made visible on {}, but CUDA_VISIBLE_DEVICES is \"{shown}\"",
            spec.node
        )
    })
}

/// A rank's place on its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankPlace<'a> {
    /// Index of the rank on its node, from 0.
    pub(super) local: u32,
    /// Path of its supervisor's socket.
    pub(super) socket: &'a Path,
    /// Folder in which copies of its saves outlive it.
    pub(super) staging: Option<&'a Path>,
}

/// Returns the environment of the rank in this place on the node. The variables are torchrun's, with a static
/// rendezvous: there is no agent store, rank 0 listens on MASTER_PORT itself.
pub(super) fn of_rank(
    spec: &SupervisorSpec,
    inherited: &Environment,
    rendezvous: &Rendezvous,
    place: RankPlace<'_>,
) -> Environment {
    let RankPlace { local, socket, staging } = place;
    let mut environment = of_node(spec, inherited);
    let rank = (spec.node_rank * spec.ranks_per_node + local).to_string();
    let world_size = (spec.node_count * spec.ranks_per_node).to_string();
    let variables = [
        ("LOCAL_RANK", local.to_string()),
        ("RANK", rank.clone()),
        ("GROUP_RANK", spec.node_rank.to_string()),
        ("ROLE_RANK", rank),
        ("ROLE_NAME", "default".to_owned()),
        ("LOCAL_WORLD_SIZE", spec.ranks_per_node.to_string()),
        ("WORLD_SIZE", world_size.clone()),
        ("GROUP_WORLD_SIZE", spec.node_count.to_string()),
        ("ROLE_WORLD_SIZE", world_size),
        ("MASTER_ADDR", rendezvous.address.clone()),
        ("MASTER_PORT", rendezvous.port.to_string()),
        ("TORCHELASTIC_RESTART_COUNT", spec.faults.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", spec.max_faults.to_string()),
        ("TORCHELASTIC_RUN_ID", format!("job-{}", spec.job)),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_owned()),
    ];
    for (name, value) in variables {
        set(&mut environment, name, value);
    }
    set_if_absent(&mut environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if spec.ranks_per_node > 1 {
        set_if_absent(&mut environment, "OMP_NUM_THREADS", "1");
    }
    environment.insert("GANGLINE_SOCKET".into(), socket.as_os_str().to_owned());
    if let Some(folder) = staging {
        // A job that wants no staging sets it to the empty text.
        environment.entry("GANGLINE_STAGING_DIR".into()).or_insert_with(|| folder.as_os_str().to_owned());
    }
    tracking::join(&mut environment, spec);
    environment
}

fn set(environment: &mut Environment, name: &str, value: impl Into<OsString>) {
    environment.insert(OsString::from(name), value.into());
}

fn set_if_absent(environment: &mut Environment, name: &str, value: &str) {
    environment.entry(OsString::from(name)).or_insert_with(|| OsString::from(value));
}
