//! The database's owner: one thread that writes, and connections that read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gangline_base::{Timestamp, with_causes};
use gangline_tracking::UnixMillis;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::{Failure, Reading, Writing};

/// The database's file in tracking's folder.
pub(super) const DATABASE: &str = "tracking.db";
/// The version of the schema.
const VERSION: i64 = 3;
/// The most changes that wait; more are refused.
const WAITING_MAX: usize = 4096;
/// The most changes of one commit.
const TOGETHER_MAX: usize = 256;
/// The most idle connections for reading.
const IDLE_MAX: usize = 8;
/// How long a query waits for the write-ahead log's reset.
const BUSY: Duration = Duration::from_secs(5);
/// Memory for pages of a connection, in KiB.
const CACHE_KIB: i64 = 8 << 10;

/// What the service needs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Returns the wall-clock time, for the experiment that exists from the start.
    pub clock: fn() -> Timestamp,
}

/// Owns the database and its writer.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    writer: JoinHandle<()>,
}

/// Changes and reads what tracking keeps. Cheap to clone. Both block, so call them where blocking is allowed.
#[derive(Clone, Debug)]
pub struct Handle(Way);

#[derive(Clone)]
enum Way {
    Open { changes: SyncSender<Order>, readers: Arc<Readers> },
    Closed(Arc<str>),
}

enum Order {
    Change(Change),
    Stop,
}

/// A change: it is applied in a transaction, if there can be one, and what it returns is called with the commit's outcome.
type Change = Box<dyn FnOnce(Result<&Writing<'_>, Failure>) -> Announce + Send>;
type Announce = Box<dyn FnOnce(Result<(), Failure>) + Send>;

#[derive(Debug)]
struct Readers {
    database: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Service {
    /// Opens or makes the database in a folder and starts its writer.
    ///
    /// # Errors
    /// If the folder or the file can't be made, opened or read, or a newer version wrote it.
    pub fn start(folder: &Path, options: Options) -> Result<Service, Failure> {
        std::fs::create_dir_all(folder)?;
        let database = folder.join(DATABASE);
        let mut connection = Connection::open(&database)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        configure(&connection)?;
        prepare(&mut connection, UnixMillis::of((options.clock)()))?;
        let (changes, waiting) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new()
            .name("tracking-writer".into())
            .spawn(move || Writer { connection, poison: None }.run(&waiting))?;
        let readers = Arc::new(Readers { database, idle: Mutex::default() });
        Ok(Service { handle: Handle(Way::Open { changes, readers }), writer })
    }

    /// Returns a handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Writes what waits and stops. Later changes are refused.
    pub fn stop(self) {
        if let Way::Open { changes, .. } = &self.handle.0 {
            // Fails only if the writer has stopped.
            let _ = changes.send(Order::Stop);
        }
        if self.writer.join().is_err() {
            tracing::error!("tracking's writer panicked");
        }
    }
}

impl Handle {
    /// Returns a handle of a service that couldn't start: everything fails with the cause.
    #[must_use]
    pub fn closed(cause: &str) -> Handle {
        Handle(Way::Closed(cause.into()))
    }

    /// Applies a change, and returns what it returned once it is durable. A change that fails changes nothing.
    ///
    /// # Errors
    /// The change's own failure, or that of the commit.
    pub fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Writing<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let Way::Open { changes, .. } = &self.0 else { return Err(self.stopped()) };
        let (answer, answered) = sync_channel(1);
        let apply = move |writing: Result<&Writing<'_>, Failure>| {
            let outcome = writing.and_then(|writing| apply(writing, change));
            let announce = move |committed: Result<(), Failure>| {
                // Fails only if the asking thread is gone.
                let _ = answer.send(outcome.and_then(|value| committed.map(|()| value)));
            };
            Box::new(announce) as Announce
        };
        changes.try_send(Order::Change(Box::new(apply))).map_err(|error| match error {
            TrySendError::Full(_) => Failure::Busy,
            TrySendError::Disconnected(_) => self.stopped(),
        })?;
        answered.recv().unwrap_or_else(|_| Err(self.stopped()))
    }

    /// Reads at one instant.
    ///
    /// # Errors
    /// The query's own failure.
    pub fn read<T>(&self, query: impl FnOnce(&Reading<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
        let Way::Open { readers, .. } = &self.0 else { return Err(self.stopped()) };
        let mut connection = readers.take()?;
        let outcome = {
            let transaction = connection.transaction()?;
            query(&Reading(&transaction))
        };
        readers.give_back(connection);
        outcome
    }

    fn stopped(&self) -> Failure {
        match &self.0 {
            Way::Closed(cause) => Failure::Stopped(cause.to_string()),
            Way::Open { .. } => Failure::Stopped("the control plane stops".into()),
        }
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Open { readers, .. } => write!(to, "{}", readers.database.display()),
            Way::Closed(cause) => write!(to, "closed: {cause}"),
        }
    }
}

impl Readers {
    fn take(&self) -> Result<Connection, Failure> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let connection = Connection::open_with_flags(&self.database, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        configure(&connection)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}

/// Runs a change in a savepoint of its own, so that one that fails leaves the others of its commit alone.
fn apply<T>(writing: &Writing<'_>, change: impl FnOnce(&Writing<'_>) -> Result<T, Failure>) -> Result<T, Failure> {
    let connection = writing.0;
    connection.execute_batch("SAVEPOINT change")?;
    let outcome = change(writing);
    if outcome.is_err() {
        connection.execute_batch("ROLLBACK TO change")?;
    }
    connection.execute_batch("RELEASE change")?;
    outcome
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // LIKE tells capital letters from small ones, ILIKE doesn't.
    connection.pragma_update(None, "case_sensitive_like", true)
}

/// Makes the tables of a new database, and those that an older one lacks.
fn prepare(connection: &mut Connection, now: UnixMillis) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        let message = format!("a newer Gangline wrote it (version {version}, this one knows {VERSION}): use that one");
        return Err(Failure::Store(message));
    }
    if version < 1 {
        transaction.execute_batch(include_str!("schema.sql"))?;
        Writing(&transaction).create_default_experiment(now)?;
    }
    if version < 2 {
        transaction.execute_batch(include_str!("schema_2.sql"))?;
    }
    if version < 3 {
        transaction.execute_batch(include_str!("schema_3.sql"))?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(())
}

struct Writer {
    connection: Connection,
    /// Why nothing more is written.
    poison: Option<String>,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Order>) {
        while let Ok(Order::Change(first)) = waiting.recv() {
            let mut changes = vec![first];
            let mut is_last = false;
            while changes.len() < TOGETHER_MAX {
                match waiting.try_recv() {
                    Ok(Order::Change(change)) => changes.push(change),
                    Ok(Order::Stop) | Err(TryRecvError::Disconnected) => {
                        is_last = true;
                        break;
                    }
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.commit(changes);
            if is_last {
                return;
            }
        }
    }

    /// Applies changes in one transaction and tells each how it ended.
    fn commit(&mut self, changes: Vec<Change>) {
        if let Some(cause) = &self.poison {
            return refuse(changes, &Failure::Poisoned(cause.clone()));
        }
        let transaction = match self.connection.transaction_with_behavior(TransactionBehavior::Immediate) {
            Ok(transaction) => transaction,
            Err(error) => return refuse(changes, &error.into()),
        };
        let writing = Writing(&transaction);
        let announcements: Vec<Announce> = changes.into_iter().map(|change| change(Ok(&writing))).collect();
        let committed = transaction.commit().map_err(Failure::from);
        if let Err(failure @ Failure::Store(cause)) = &committed {
            // After a failed fsync nobody knows what of the file is on the disk.
            tracing::error!(error = with_causes(failure), "tracking can't write any more");
            self.poison = Some(cause.clone());
        }
        announcements.into_iter().for_each(|announce| announce(committed.clone()));
    }
}

/// Tells changes that they aren't applied.
fn refuse(changes: Vec<Change>, failure: &Failure) {
    changes.into_iter().for_each(|change| change(Err(failure.clone()))(Ok(())));
}
