//! A private Slurm on this machine: munge, slurmctld and a slurmd a node, in a folder and on ports of its own. For trying
//! things out, for the demo and for tests; it takes root, as slurmd does and device files for its pretended GPUs do.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::{Signal, kill_process};

use crate::launcher::fence::{all_with, kill_all_with};
use crate::process::{as_pid, numbers, signal_all};

/// The variable by which Slurm's programs find their Slurm; everything that a private one starts has it.
pub const CONF_VARIABLE: &str = "SLURM_CONF";
/// NVIDIA's device number: the files are never opened, they only have to be there.
const DEVICE_MAJOR: u32 = 195;
/// How long it may take until all nodes are there.
const START_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long slurmctld may take to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(20);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);
/// Length of munge's key.
const KEY_BYTES: u64 = 128;

/// What a private Slurm is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateOptions {
    /// The empty folder for all of it. Short: sockets have names of at most 107 bytes.
    pub folder: PathBuf,
    /// Nodes `n1`, `n2`, ...
    pub nodes: u32,
    /// CPUs of each; they need not be there.
    pub cpus: u32,
    /// Pretended GPUs of each, and their type.
    pub gpus: Option<(String, u32)>,
    /// Networks that are there already and that the nodes are put into; none: all of it is on loopback.
    pub hosts: Option<PrivateHosts>,
}

/// Nodes that reach each other and the controller by a network only, as if they were other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateHosts {
    /// The controller's address.
    pub controller: Ipv4Addr,
    /// Of each node, the network namespace (`ip netns`) that it is in and its address there.
    pub nodes: Vec<(String, Ipv4Addr)>,
}

/// Why there is no private Slurm.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// A program is missing.
    #[error("a private Slurm needs {program}: install the packages slurm-wlm and munge")]
    Missing {
        /// Which.
        program: &'static str,
    },
    /// Only root may.
    #[error("a private Slurm needs root: its daemons refuse anybody else")]
    NotRoot,
    /// A file or a program of it.
    #[error("{doing} {path}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It didn't come up.
    #[error("the private Slurm did not come up within {} s: {log}", START_WAIT_MAX.as_secs())]
    Late {
        /// The last of its log.
        log: String,
    },
}

/// A private Slurm. When it is dropped nothing of it is left but its folder.
#[derive(Debug)]
pub struct PrivateSlurm {
    options: PrivateOptions,
    munged: Child,
    controller: Option<Child>,
    nodes: Vec<Option<Child>>,
}

impl PrivateSlurm {
    /// Sets it up and waits until all its nodes are there.
    ///
    /// # Errors
    /// [`PrivateError`]; nothing of it runs then.
    pub fn start(options: PrivateOptions) -> Result<PrivateSlurm, PrivateError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PrivateError::NotRoot);
        }
        write_all(&options)?;
        let munged = start_munged(&options.folder)?;
        let nodes = (0..options.nodes).map(|_| None).collect();
        // From here on a failure drops it, which ends what runs.
        let mut slurm = PrivateSlurm { options, munged, controller: None, nodes };
        slurm.start_controller()?;
        for node in 1..=slurm.options.nodes {
            slurm.start_node(node)?;
        }
        slurm.wait_until_up()?;
        Ok(slurm)
    }

    /// Its slurm.conf, for SLURM_CONF.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.options.folder.join("slurm.conf")
    }

    /// One of Slurm's programs, told which Slurm is meant.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env(CONF_VARIABLE, self.conf()).stdin(Stdio::null());
        command
    }

    /// Starts slurmctld, again after [`Self::stop_controller`].
    ///
    /// # Errors
    /// [`PrivateError`] if it can't be started.
    pub fn start_controller(&mut self) -> Result<(), PrivateError> {
        let mut command = self.command("slurmctld");
        command.arg("-D").arg("-f").arg(self.conf());
        self.controller = Some(spawn(command, "slurmctld", &self.options.folder)?);
        Ok(())
    }

    /// SIGTERM to slurmctld, which then saves what it knows: by itself it does so every five seconds only (its `SAVE_MAX_WAIT`), and one that
    /// is killed within them ends jobs that it doesn't know to run.
    pub fn stop_controller(&mut self) {
        let Some(mut controller) = self.controller.take() else { return };
        let is_told = as_pid(controller.id()).is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let until = Instant::now() + STOP_WAIT_MAX;
        while is_told && Instant::now() < until && matches!(controller.try_wait(), Ok(None)) {
            sleep(PAUSE);
        }
        end(Some(controller));
    }

    /// Starts the slurmd of node `n<number>`, again after [`Self::kill_node`].
    ///
    /// # Errors
    /// [`PrivateError`] if it can't be started.
    pub fn start_node(&mut self, number: u32) -> Result<(), PrivateError> {
        let host = self.options.hosts.as_ref().and_then(|hosts| hosts.nodes.get(index(number)?));
        let mut command = match host {
            Some((namespace, _)) => {
                // Not by "ip netns exec", which hides the cgroups that slurmd looks for.
                let mut command = self.command("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg("slurmd");
                command
            }
            None => self.command("slurmd"),
        };
        command.args(["-D", "-N", &format!("n{number}"), "-f"]).arg(self.conf());
        command.env(NODE_VARIABLE, node_mark(&self.options.folder, number));
        command.current_dir(node_folder(&self.options.folder, number));
        let child = spawn(command, "slurmd", &self.options.folder)?;
        if let Some(node) = self.node(number) {
            *node = Some(child);
        }
        Ok(())
    }

    /// SIGKILL to a node's slurmd and to all that runs there, as if the machine had lost its power.
    pub fn kill_node(&mut self, number: u32) {
        let mark = node_mark(&self.options.folder, number);
        let folder = node_folder(&self.options.folder, number);
        let (conf, name) = (self.conf().display().to_string(), format!("n{number}"));
        // What a step runs has its node's name from Slurm itself.
        let marks: [&[(&str, &str)]; 2] =
            [&[(NODE_VARIABLE, &mark)], &[(CONF_VARIABLE, &conf), ("SLURMD_NODENAME", &name)]];
        // Those who see another killed would still tell Slurm, as srun's helper does of srun (its steps on other nodes are cancelled then): all
        // stop before the first is killed, and children go first, for Linux wakes those who are left without a parent.
        let mut all: Vec<u32> = marks.iter().flat_map(|mark| all_with(mark)).chain(step_daemons(&folder)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        signal_all(&all, Signal::STOP);
        signal_all(&all, Signal::KILL);
        end(self.node(number).and_then(Option::take));
        marks.iter().for_each(|mark| kill_all_with(mark));
    }

    fn node(&mut self, number: u32) -> Option<&mut Option<Child>> {
        self.nodes.get_mut(index(number)?)
    }

    fn wait_until_up(&mut self) -> Result<(), PrivateError> {
        let deadline = Instant::now() + START_WAIT_MAX;
        let expected = usize::try_from(self.options.nodes).unwrap_or(usize::MAX);
        while Instant::now() < deadline {
            let output = self.command("sinfo").args(["-h", "-N", "-o", "%T"]).stderr(Stdio::null()).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
            if text.lines().filter(|state| *state == "idle").count() == expected {
                return Ok(());
            }
            sleep(PAUSE);
        }
        let log = fs::read_to_string(self.options.folder.join("slurmctld.out")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        Err(PrivateError::Late { log: last.join("; ") })
    }
}

impl Drop for PrivateSlurm {
    fn drop(&mut self) {
        let conf = self.conf().display().to_string();
        end(self.controller.take());
        for number in 1..=self.options.nodes {
            end(self.node(number).and_then(Option::take));
            signal_all(&step_daemons(&node_folder(&self.options.folder, number)), Signal::KILL);
        }
        kill_all_with(&[(CONF_VARIABLE, &conf)]);
        // It may have ended by itself.
        let _ = self.munged.kill();
        let _ = self.munged.wait();
    }
}

/// All that a node's slurmd starts has this variable.
const NODE_VARIABLE: &str = "GANGLINE_PRIVATE_NODE";

/// Nodes are numbered from one.
fn index(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

fn node_mark(folder: &Path, number: u32) -> String {
    format!("{}:n{number}", folder.display())
}

/// Where a node's slurmd runs.
fn node_folder(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("n{number}"))
}

/// The slurmstepds of a node. They write their titles over their environments, so they are known by the folder in which their slurmd
/// started them.
fn step_daemons(node_folder: &Path) -> Vec<u32> {
    let is_step_daemon = |pid: &u32| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == node_folder)
            && fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"slurmstepd\n")
    };
    numbers().filter(is_step_daemon).collect()
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrivateError {
    let path = path.to_owned();
    move |source| PrivateError::Io { doing, path, source }
}

fn spawn(mut command: Command, program: &'static str, folder: &Path) -> Result<Child, PrivateError> {
    let path = folder.join(format!("{program}.out"));
    let log = OpenOptions::new().create(true).append(true).open(&path).map_err(failed("open", &path))?;
    let errors = log.try_clone().map_err(failed("open", &path))?;
    command.stdin(Stdio::null()).stdout(log).stderr(errors);
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PrivateError::Missing { program },
        _ => PrivateError::Io { doing: "start", path: PathBuf::from(program), source: error },
    })
}

fn start_munged(folder: &Path) -> Result<Child, PrivateError> {
    let own = folder.join("munge");
    DirBuilder::new().mode(0o755).create(&own).map_err(failed("create", &own))?;
    let path = own.join("key");
    let mut key = Vec::new();
    let random = File::open("/dev/urandom").and_then(|file| file.take(KEY_BYTES).read_to_end(&mut key));
    random.map_err(failed("read", Path::new("/dev/urandom")))?;
    let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(&key)).map_err(failed("write", &path))?;
    let mut command = Command::new("munged");
    command.args(["--foreground", "--force", "--num-threads=2"]);
    for (option, file) in [("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("seed-file", "seed")] {
        command.arg(format!("--{option}={}", own.join(file).display()));
    }
    let munged = spawn(command, "munged", folder)?;
    let deadline = Instant::now() + START_WAIT_MAX;
    while !own.join("socket").exists() && Instant::now() < deadline {
        sleep(PAUSE);
    }
    Ok(munged)
}

fn write_all(options: &PrivateOptions) -> Result<(), PrivateError> {
    let folder = &options.folder;
    let nodes = (1..=options.nodes).map(|number| node_folder(folder, number));
    for path in ["state", "dev"].map(|name| folder.join(name)).into_iter().chain(nodes) {
        DirBuilder::new().recursive(true).create(&path).map_err(failed("create", &path))?;
    }
    for number in 0..options.gpus.as_ref().map_or(0, |(_, count)| *count) {
        let path = folder.join("dev").join(format!("nvidia{number}"));
        let mode = Mode::from_raw_mode(0o600);
        let made = mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(DEVICE_MAJOR, number));
        made.map_err(|error| failed("make the device file", &path)(error.into()))?;
    }
    let ports = free_ports(options.nodes).map_err(failed("find free ports for", folder))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(failed("write", &path))
    };
    write("slurm.conf", slurm_conf(options, &ports))?;
    let gres = options.gpus.as_ref().map(|(kind, count)| {
        let last = count.saturating_sub(1);
        let devices = folder.join("dev").join(format!("nvidia[0-{last}]"));
        format!("NodeName=n[1-{}] Name=gpu Type={kind} File={}\n", options.nodes, devices.display())
    });
    write("gres.conf", format!("AutoDetect=off\n{}", gres.unwrap_or_default()))
}

/// One for the controller, then one a node. They are held together, so they differ; from here to their use others may take
/// them, which shows.
fn free_ports(nodes: u32) -> io::Result<Vec<u16>> {
    let held: io::Result<Vec<TcpListener>> = (0..=nodes).map(|_| TcpListener::bind(("127.0.0.1", 0))).collect();
    held?.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

fn slurm_conf(options: &PrivateOptions, ports: &[u16]) -> String {
    let folder = options.folder.display();
    let (controller, nodes) = ports.split_first().expect("the controller has a port");
    let gres = options.gpus.as_ref().map(|(kind, count)| format!(" Gres=gpu:{kind}:{count}")).unwrap_or_default();
    let cpus = options.cpus;
    let local = Ipv4Addr::LOCALHOST;
    let head = options.hosts.as_ref().map_or(local, |hosts| hosts.controller);
    let mut text = format!(
        "ClusterName=private\nSlurmctldHost=localhost({head})\nSlurmctldPort={controller}\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nGresTypes=gpu\nMpiDefault=none\n\
         JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
         ReturnToService=2\nSlurmdParameters=config_overrides\nStateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool-%n\nSlurmdPidFile={folder}/slurmd-%n.pid\nSlurmctldPidFile={folder}/slurmctld.pid\n\
         SlurmdTimeout=300\nMinJobAge=10\n\
         SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000\n\
         PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    );
    for (number, port) in (1..).zip(nodes) {
        let host = options.hosts.as_ref().and_then(|hosts| hosts.nodes.get(index(number)?));
        let address = host.map_or(local, |(_, address)| *address);
        text.push_str(&format!(
            "NodeName=n{number} NodeHostname=localhost NodeAddr={address} Port={port} CPUs={cpus} RealMemory=4000{gres} \
             State=UNKNOWN\n"
        ));
    }
    text
}
