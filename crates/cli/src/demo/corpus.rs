//! The demo's corpus: a dataset of single-byte tokens, and an HTTP server in place of an object store.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use gangline_data::{Target, TokenType, Writer};
use gangline_server::files::serve_folder;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::failure::Failure;
use crate::{data, output};

/// Bytes of the corpus.
const BYTES_MAX: usize = 8 << 20;
/// The corpus's name in its store.
const NAME: &str = "corpus";

/// The corpus in its store, which is there as long as this lives.
pub(super) struct Corpus {
    /// Where it is read from.
    pub(super) address: String,
    /// The folder of this node's cache.
    pub(super) cache: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

/// Writes the corpus into a folder, serves it, and names a folder for the cache.
pub(super) fn publish(folder: &Path) -> Result<Corpus, Failure> {
    let (store, cache) = (folder.join("store"), folder.join("data-cache"));
    std::fs::create_dir_all(&store)?;
    let documents = gangline_tinygpt::documents(BYTES_MAX)
        .map_err(|error| Failure::local(format!("failed to {error}"), "is it readable?"))?;
    let write = || -> Result<_, gangline_data::Error> {
        let mut writer = Writer::create(&store.join(NAME), Target::Gangline, TokenType::Uint8)?;
        documents.iter().try_for_each(|document| writer.push_stored(document))?;
        writer.finish()
    };
    let written = write().map_err(|error| data::failure(&error))?;
    let (stop, stopped) = oneshot::channel();
    let (address, server) = serve(store, stopped)?;
    let address = format!("http://{address}/{NAME}");
    output::tell(&format!(
        "corpus: {} Rust files, {} single-byte tokens, served at {address} in place of an object store",
        written.documents, written.tokens
    ));
    Ok(Corpus { address, cache, stop: Some(stop), server: Some(server) })
}

impl Drop for Corpus {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.server.take().map(JoinHandle::join);
    }
}

/// Serves a folder's files until `stopped` is sent or dropped.
fn serve(folder: PathBuf, stopped: oneshot::Receiver<()>) -> Result<(SocketAddr, JoinHandle<()>), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                served = serve_folder(listener, folder) => drop(served),
                _ = stopped => {}
            }
        });
    });
    Ok((address, server))
}
