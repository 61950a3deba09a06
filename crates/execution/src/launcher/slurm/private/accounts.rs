//! Accounts of a private Slurm: a MariaDB and slurmdbd, one account with root in it, with associations, limits
//! and QOS enforced and preemption by QOS.

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Instant;

use super::{PAUSE, PrivateError, START_WAIT_MAX, end, failed, free_ports, last_lines, spawn};

/// The account that root's jobs run in.
const ACCOUNT: &str = "lab";
/// What the database has to be told of Slurm, a statement a line; it listens on loopback only.
const GRANTS: &str =
    "CREATE USER 'slurm'@'localhost' IDENTIFIED BY 'slurm';\nGRANT ALL ON *.* TO 'slurm'@'localhost';\n";

/// Both processes; they end with this value.
#[derive(Debug)]
pub(super) struct Accounts {
    database: Option<Child>,
    slurmdbd: Option<Child>,
    port: u16,
}

impl Accounts {
    /// Starts both and makes the account. munged runs, and slurm.conf doesn't exist yet.
    pub(super) fn start(folder: &Path) -> Result<Accounts, PrivateError> {
        let ports = free_ports(2).map_err(failed("find free ports for", folder))?;
        let (database_port, port) = (ports[0], ports[1]);
        let database = start_database(folder, database_port)?;
        // From here on a failure drops it, which ends its processes.
        let mut accounts = Accounts { database: Some(database), slurmdbd: None, port };
        let path = folder.join("slurmdbd.conf");
        fs::write(&path, configuration(folder, port, database_port)).map_err(failed("write", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(failed("restrict", &path))?;
        // It looks for its configuration beside slurm.conf, which needs no more than this for now.
        let path = folder.join("slurm.conf");
        let own = format!(
            "ClusterName=private\nSlurmctldHost=localhost\nSlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={}/munge/socket\n",
            folder.display()
        );
        fs::write(&path, accounts.lines(folder) + &own).map_err(failed("write", &path))?;
        let slurm = |program: &str| {
            let mut command = Command::new(program);
            command.env(super::CONF_VARIABLE, &path);
            command
        };
        let mut command = slurm("slurmdbd");
        command.arg("-D");
        accounts.slurmdbd = Some(spawn(command, "slurmdbd", folder)?);
        let deadline = Instant::now() + START_WAIT_MAX;
        let manage = |arguments: &[&str]| loop {
            let mut command = slurm("sacctmgr");
            command.arg("--immediate").args(arguments);
            let ended = spawn(command, "sacctmgr", folder)?.wait().map_err(failed("run sacctmgr in", folder))?;
            if ended.success() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let log = |program: &str| fs::read_to_string(folder.join(format!("{program}.out"))).unwrap_or_default();
                return Err(PrivateError::Late { log: last_lines(&(log("slurmdbd") + &log("sacctmgr"))) });
            }
            sleep(PAUSE);
        };
        manage(&["add", "cluster", "private"])?;
        manage(&["add", "account", ACCOUNT])?;
        manage(&["add", "user", "root", &format!("account={ACCOUNT}")])?;
        // Slurm itself has put root into an account of that name.
        manage(&["modify", "user", "root", "set", &format!("defaultaccount={ACCOUNT}")])?;
        Ok(accounts)
    }

    /// Returns what slurm.conf says of them.
    pub(super) fn lines(&self, folder: &Path) -> String {
        format!(
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\nAccountingStoragePort={}\n\
             AccountingStorageEnforce=associations,limits,qos\nAccountingStorageTRES=gres/gpu\n\
             AccountingStoragePass={}/munge/socket\nPreemptType=preempt/qos\nPreemptMode=REQUEUE\n",
            self.port,
            folder.display()
        )
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        end(self.slurmdbd.take());
        end(self.database.take());
    }
}

fn start_database(folder: &Path, port: u16) -> Result<Child, PrivateError> {
    let data = folder.join("database");
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg(format!("--datadir={}", data.display()));
    // Its end is told by its status; spawn says which program is missing.
    let mut installing = spawn(install, "mariadb-install-db", folder)?;
    installing.wait().map_err(failed("make a database in", &data))?;
    let grants = folder.join("grants.sql");
    fs::write(&grants, GRANTS).map_err(failed("write", &grants))?;
    let mut command = Command::new("mariadbd");
    command.args(["--no-defaults", "--user=root", "--bind-address=127.0.0.1", "--innodb-lock-wait-timeout=900"]);
    command.arg(format!("--port={port}"));
    let files = [("datadir", "database"), ("socket", "database.sock"), ("pid-file", "database.pid")];
    for (option, file) in files.into_iter().chain([("init-file", "grants.sql")]) {
        command.arg(format!("--{option}={}", folder.join(file).display()));
    }
    let database = spawn(command, "mariadbd", folder)?;
    // slurmdbd that doesn't find it waits for five seconds.
    let deadline = Instant::now() + START_WAIT_MAX;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() && Instant::now() < deadline {
        sleep(PAUSE);
    }
    Ok(database)
}

fn configuration(folder: &Path, port: u16, database_port: u16) -> String {
    let folder = folder.display();
    format!(
        "AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\nDbdHost=localhost\nDbdPort={port}\nSlurmUser=root\n\
         PidFile={folder}/slurmdbd.pid\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n\
         StoragePort={database_port}\nStorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm\n"
    )
}
