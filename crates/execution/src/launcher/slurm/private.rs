//! A private Slurm on this machine, in a folder and on ports of its own: munge, slurmctld and one slurmd for
//! each node. For experiments, the demo and tests; it needs root, since slurmd does, and so do the device
//! files of its simulated GPUs.

mod accounts;

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

use crate::free_port;
use crate::launcher::fence::{all_with, kill_all_with};
use crate::process::{as_pid, numbers, signal_all};
use accounts::Accounts;

/// The variable that tells Slurm's programs their configuration; every process of a private Slurm has it.
pub const CONF_VARIABLE: &str = "SLURM_CONF";
/// NVIDIA's device number: the files are never opened, they only have to exist.
const DEVICE_MAJOR: u32 = 195;
/// The ports of its daemons.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
/// Maximum time until all nodes are up.
const START_WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum time for slurmctld to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(20);
/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(50);
/// Length of munge's key.
const KEY_BYTES: u64 = 128;

/// Options of a private Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateOptions {
    /// An empty folder for all its files. Its path must be short: names of sockets have at most 107 bytes.
    pub folder: PathBuf,
    /// Number of nodes; they are named `n1`, `n2`, ...
    pub nodes: u32,
    /// Number of CPUs of each node; they need not exist.
    pub cpus: u32,
    /// Type and number of simulated GPUs of each node.
    pub gpus: Option<(String, u32)>,
    /// Existing networks for the nodes; none: everything is on loopback.
    pub hosts: Option<PrivateHosts>,
    /// Whether it keeps accounts in slurmdbd and a MariaDB: there is one account, `lab`, with root in it, and associations, limits
    /// and QOS are enforced. Otherwise Slurm forgets what it ran.
    pub has_accounts: bool,
}

/// Nodes that reach each other and the controller only by a network, as if they were other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateHosts {
    /// The controller's address.
    pub controller: Ipv4Addr,
    /// Each node's network namespace (`ip netns`) and its address there.
    pub nodes: Vec<(String, Ipv4Addr)>,
}

/// The reason a private Slurm couldn't be started.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// A program is missing.
    #[error("a private Slurm needs {program}: install the packages slurm-wlm and munge")]
    Missing {
        /// The program's name.
        program: &'static str,
    },
    /// Root is required.
    #[error("a private Slurm needs root: its daemons refuse anybody else")]
    NotRoot,
    /// An operation on a file or program failed.
    #[error("{doing} {path}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It didn't come up in time.
    #[error("the private Slurm did not come up within {} s: {log}", START_WAIT_MAX.as_secs())]
    Late {
        /// The end of its log.
        log: String,
    },
}

/// A private Slurm. Dropping it leaves nothing but its folder.
#[derive(Debug)]
pub struct PrivateSlurm {
    options: PrivateOptions,
    munged: Child,
    accounts: Option<Accounts>,
    controller: Option<Child>,
    nodes: Vec<Option<Child>>,
}

impl PrivateSlurm {
    /// Sets it up and waits until all its nodes are up.
    ///
    /// # Errors
    /// [`PrivateError`]; nothing of it runs then.
    pub fn start(options: PrivateOptions) -> Result<PrivateSlurm, PrivateError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PrivateError::NotRoot);
        }
        let munged = start_munged(&options.folder)?;
        let nodes = (0..options.nodes).map(|_| None).collect();
        // From here on a failure drops it, which ends its processes.
        let mut slurm = PrivateSlurm { options, munged, accounts: None, controller: None, nodes };
        if slurm.options.has_accounts {
            slurm.accounts = Some(Accounts::start(&slurm.options.folder)?);
        }
        let accounts = slurm.accounts.as_ref().map(|accounts| accounts.lines(&slurm.options.folder));
        write_all(&slurm.options, &accounts.unwrap_or_else(|| NO_ACCOUNTS.to_owned()))?;
        slurm.start_controller()?;
        for node in 1..=slurm.options.nodes {
            slurm.start_node(node)?;
        }
        slurm.wait_until_up()?;
        Ok(slurm)
    }

    /// Returns the path of its slurm.conf, for SLURM_CONF.
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.options.folder.join("slurm.conf")
    }

    /// Returns a command for one of Slurm's programs, configured for this Slurm.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env(CONF_VARIABLE, self.conf()).stdin(Stdio::null());
        command
    }

    /// Starts slurmctld, also after [`Self::stop_controller`].
    ///
    /// # Errors
    /// [`PrivateError`] if it can't be started.
    pub fn start_controller(&mut self) -> Result<(), PrivateError> {
        let mut command = self.command("slurmctld");
        command.arg("-D").arg("-f").arg(self.conf());
        self.controller = Some(spawn(command, "slurmctld", &self.options.folder)?);
        Ok(())
    }

    /// Sends SIGTERM to slurmctld, which then saves its state. By itself it saves only every five seconds
    /// (its `SAVE_MAX_WAIT`), and if it is killed within them it later ends jobs that it doesn't know to run.
    pub fn stop_controller(&mut self) {
        let Some(mut controller) = self.controller.take() else { return };
        let is_told = as_pid(controller.id()).is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let until = Instant::now() + STOP_WAIT_MAX;
        while is_told && Instant::now() < until && matches!(controller.try_wait(), Ok(None)) {
            sleep(PAUSE);
        }
        end(Some(controller));
    }

    /// Starts the slurmd of node `n<number>`, also after [`Self::kill_node`].
    ///
    /// # Errors
    /// [`PrivateError`] if it can't be started.
    pub fn start_node(&mut self, number: u32) -> Result<(), PrivateError> {
        self.start_slurmd(number, &[])
    }

    /// Starts the slurmd of a node that was powered down: it says that the machine has just booted.
    ///
    /// # Errors
    /// [`PrivateError`] if it can't be started.
    pub fn boot_node(&mut self, number: u32) -> Result<(), PrivateError> {
        self.start_slurmd(number, &["-b"])
    }

    fn start_slurmd(&mut self, number: u32, options: &[&str]) -> Result<(), PrivateError> {
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
        command.args(options).args(["-D", "-N", &format!("n{number}"), "-f"]).arg(self.conf());
        command.env(NODE_VARIABLE, node_mark(&self.options.folder, number));
        command.current_dir(node_folder(&self.options.folder, number));
        let child = spawn(command, "slurmd", &self.options.folder)?;
        if let Some(node) = self.node(number) {
            *node = Some(child);
        }
        Ok(())
    }

    /// Sends SIGKILL to a node's slurmd and all that runs there, as if the machine had lost its power.
    pub fn kill_node(&mut self, number: u32) {
        let mark = node_mark(&self.options.folder, number);
        let folder = node_folder(&self.options.folder, number);
        let (conf, name) = (self.conf().display().to_string(), format!("n{number}"));
        // Processes of a step have their node's name from Slurm itself.
        let marks: [&[(&str, &str)]; 2] =
            [&[(NODE_VARIABLE, &mark)], &[(CONF_VARIABLE, &conf), ("SLURMD_NODENAME", &name)]];
        // A process that sees another killed could still tell Slurm, as srun's helper does of srun (whose
        // steps on other nodes are cancelled then). So all are stopped before the first is killed, and
        // children are killed first, since Linux wakes processes that lose their parent.
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
        Err(PrivateError::Late { log: last_lines(&log) })
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

/// All processes of a node's slurmd have this variable.
const NODE_VARIABLE: &str = "GANGLINE_PRIVATE_NODE";

/// Nodes are numbered from one.
fn index(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

fn node_mark(folder: &Path, number: u32) -> String {
    format!("{}:n{number}", folder.display())
}

/// Returns the working directory of a node's slurmd.
fn node_folder(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("n{number}"))
}

/// Returns the slurmstepds of a node. They overwrite their environments with their titles, so they are
/// identified by the folder in which their slurmd started them.
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

/// Returns the last lines of a log, newest first.
fn last_lines(log: &str) -> String {
    log.lines().rev().take(5).collect::<Vec<_>>().join("; ")
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

/// What slurm.conf says where nothing is kept.
const NO_ACCOUNTS: &str = "AccountingStorageType=accounting_storage/none\n";

fn write_all(options: &PrivateOptions, accounts: &str) -> Result<(), PrivateError> {
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
    let ports = free_ports(options.nodes.saturating_add(1)).map_err(failed("find free ports for", folder))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(failed("write", &path))
    };
    write("slurm.conf", slurm_conf(options, &ports, accounts))?;
    let gres = options.gpus.as_ref().map(|(kind, count)| {
        let last = count.saturating_sub(1);
        let devices = folder.join("dev").join(format!("nvidia[0-{last}]"));
        format!("NodeName=n[1-{}] Name=gpu Type={kind} File={}\n", options.nodes, devices.display())
    });
    write("gres.conf", format!("AutoDetect=off\n{}", gres.unwrap_or_default()))
}

/// Returns free ports. They are held together, so they differ; between their release and their use another private Slurm may take
/// one, which causes a visible failure.
fn free_ports(count: u32) -> io::Result<Vec<u16>> {
    let local = Ipv4Addr::LOCALHOST.into();
    let held: io::Result<Vec<TcpListener>> = (0..count).map(|_| free_port::hold(local, &PORTS)).collect();
    held?.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

/// `ports`: the controller's, then one for each node.
fn slurm_conf(options: &PrivateOptions, ports: &[u16], accounts: &str) -> String {
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
         JobAcctGatherType=jobacct_gather/none\n\
         ReturnToService=2\nSlurmdParameters=config_overrides\nStateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool-%n\nSlurmdPidFile={folder}/slurmd-%n.pid\nSlurmctldPidFile={folder}/slurmctld.pid\n\
         SlurmdTimeout=150\nMinJobAge=10\n\
         SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=100000\n\
         PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    );
    // Of a setting that is there twice, the last one counts.
    text.push_str(accounts);
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
