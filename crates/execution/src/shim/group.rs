//! The rank's processes: its process group and all its descendants. Signals are sent only while the main
//! process isn't reaped or a member of its group is left, since the group's id can't be reused until then.

use std::io::{PipeWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, WaitStatus, kill_process_group,
    test_kill_process_group, wait, waitid,
};

use super::{ContainerRuntime, RankEnd, container};
use crate::process::{as_pid, descendants, kill_all, own_pid};

/// How long the shim tries to kill what a rank left behind. A process that hangs in the kernel survives any
/// signal.
const CLEAN_UP_MAX: Duration = Duration::from_secs(5);
/// Interval between two checks of what is left. No event tells that a process which isn't a child has gone.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// The shortest and the longest interval between two looks for a container that a daemon starts. A look reads all processes of the node,
/// and an image may take minutes to come.
const ADMIT_AGAIN: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Exit codes for "Do not restart me" and "I have saved, requeue me".
const MEANT_CODES: [i32; 2] = [93, 94];

/// A rank's processes.
pub(super) struct Group {
    main: Option<Pid>,
    /// What runs the rank's container; the main process then is that program.
    container: Option<ContainerRuntime>,
    /// The input of a container that a daemon starts, which waits for a line of it and ends with it.
    held_input: Mutex<Option<HeldInput>>,
    /// SIGTERM was sent: the rank may be saving.
    is_terminating: AtomicBool,
    /// SIGKILL was sent: nothing is spared.
    is_killing: AtomicBool,
    /// The main process is reaped and its group is empty: the id may belong to another group by now.
    is_gone: AtomicBool,
}

/// A shim's end of a container's standard input.
struct HeldInput {
    input: PipeWriter,
    /// The job's command runs.
    has_begun: bool,
}

impl Group {
    /// Creates the group that `main` leads: what runs the container, if the rank is in one. A container that a daemon starts lives
    /// only as long as its input is held open.
    pub(super) fn new(main: u32, container: Option<ContainerRuntime>, input: Option<PipeWriter>) -> Self {
        Group {
            main: as_pid(main),
            container,
            held_input: Mutex::new(input.map(|input| HeldInput { input, has_begun: false })),
            is_terminating: AtomicBool::new(false),
            is_killing: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Lets the job's command begin in a container that a daemon starts, once the container is there: in the control group of this
    /// process. Returns then, or once the container has ended.
    pub(super) fn admit(&self) {
        let began = Instant::now();
        while !self.is_gone.load(Ordering::SeqCst) {
            match self.held_input().as_mut() {
                None => return,
                Some(held) if container::enter_own_control_group() => {
                    // If the container has ended by now, that is noticed by its end.
                    let _ = held.input.write_all(b"\n");
                    held.has_begun = true;
                    return;
                }
                Some(_) => {}
            }
            sleep((began.elapsed() / 16).clamp(ADMIT_AGAIN[0], ADMIT_AGAIN[1]));
        }
    }

    fn held_input(&self) -> MutexGuard<'_, Option<HeldInput>> {
        self.held_input.lock().expect("no thread panics while it holds the input")
    }

    /// Sends SIGTERM to the group, or to the processes in the container.
    pub(super) fn terminate(&self) {
        self.is_terminating.store(true, Ordering::SeqCst);
        // Before the job's command there is nothing that could save.
        drop(self.held_input().take_if(|held| !held.has_begun));
        if !(self.is_apart() && container::terminate()) {
            self.signal(Signal::TERM);
        }
    }

    /// Sends SIGKILL to the group; other descendants are killed once the main process has ended.
    pub(super) fn kill(&self) {
        self.is_killing.store(true, Ordering::SeqCst);
        drop(self.held_input().take());
        if self.is_apart() {
            container::kill(|| self.is_gone.load(Ordering::SeqCst));
        }
        self.signal(Signal::KILL);
    }

    /// Reports whether the rank's processes aren't in the group.
    fn is_apart(&self) -> bool {
        self.container.is_some_and(ContainerRuntime::is_apart)
    }

    fn signal(&self, signal: Signal) {
        if let Some(main) = self.main.filter(|_| !self.is_gone.load(Ordering::SeqCst)) {
            let _ = kill_process_group(main, signal);
        }
    }

    /// Waits for the main process to end and leaves it unreaped. Reaps orphans that end before.
    pub(super) fn wait_for_main(&self) -> RankEnd {
        let unreaped = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::All, unreaped) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return RankEnd::Exit(1),
            }
            if let Some(status) = self.main_status(unreaped | WaitIdOptions::NOHANG) {
                return status;
            }
            if let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG)
                && Some(pid) == self.main
            {
                return end_of(status);
            }
        }
    }

    fn main_status(&self, options: WaitIdOptions) -> Option<RankEnd> {
        let status = waitid(WaitId::Pid(self.main?), options).ok().flatten()?;
        Some(end_of_id(&status))
    }

    /// Cleans up after the main process has ended as `main_end`. If the rank was asked to end, the rest of
    /// its group first gets the time that is left (a shell dies of SIGTERM at once, while the trainer it runs
    /// may be saving); then all its descendants are killed. Returns how the rank ended: if the shell died of
    /// the SIGTERM, a 93 or 94 of its child counts.
    pub(super) fn clean_up(&self, main_end: RankEnd) -> RankEnd {
        let main_end = if self.container.is_some() { container::end_of_command(main_end) } else { main_end };
        if self.is_apart() {
            self.is_gone.store(true, Ordering::SeqCst);
            container::await_removal();
            sweep();
            return main_end;
        }
        let mut end = main_end;
        let died_of_term = main_end == RankEnd::Signal(Signal::TERM.as_raw());
        while self.may_linger() && self.group_has_members() {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((_, status))) => {
                    let is_meant = status.exit_status().is_some_and(|code| MEANT_CODES.contains(&code));
                    if is_meant && died_of_term {
                        end = end_of(status);
                    }
                }
                Ok(None) => sleep(LOOK_AGAIN),
                Err(_) => break,
            }
        }
        if !self.group_has_members() {
            self.is_gone.store(true, Ordering::SeqCst);
        }
        self.signal(Signal::KILL);
        self.is_gone.store(true, Ordering::SeqCst);
        sweep();
        end
    }

    fn may_linger(&self) -> bool {
        self.is_terminating.load(Ordering::SeqCst) && !self.is_killing.load(Ordering::SeqCst)
    }

    /// Reports whether any process of the group is left; unreaped ones count.
    fn group_has_members(&self) -> bool {
        self.main.is_some_and(|main| test_kill_process_group(main).is_ok())
    }
}

/// Kills and reaps all descendants of this process. Gives up after [`CLEAN_UP_MAX`].
fn sweep() {
    let deadline = Instant::now() + CLEAN_UP_MAX;
    while Instant::now() < deadline {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => {
                kill_all(&descendants(own_pid(), &[]));
                sleep(LOOK_AGAIN);
            }
            Err(_) => return,
        }
    }
}

fn end_of(status: WaitStatus) -> RankEnd {
    match status.terminating_signal() {
        Some(signal) => RankEnd::Signal(signal),
        None => RankEnd::Exit(status.exit_status().unwrap_or_default()),
    }
}

fn end_of_id(status: &WaitIdStatus) -> RankEnd {
    match status.terminating_signal() {
        Some(signal) => RankEnd::Signal(signal),
        None => RankEnd::Exit(status.exit_status().unwrap_or_default()),
    }
}
