//! The commands that decide about money, by the built program: a provider's bill of a million rows beside the ledger, and two years
//! of a cluster's future.
//!
//! The bill is of the thousand nodes of a control plane on which nothing has run: what is timed is reading the bill, finding rows that
//! overlap, and comparing. What the ledger's own part takes is the report by node.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{DEVICES, NODES, name};
use crate::binary::binary;
use crate::report::{Bar, Report};

/// Hours of the bill, each of which has a row for each node.
const HOURS: u64 = 1_000;
const RECONCILED_SECONDS_MOST: f64 = 10.0;
const MONTHS: u32 = 24;
const ROADMAP_SECONDS_MOST: f64 = 60.0;
/// The past that the months are drawn from.
const DAYS: u64 = 28;
/// As many as make a million attempts in a year.
const JOBS: u64 = 1_000_000 * DAYS / 365;
const DAY_SECONDS: u64 = 24 * 3_600;
/// Devices of the past's jobs, each as likely as the others.
const SIZES: [u64; 6] = [1, 8, 8, 16, 32, 64];
/// The longest job of the past, in seconds; shorter ones are as likely. The past then wants about two thirds of the devices.
const LONGEST: u64 = 15_600;
const GROWTH: &str = "\
months = 24
usd_per_device_hour = 2.0
[growth]
jobs = [0.0, 0.01, 0.02]
sizes = 0.005
[[option]]
name = \"100 nodes ordered in month 6\"
buy = [{nodes = 100, order = 6, lead = 3, usd_per_device_hour = 2.2}]
";
/// How long the control plane may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures both; does nothing where the program isn't built.
pub(super) fn run(report: &mut Report, folder: &Path) -> Result<()> {
    report.section("Commands (measured here, by the built program)");
    let program = match binary() {
        Ok(program) => program,
        Err(error) => {
            report.skip("the commands", &format!("{error:#}"));
            return Ok(());
        }
    };
    let (bill, past, growth) = (folder.join("bill.csv"), folder.join("past.csv"), folder.join("growth.toml"));
    write_bill(&bill)?;
    write_past(&past)?;
    std::fs::write(&growth, GROWTH)?;

    let data = folder.join("plane");
    let mut plane = start(&program, &data)?;
    let reconciled = timed(Command::new(&program).arg("--data").arg(&data).args(["cost", "reconcile"]).arg(&bill));
    plane.kill()?;
    plane.wait()?;
    let what = format!("cost reconcile of {} rows, {} MiB", NODES * HOURS, bill.metadata()?.len() >> 20);
    report.figure(&what, reconciled?, "s", Bar::AtMost(RECONCILED_SECONDS_MOST));

    let mut roadmap = Command::new(&program);
    roadmap.args(["cost", "roadmap"]).arg(&growth).arg("--trace").arg(&past);
    roadmap.arg("--cluster").arg(format!("{NODES}x{DEVICES}"));
    let what =
        format!("cost roadmap: {MONTHS} months of {NODES} nodes, two options, {JOBS} jobs in the past's {DAYS} days");
    report.figure(&what, timed(&mut roadmap)?, "s", Bar::AtMost(ROADMAP_SECONDS_MOST));
    Ok(())
}

/// Writes a bill in FOCUS: a row for each node and hour.
fn write_bill(path: &Path) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let columns = "ChargePeriodStart,ChargePeriodEnd,BilledCost,BillingCurrency,ResourceId,SkuId,ServiceName,ChargeCategory,\
                   ConsumedQuantity,ConsumedUnit";
    writeln!(file, "{columns}")?;
    // January has 31 days, and the bill ends in February.
    let day = |day: u64| if day < 31 { (1, day + 1) } else { (2, day - 30) };
    let hour = |hour: u64| format!("2025-{:02}-{:02}T{:02}:00:00Z", day(hour / 24).0, day(hour / 24).1, hour % 24);
    for number in 0..HOURS {
        let (from, to) = (hour(number), hour(number + 1));
        for node in 0..NODES {
            writeln!(file, "{from},{to},19.92,USD,{},h100-8x,Compute,Usage,1,Hours", name(node))?;
        }
    }
    Ok(file.flush()?)
}

/// Writes a trace of the past.
fn write_past(path: &Path) -> Result<()> {
    let random = &mut ChaCha8Rng::seed_from_u64(3);
    let mut text = String::from("job_id,submit_s,duration_s,gpus,user,vc\n");
    for job in 0..JOBS {
        let submitted = job * DAYS * DAY_SECONDS / JOBS;
        let size = SIZES[usize::try_from(random.next_u64() % SIZES.len() as u64)?];
        let length = 1 + random.next_u64() % LONGEST;
        writeln!(text, "{job},{submitted},{length},{size},user-{},team-{}", job % 200, job % 20)?;
    }
    Ok(std::fs::write(path, text)?)
}

/// Starts a control plane with the nodes.
fn start(program: &Path, data: &Path) -> Result<Child> {
    let mut up = Command::new(program);
    up.arg("--data").arg(data).args(["up", "--listen", "127.0.0.1:0", "--agent-every", "0"]);
    up.args((0..NODES).flat_map(|node| ["--node".to_owned(), format!("{}=cpu:{DEVICES}", name(node))]));
    let up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start the control plane")?;
    let begun = Instant::now();
    while timed(Command::new(program).arg("--data").arg(data).arg("ps")).is_err() {
        ensure!(begun.elapsed() < PATIENCE, "the control plane doesn't answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(up)
}

/// Runs a command to its end; returns the seconds that it took.
fn timed(command: &mut Command) -> Result<f64> {
    let begun = Instant::now();
    let ran = command.stdin(Stdio::null()).output().context("start gangline")?;
    ensure!(ran.status.success(), "gangline failed: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(begun.elapsed().as_secs_f64())
}
